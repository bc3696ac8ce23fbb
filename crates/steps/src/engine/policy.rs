//! Policy of a step: its log section, attempts and timeouts.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use muster_agent_api::plan::When;
use muster_agent_api::result::StepNode;
use muster_job::{TerminationCause, go_duration};
use tokio_util::sync::CancellationToken;

use super::author::AuthorSteps;
use super::{Brakes, Engine, Job, Ran};
use crate::builtin::{Call, Role, Step};
use crate::failure::Failure;
use crate::stop::{Stop, reached};
use crate::style;

/// Maximum number of attempts, as in gitlab-runner (docs/spec/job-execution.md, section 1.4).
const MAX_ATTEMPTS: u32 = 10;

impl<J: Job> Engine<J> {
    pub(super) async fn within_section(&self, step: &Step<J>, brakes: &Brakes, cancel_reaches: bool) -> Ran {
        self.open_section(&step.name, &step.policy.title);
        let mut nodes = Vec::new();
        let failure = self.tries(step, brakes, cancel_reaches, &mut nodes).await.err();
        self.job.log().end_lines();
        let is_late = failure.as_ref().and_then(Failure::cause) == Some(TerminationCause::TimedOut);
        // If the step is a group, its steps have already printed the warning.
        if is_late && !step.is_group() {
            self.say(&style::warning(&format!(
                "{} could not run to completion because the timeout was exceeded. \
                 Raise the job's `timeout`, or RUNNER_SCRIPT_TIMEOUT and RUNNER_AFTER_SCRIPT_TIMEOUT.",
                step.name
            )));
        }
        self.close_section(&step.name, &step.policy.title);
        Ran { failure, nodes }
    }

    async fn tries(
        &self,
        step: &Step<J>,
        brakes: &Brakes,
        cancel_reaches: bool,
        nodes: &mut Vec<StepNode>,
    ) -> Result<(), Failure> {
        let stop = brakes.stop.child();
        // The steps of a group handle a cancel themselves: which of them it ends depends on their roles.
        let is_group = step.is_group();
        let cancel = if cancel_reaches { brakes.cancel.clone() } else { CancellationToken::new() };
        let inner = Brakes { cancel: cancel.clone(), stop: stop.clone() };
        let attempts = step.policy.attempts.clamp(1, MAX_ATTEMPTS);
        let (mut pause, pause_max) = self.retry_wait;
        let work = async {
            let mut attempt = 1;
            loop {
                nodes.clear();
                let failure = match self.once(step, &inner, nodes).await {
                    Ok(()) => return Ok(()),
                    Err(failure) if attempt >= attempts || stop.cause().is_some() => return Err(failure),
                    Err(failure) => failure,
                };
                self.say(&style::warning(&format!("Retrying... {} error={failure}", step.name)));
                tokio::select! {
                    cause = stop.stopped() => return Err(Failure::Stopped(cause)),
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(pause_max);
                attempt += 1;
                if attempt == 2 {
                    self.clear(step, &stop).await?;
                }
            }
        };
        self.within_limits(step, (!is_group).then_some(&cancel), &stop, work).await
    }

    /// Removes what a failed attempt left behind, in a separate section (docs/spec/job-execution.md, section 1.4).
    async fn clear(&self, step: &Step<J>, stop: &Stop) -> Result<(), Failure> {
        let Call::Builtin(builtin) = &step.call else { return Ok(()) };
        let Some((name, title)) = builtin.clearing() else { return Ok(()) };
        self.open_section(name, title);
        let cleared = builtin.clear(&self.job, stop).await;
        self.close_section(name, title);
        cleared
    }

    fn open_section(&self, name: &str, title: &str) {
        if title.is_empty() {
            return;
        }
        if self.sections {
            self.say(&style::section_start(name));
        }
        self.say(&style::title(title));
    }

    fn close_section(&self, name: &str, title: &str) {
        if self.sections && !title.is_empty() {
            self.say(&style::section_end(name));
        }
    }

    /// Runs `work`, and stops it at the job's deadline, at the step's timeout, or at a cancel. The work decides how long it takes to
    /// stop: processes have the grace time, and a built-in step that blocks a thread has its own timeout.
    async fn within_limits(
        &self,
        step: &Step<J>,
        cancel: Option<&CancellationToken>,
        stop: &Stop,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let own_limit = Duration::from_millis(step.policy.timeout_ms);
        let own = if own_limit.is_zero() { None } else { Instant::now().checked_add(own_limit) };
        // A cleanup step has only its own timeout, because it also runs after the job's deadline.
        let deadline = self.deadline.filter(|_| step.policy.when != When::Finally);
        let own_is_first = match (own, deadline) {
            (Some(own), Some(job)) => own < job,
            (own, _) => own.is_some(),
        };
        let limit = if own_is_first { own } else { deadline };
        let canceled = async {
            match cancel {
                Some(cancel) => cancel.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let (mut work, mut canceled) = (pin!(work), pin!(canceled));
        let mut timed_out = false;
        let mut is_canceled = false;
        loop {
            tokio::select! {
                biased;
                result = &mut work => {
                    return match result {
                        Err(Failure::Stopped(TerminationCause::TimedOut)) if timed_out && own_is_first => {
                            Err(Failure::StepTimeout(step_timeout(step)))
                        }
                        Err(Failure::Stopped(TerminationCause::TimedOut)) if timed_out => {
                            let limit = go_duration(self.limit);
                            Err(Failure::JobTimeout(format!("execution took longer than {limit} seconds")))
                        }
                        other => other,
                    };
                }
                () = reached(limit), if !timed_out => {
                    timed_out = true;
                    stop.stop(TerminationCause::TimedOut);
                }
                () = &mut canceled, if !is_canceled => {
                    is_canceled = true;
                    stop.stop(TerminationCause::CanceledByUser);
                }
            }
        }
    }

    async fn once(&self, step: &Step<J>, brakes: &Brakes, nodes: &mut Vec<StepNode>) -> Result<(), Failure> {
        let stop = &brakes.stop;
        if let Call::Steps(steps) = &step.call {
            // Boxed, because this function is recursive.
            let ran = Box::pin(self.run(steps, brakes)).await;
            *nodes = ran.nodes;
            return ran.failure.map_or(Ok(()), Err);
        }
        if let Call::Delegate(place, steps) = &step.call {
            return self.delegate(&**place, steps, brakes, nodes).await;
        }
        let role = step.role();
        if let (Some(cause), false) = (stop.cause(), role == Role::Cleanup) {
            return Err(Failure::Stopped(cause));
        }
        if !matches!(role, Role::Prepare | Role::Cleanup) {
            self.job.begin_step(stop).await?;
        }
        if let Call::Builtin(builtin) = &step.call {
            return builtin.run(&self.job, stop).await;
        }
        self.job.user_code_starts(stop).await?;
        let author = AuthorSteps::of(&*self.job, stop);
        let ran = match &step.call {
            Call::Run(list) => author.run(list, nodes).await,
            Call::StepFile(file) => author.run_file(file, nodes).await,
            Call::Builtin(_) | Call::Delegate(..) | Call::Steps(_) => Ok(()),
        };
        ran.map_err(|error| Failure::from(&error))
    }
}

fn step_timeout<J>(step: &Step<J>) -> String {
    let limit = go_duration(Duration::from_millis(step.policy.timeout_ms));
    match step.role() {
        Role::Script => "script timeout: context deadline exceeded".to_owned(),
        Role::AfterScript => "after script timeout: context deadline exceeded".to_owned(),
        Role::Sources => format!("get sources timeout: exceeded timeout of {limit}"),
        Role::Prepare | Role::Cleanup | Role::Other => {
            format!("{} timeout: exceeded timeout of {limit}", step.name)
        }
    }
}
