//! Engine that executes a job's tree of steps, each under its policy (docs/spec/job-execution.md, section 1).
//!
//! ```text
//! step --condition--> section --attempts, timeout--> built-in step | `run:` list of the job | steps inside it
//!          |
//!          +-- failed:     later `on_success` steps are skipped
//!          +-- canceled:   during a script: after_script and uploads still run; at other times: only cleanup
//!          +-- timed out:  timeout of the script: as after a failure; another step's or the job's: only cleanup
//! ```

mod beside;
mod bundled;
mod call;
mod debug;
mod delegate;
mod disk_limits;
mod exec;
mod inputs;
mod masked_log;
mod matrix;
mod node;
mod operator_steps;
mod pauses;
mod policy;
mod progress;
mod reference;
mod remote_steps;
mod replaced_steps;
mod results;
mod sequence;
mod settings;
mod turns;
mod used_steps;
mod user_steps;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_api::development::Development;
use muster_agent_api::plan::{self, JobPlan, When};
use muster_agent_api::result::{ResourceUsage, StepNode};
use muster_agent_api::step_runner::RunRequest;
use muster_job::StepPolicy;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::builtin::{Call, OpenTarget, Role, Step};
use crate::bundled::BundledSteps;
pub use crate::disk::DiskError;
use crate::failure::Failure;
use crate::log::{Log, Stream};
use crate::process::{JobNetwork, Processes, Usage, measure_usage, run_limited};
use crate::remote::StepSource;
use crate::stop::StopToken;
use crate::style;
use debug::StepState;
pub use debug::{Attached, CommandEvent, CommandOutput, DebugError, Debugger, PauseInfo, Resume, Snapshot};
pub use node::{StartTime, StepEnd};
pub use operator_steps::ExportedVariable;
use progress::JobProgress;
pub use results::OnResults;
pub use settings::SettingError;
pub use used_steps::{Reader, UsedSteps};
pub use user_steps::StepError;

/// Default first and longest delay between two attempts of a step (docs/spec/job-execution.md, section 1.4).
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Access to the job whose steps the engine executes.
pub trait Job: Send + Sync + 'static {
    /// Returns the processes of the job.
    fn processes(&self) -> &Processes;

    /// Returns the log of the job.
    fn log(&self) -> Arc<dyn Log>;

    /// Returns the time between TERM and KILL when processes are terminated.
    fn grace(&self) -> Duration;

    /// Returns the path of the job's directory, which never changes.
    fn work_dir(&self) -> &Path;

    /// Returns the image of the container in which the steps run. Empty means no container.
    #[expect(clippy::unnecessary_literal_bound, reason = "an implementation returns a name that it owns")]
    fn image(&self) -> &str {
        ""
    }

    /// Returns the job's private directory for temporary files of the steps.
    fn temp_dir(&self) -> &Path;

    /// Returns the job's variables for expressions.
    fn values(&self) -> Map<String, Value>;

    /// Returns the operator's policy for steps of the job's author. `None` allows every step.
    fn step_policy(&self) -> Option<&StepPolicy> {
        None
    }

    /// Returns the receiver of the results of the job's step files. `None` writes them to a file if `CI_STEPS_DEBUG` is
    /// set.
    fn on_results(&self) -> Option<OnResults> {
        None
    }

    /// Returns the environment of the processes of a step of the plan.
    fn step_environment(&self) -> Vec<(OsString, OsString)> {
        self.processes().environment().to_vec()
    }

    /// Returns the options for authors of steps.
    fn development(&self) -> Option<&Development> {
        None
    }

    /// Returns whether the result contains a record of each step's call.
    fn records_calls(&self) -> bool {
        false
    }

    /// Returns the debugger of the job. `None` means that the job cannot be paused.
    fn debugger(&self) -> Option<&Arc<Debugger>> {
        None
    }

    /// Returns the port that fetches remote steps. `None` means that remote steps cannot be called.
    fn step_source(&self) -> Option<Arc<dyn StepSource>> {
        None
    }

    /// Returns the port to the steps that come with the agent.
    fn bundled_steps(self: &Arc<Self>) -> Option<Arc<dyn BundledSteps>> {
        None
    }

    /// Returns the job's own network. `None` means that the job shares its network, so that its traffic is not counted.
    fn network(&self) -> Option<&JobNetwork> {
        None
    }

    /// Returns how long an earlier step took to get sources. The timeout for getting the sources includes this time.
    fn sources_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Sets `CI_JOB_STATUS` for the job's processes.
    fn set_status(&self, status: &'static str);

    /// Returns the request for the agent of `target` to run these steps.
    ///
    /// # Errors
    /// [`Failure`] if the steps cannot be serialized.
    fn delegate_request(&self, target: &dyn OpenTarget, steps: &[plan::Step]) -> Result<RunRequest, Failure>;

    /// Masks values in the log and in the result from now on.
    fn mask_values(&self, _values: &[String]) {}

    /// Masks the variables that must be masked, and adds all to the job. They replace variables of the same name.
    ///
    /// # Errors
    /// [`Failure`] if the job does not support this, or a file cannot be replaced.
    fn add_variables(&self, _variables: Vec<ExportedVariable>) -> Result<(), Failure> {
        Err(Failure::System("this agent cannot add variables to a job".to_owned()))
    }

    /// Adds files to the archives of the job's artifacts: paths or patterns relative to the job's directory.
    fn add_artifact_files(&self, _files: Vec<String>) {}

    /// Adds the resource usage of steps at a second agent to the usage of the job.
    fn add_delegated_usage(&self, usage: &ResourceUsage);

    /// Prepares the job's files for a step.
    fn begin_step(self: &Arc<Self>, stop: &StopToken) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits until the user's code may run (invariant J2).
    fn wait_until_user_code_may_run(&self, stop: &StopToken) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Tokens for the two ways to end a job early.
#[derive(Debug, Clone, Default)]
pub struct JobCancellation {
    /// Graceful cancel. After a cancel during the script, after_script and uploads still run.
    pub cancel: CancellationToken,
    /// Stop. The current step ends, and then only cleanup steps run.
    pub stop: StopToken,
}

/// Executes the steps of one job.
#[derive(Debug)]
pub struct Engine<J> {
    job: Arc<J>,
    has_section_markers: bool,
    /// First and longest delay between two attempts.
    retry_backoff: (Duration, Duration),
    /// Timeout of the job. Zero means no timeout.
    timeout: Duration,
    /// Time when the timeout of the job expires. `None` means never.
    deadline: Option<Instant>,
}

/// Result of running a list of steps.
#[derive(Debug)]
pub struct StepsResult {
    /// First failure that is not ignored.
    pub failure: Option<Failure>,

    /// Nodes of the steps that are part of the result.
    pub nodes: Vec<StepNode>,
}

impl<J: Job> Engine<J> {
    /// Returns the engine for a job with this plan. The job's timeout counts from `start`.
    #[must_use]
    pub fn new(job: Arc<J>, plan: &JobPlan, start: StartTime) -> Self {
        let retry_backoff = match plan.retry_wait_ms {
            (0, _) => RETRY_BACKOFF,
            (first, longest) => (Duration::from_millis(first), Duration::from_millis(longest)),
        };
        let timeout = Duration::from_millis(plan.timeout_ms);
        let deadline = if timeout.is_zero() { None } else { start.after(timeout) };
        Self { job, has_section_markers: plan.trace_sections, retry_backoff, timeout, deadline }
    }

    /// Returns the time when the job's timeout expires. `None` means no timeout.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Runs the steps whose condition is met, in order.
    pub async fn run(&self, steps: &[Step<J>], cancellation: &JobCancellation) -> StepsResult {
        if let Some(debugger) = self.job.debugger() {
            debugger.add_steps("", names(steps));
        }
        let mut progress = JobProgress::default();
        let mut nodes = Vec::new();
        for step in steps {
            nodes.extend(self.run_step(step, cancellation, &mut progress).await);
        }
        StepsResult { failure: progress.failure(), nodes }
    }

    /// Runs a step if its condition is met. Returns `None` if the step is not part of the result.
    async fn run_step(
        &self,
        step: &Step<J>,
        cancellation: &JobCancellation,
        progress: &mut JobProgress,
    ) -> Option<StepNode> {
        if step.is_idle() {
            return None;
        }
        progress.observe_cancel(cancellation);
        let start = StartTime::now();
        // GitLab's results have no node for the step that prints the environment.
        let is_in_result = step.role() != Role::Prepare;
        if !progress.allows(step) {
            // A plan may contain a step twice, for successful and for failed jobs. A skipped variant for failed jobs is
            // not listed.
            self.set_state(step, StepState::Skipped);
            let is_listed = is_in_result && step.policy.when != When::OnFailure;
            return is_listed.then(|| start.node(&step.name, StepEnd::SKIPPED, Usage::default(), Vec::new()));
        }
        progress.begin_step(step);
        self.set_state(step, StepState::Running);
        self.job.set_status(progress.ci_job_status(step));
        let network = self.job.network();
        // Boxed, because the types of nested steps would otherwise be nested, too.
        let running = Box::pin(self.run_in_section(step, cancellation, progress.is_cancelable(step)));
        let ((StepsResult { failure, nodes }, attempts), used) = if step.is_by_author() {
            measure_usage(network, run_limited(running)).await
        } else {
            measure_usage(network, running).await
        };
        self.set_state(step, StepState::from_end(failure.is_none()));
        // Also called after a success, so that the message never appears at a later step.
        let exceeded_memory_limit = step.is_by_author() && self.job.processes().has_new_oom_kills();
        if failure.is_some() && exceeded_memory_limit {
            self.print(&style::error(
                "a process of the job was killed because it exceeded the memory limit of the runner's step policy",
            ));
        }
        let failure =
            failure.map(|failure| if step.policy.by_operator { failure.in_operator_step(&step.name) } else { failure });
        let mut node = start.node(&step.name, failure.as_ref().into(), used, nodes);
        node.attempts = (attempts > 1).then_some(attempts);
        node.call.clone_from(&step.record);
        if let Some(failure) = failure {
            progress.record_failure(step, failure, cancellation, |line| self.print(line));
        }
        is_in_result.then_some(node)
    }

    fn set_state(&self, step: &Step<J>, state: StepState) {
        if let Some(debugger) = self.job.debugger() {
            debugger.set_state(&step.name, state);
        }
    }

    fn print(&self, line: &str) {
        self.job.log().write(Stream::Runner, line.as_bytes());
    }
}

/// Returns the names of the steps and their inner steps. Omits step files, because their steps have their own paths.
fn names<J>(steps: &[Step<J>]) -> Vec<String> {
    let mut found = Vec::new();
    for step in steps.iter().filter(|step| !step.is_idle() && !matches!(step.call, Call::StepFile(_))) {
        found.push(step.name.clone());
        match &step.call {
            Call::Steps(inner) => found.extend(names(inner)),
            Call::Delegate(delegation) => found.extend(names(&delegation.beside)),
            Call::Builtin(_) | Call::Replaced(..) | Call::Run(_) | Call::StepFile(_) => {}
        }
    }
    found
}
