//! The engine: executes the tree of steps of a job, each under its policy (job-execution 1.3 to 1.9).
//!
//! ```text
//! step --condition--> section --tries, limit--> built-in step | author's `run:` list | steps inside it
//!          |
//!          +-- failed:     later `on_success` steps are left out
//!          +-- canceled:   in a script: after_script and uploads still run; elsewhere: only cleaning up
//!          +-- timed out:  only cleaning up
//! ```

mod author;
mod call;
mod delegate;
mod exec;
mod node;
mod policy;
mod standing;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_api::plan::{self, JobPlan, When};
use muster_agent_api::result::StepNode;
use muster_agent_api::step_runner::RunRequest;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::builtin::{Role, Step};
use crate::failure::Failure;
use crate::log::{Log, Stream};
use crate::process::Processes;
use crate::stop::Stop;
pub use author::StepError;
pub use node::{Began, Ending};
use standing::Standing;

/// First and longest pause between two tries of a step if the plan names none (job-execution 1.4).
const RETRY_WAIT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// What the engine needs of the job whose steps it executes.
pub trait Job: Send + Sync + 'static {
    /// Returns what starts and ends the job's processes.
    fn processes(&self) -> &Processes;

    /// Returns where the job prints.
    fn log(&self) -> Arc<dyn Log>;

    /// Returns the time from TERM to KILL.
    fn grace(&self) -> Duration;

    /// Returns the job's directory. It never changes.
    fn work_dir(&self) -> &Path;

    /// Returns the directory for files of the steps. It is private to the job.
    fn temp_dir(&self) -> &Path;

    /// Returns the job's variables for expressions.
    fn values(&self) -> Map<String, Value>;

    /// Sets what the job's processes see as `CI_JOB_STATUS`.
    fn set_status(&self, status: &'static str);

    /// Returns what an agent in a place of the job gets to run these steps in `project_dir`.
    ///
    /// # Errors
    /// [`Failure`] if the steps cannot be written down.
    fn delegated(&self, project_dir: &Path, steps: &[plan::Step]) -> Result<RunRequest, Failure>;

    /// Prepares the job's files for a step.
    fn begin_step(self: &Arc<Self>, stop: &Stop) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits until the author's own code may run (invariant J2).
    fn user_code_starts(&self, stop: &Stop) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The two ways to end a job before its time.
#[derive(Debug, Clone, Default)]
pub struct Brakes {
    /// Graceful: ends the script, then after_script and uploads run.
    pub cancel: CancellationToken,
    /// Ends everything; only cleaning up runs.
    pub stop: Stop,
}

/// Executes the steps of one job.
#[derive(Debug)]
pub struct Engine<J> {
    job: Arc<J>,
    /// Steps are marked as sections.
    sections: bool,
    /// First and longest pause between two tries.
    retry_wait: (Duration, Duration),
    /// Limit of the job. Zero means none.
    limit: Duration,
    /// End of that limit.
    deadline: Option<Instant>,
}

/// What became of steps.
#[derive(Debug)]
pub struct Ran {
    /// The first failure, which is that of all of them.
    pub failure: Option<Failure>,
    /// A node for each step that is in the result.
    pub nodes: Vec<StepNode>,
}

impl<J: Job> Engine<J> {
    /// Returns the engine of a job with this plan. The job's limit counts from `began`.
    #[must_use]
    pub fn new(job: Arc<J>, plan: &JobPlan, began: Began) -> Self {
        let retry_wait = match plan.retry_wait_ms {
            (0, _) => RETRY_WAIT,
            (first, most) => (Duration::from_millis(first), Duration::from_millis(most)),
        };
        let limit = Duration::from_millis(plan.timeout_ms);
        let deadline = if limit.is_zero() { None } else { began.after(limit) };
        Self { job, sections: plan.trace_sections, retry_wait, limit, deadline }
    }

    /// Returns the end of the job's limit. `None` means that it has no limit.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Runs steps in order, each if its condition holds.
    pub async fn run(&self, steps: &[Step<J>], brakes: &Brakes) -> Ran {
        let mut standing = Standing::default();
        let mut nodes = Vec::new();
        for step in steps {
            nodes.extend(self.step(step, brakes, &mut standing).await);
        }
        Ran { failure: standing.failure(), nodes }
    }

    /// Runs one step if it is its turn. Returns `None` if there is nothing to tell about it.
    async fn step(&self, step: &Step<J>, brakes: &Brakes, standing: &mut Standing) -> Option<StepNode> {
        if step.is_idle() {
            return None;
        }
        standing.notice(brakes);
        let began = Began::now();
        // Where a job runs is no step of it.
        let is_in_result = step.role() != Role::Prepare;
        if !standing.allows(step) {
            // A variant for the other outcome is no news.
            let is_news = is_in_result && step.policy.when != When::OnFailure;
            return is_news.then(|| began.node(&step.name, Ending::SKIPPED, Vec::new()));
        }
        standing.enter(step);
        self.job.set_status(standing.word(step));
        let Ran { failure, nodes } = self.within_section(step, brakes, standing.cancel_reaches(step)).await;
        let node = began.node(&step.name, failure.as_ref().into(), nodes);
        if let Some(failure) = failure {
            standing.settle(step, failure, brakes, |line| self.say(line));
        }
        is_in_result.then_some(node)
    }

    fn say(&self, line: &str) {
        self.job.log().write(Stream::Runner, line.as_bytes());
    }
}
