//! Policy of a step: log section, attempts and timeouts.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_api::plan::When;
use muster_agent_api::result::StepNode;
use muster_job::{TerminationCause, go_duration};
use serde_json::Map;
use tokio_util::sync::CancellationToken;

use super::operator_steps::{mask_sensitive_values, publish};
use super::user_steps::{RecordedCalls, UserSteps};
use super::{Debugger, Engine, Job, JobCancellation, StepsResult, replaced_steps};
use crate::builtin::{Call, Replacement, Role, Step};
use crate::failure::Failure;
use crate::log::{Log, Stream};
use crate::stop::{StopToken, wait_until};
use crate::style;

/// Maximum number of attempts of a step, as in gitlab-runner (docs/spec/job-execution.md, section 1.4).
pub(super) const MAX_ATTEMPTS: u32 = 10;

/// Returns the end of a sentence that names the setting for the timeout of a step. Empty means no setting.
fn timeout_setting(step: &str) -> &'static str {
    match step {
        "after_script" => ", or RUNNER_AFTER_SCRIPT_TIMEOUT",
        "get_sources" | "git_mirror" => ", or `get_sources_timeout` of the runner",
        _ if step.starts_with("step_") => ", or RUNNER_SCRIPT_TIMEOUT",
        _ => "",
    }
}

impl<J: Job> Engine<J> {
    pub(super) async fn run_in_section(
        &self,
        step: &Step<J>,
        cancellation: &JobCancellation,
        is_cancelable: bool,
    ) -> (StepsResult, u32) {
        self.open_section(step.section_name(), &step.policy.title);
        let mut nodes = Vec::new();
        let (result, attempts) = self.run_attempts(step, cancellation, is_cancelable, &mut nodes).await;
        let failure = result.err();
        self.job.log().end_lines();
        let timed_out = failure.as_ref().and_then(Failure::cause) == Some(TerminationCause::TimedOut);
        // The inner steps have already printed the warning.
        if timed_out && !step.has_inner_steps() {
            self.print(&style::warning(&format!(
                "{} could not run to completion because the timeout was exceeded. Raise the job's `timeout`{}.",
                step.name,
                timeout_setting(&step.name)
            )));
        }
        // The section of a delegating step ended before its steps started.
        if !matches!(step.call, Call::Delegate(_)) {
            self.close_section(step.section_name(), &step.policy.title);
        }
        (StepsResult { failure, nodes }, attempts)
    }

    async fn run_attempts(
        &self,
        step: &Step<J>,
        cancellation: &JobCancellation,
        is_cancelable: bool,
        nodes: &mut Vec<StepNode>,
    ) -> (Result<(), Failure>, u32) {
        // An operator's step after the job runs even if the job was stopped.
        let is_detached = step.policy.by_operator && step.policy.when == When::Finally;
        let stop = if is_detached { StopToken::new() } else { cancellation.stop.child() };
        // The steps of a group handle a cancel themselves, each by its role.
        let has_inner_steps = step.has_inner_steps();
        let cancel = if is_cancelable { cancellation.cancel.clone() } else { CancellationToken::new() };
        let inner = JobCancellation { cancel: cancel.clone(), stop: stop.clone() };
        // Only the creation of an environment is repeated, because the inner steps may be user code (invariant J2).
        let attempts = if matches!(step.call, Call::Delegate(_)) { 1 } else { step.policy.attempts };
        let mut attempts = Attempts::new(attempts, self.retry_backoff);
        let result = {
            let work = async {
                loop {
                    nodes.clear();
                    let Err(failure) = self.run_once(step, &inner, nodes).await else { return Ok(()) };
                    let announce = || self.print(&retry_warning(&step.name, &failure));
                    if !attempts.next(&stop, announce).await.map_err(Failure::Stopped)? {
                        return Err(failure);
                    }
                    if attempts.number == 2 {
                        self.clear(step, &stop).await?;
                    }
                }
            };
            // Pinned here, so that each of the futures around it does not copy it.
            let work = pin!(work);
            let work = self.run_within_disk_limit(step, &stop, work);
            let work = self.run_with_pauses(step, &stop, work);
            self.run_with_timeouts(step, (!has_inner_steps).then_some(&cancel), &stop, work).await
        };
        (result, attempts.number)
    }

    /// Clears what the first attempt left, in its own section (docs/spec/job-execution.md, section 1.4).
    async fn clear(&self, step: &Step<J>, stop: &StopToken) -> Result<(), Failure> {
        let (Call::Builtin(builtin) | Call::Replaced(builtin, _)) = &step.call else { return Ok(()) };
        let Some((name, title)) = builtin.clear_section() else { return Ok(()) };
        self.open_section(name, title);
        let cleared = builtin.clear(&self.job, stop).await;
        self.close_section(name, title);
        cleared
    }

    fn open_section(&self, name: &str, title: &str) {
        open_section(&*self.job.log(), self.has_section_markers, name, title);
    }

    pub(super) fn close_section(&self, name: &str, title: &str) {
        close_section(&*self.job.log(), self.has_section_markers, name, title);
    }

    /// Runs `work`, and stops it at the job's deadline, at the step's timeout, or at a cancel.
    async fn run_with_timeouts(
        &self,
        step: &Step<J>,
        cancel: Option<&CancellationToken>,
        stop: &StopToken,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let step_timeout = Duration::from_millis(step.policy.timeout_ms);
        let used = if step.role() == Role::Sources { self.job.sources_time() } else { Duration::ZERO };
        let remaining = step_timeout.saturating_sub(used);
        let step_deadline = if step_timeout.is_zero() { None } else { Instant::now().checked_add(remaining) };
        // A cleanup step also runs after the job's deadline.
        let job_deadline = self.deadline.filter(|_| step.policy.when != When::Finally);
        let debugger = self.job.debugger();
        let job_deadline =
            job_deadline.map(|deadline| debugger.map_or(deadline, |debugger| debugger.postponed(deadline)));
        let step_expires_first = match (step_deadline, job_deadline) {
            (Some(step), Some(job)) => step < job,
            (step, _) => step.is_some(),
        };
        let deadline = if step_expires_first { step_deadline } else { job_deadline };
        let canceled = async {
            match cancel {
                Some(cancel) => cancel.cancelled().await,
                None => std::future::pending().await,
            }
        };
        match run_until(stop, wait_until_postponed(debugger, deadline), canceled, work).await {
            (Err(Failure::Stopped(TerminationCause::TimedOut)), true) if step_expires_first => {
                Err(Failure::StepTimeout(step_timeout_message(step)))
            }
            (Err(Failure::Stopped(TerminationCause::TimedOut)), true) => {
                let timeout = go_duration(self.timeout);
                Err(Failure::JobTimeout(format!("execution took longer than {timeout} seconds")))
            }
            (result, _) => result,
        }
    }

    /// Runs one attempt of the step. Large futures are boxed, so that a simple step takes less memory.
    async fn run_once(
        &self,
        step: &Step<J>,
        cancellation: &JobCancellation,
        nodes: &mut Vec<StepNode>,
    ) -> Result<(), Failure> {
        let stop = &cancellation.stop;
        if let Call::Steps(steps) = &step.call {
            // Boxed, because this function is recursive.
            let result = Box::pin(self.run(steps, cancellation)).await;
            *nodes = result.nodes;
            return result.failure.map_or(Ok(()), Err);
        }
        if let Call::Delegate(delegation) = &step.call {
            return Box::pin(self.delegate(step, delegation, cancellation, nodes)).await;
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
        self.job.wait_until_user_code_may_run(stop).await?;
        let mut user_steps = UserSteps::new(&self.job, stop, step).map_err(|error| Failure::Step(error.to_string()))?;
        let is_by_operator = step.is_by_operator();
        user_steps.policy = self.job.step_policy().filter(|_| !is_by_operator);
        // The repository's lock file does not apply to steps of the operator.
        user_steps.obeys_lock_file = !is_by_operator;
        user_steps.recorded_calls = match self.job.records_calls() {
            false => RecordedCalls::None,
            true if is_by_operator => RecordedCalls::WithoutValues,
            true => RecordedCalls::Complete,
        };
        user_steps.retry_backoff = self.retry_backoff;
        user_steps.has_section_markers = self.has_section_markers;
        let result = match &step.call {
            Call::Run(list) => Box::pin(user_steps.run(&step.name, list, step.policy.by_operator, nodes)).await,
            Call::StepFile(file) => Box::pin(user_steps.run_file("", file, nodes)).await,
            Call::Replaced(builtin, replacement) => {
                let offer = builtin.offer(&self.job).ok_or_else(|| {
                    let name = &replacement.builtin;
                    Failure::Configuration(format!(
                        "`builtin://{name}` cannot be replaced; remove it from [[runners.steps.replace]]"
                    ))
                })?;
                if step.is_by_author() {
                    user_steps.set_environment(self.job.step_environment());
                }
                Box::pin(replaced_steps::run(&mut user_steps, &step.name, replacement, offer, nodes)).await
            }
            Call::Builtin(_) | Call::Delegate(_) | Call::Steps(_) => Ok(Map::new()),
        };
        user_steps.mask_nodes(nodes);
        if is_by_operator {
            // Also after a failure, because what the step started may show a value later.
            mask_sensitive_values(&*self.job, &user_steps);
        }
        if stop.cause().is_some() {
            // Processes that earlier steps have left must also end before after_script.
            self.job.processes().terminate(self.job.grace()).await;
        }
        let outputs = result.map_err(|error| {
            let failure = user_steps.failure(&error);
            match &step.call {
                // A failure of the script is the job's failure, even if the operator's step runs the script.
                Call::Replaced(_, Replacement { builtin, step: reference, .. }) if !step.is_by_author() => {
                    failure.in_replacement(builtin, reference)
                }
                _ => failure,
            }
        })?;
        if step.policy.by_operator { publish(&*self.job, &step.policy, &user_steps, &outputs) } else { Ok(()) }
    }
}

#[derive(Debug)]
pub(super) struct Attempts {
    max: u32,
    /// Number of the current attempt, from 1.
    pub(super) number: u32,
    delay: Duration,
    max_delay: Duration,
}

impl Attempts {
    /// `max` is the maximum number of attempts, and `backoff` has the first and the longest delay.
    pub(super) fn new(max: u32, (delay, max_delay): (Duration, Duration)) -> Self {
        Self { max: max.clamp(1, MAX_ATTEMPTS), number: 1, delay, max_delay }
    }

    /// Announces the next attempt and waits before it. Returns false after the last attempt, or if the step was
    /// stopped.
    ///
    /// # Errors
    /// The cause of a stop during the delay.
    pub(super) async fn next(&mut self, stop: &StopToken, announce: impl FnOnce()) -> Result<bool, TerminationCause> {
        if self.number >= self.max || stop.cause().is_some() {
            return Ok(false);
        }
        announce();
        tokio::select! {
            cause = stop.stopped() => return Err(cause),
            () = tokio::time::sleep(self.delay) => {}
        }
        self.delay = (self.delay * 2).min(self.max_delay);
        self.number += 1;
        Ok(true)
    }
}

pub(super) fn retry_warning(step: &str, failure: &dyn std::fmt::Display) -> String {
    style::warning(&format!("Retrying... {step} error={failure}"))
}

pub(super) async fn wait_until_postponed(debugger: Option<&Arc<Debugger>>, deadline: Option<Instant>) {
    match (debugger, deadline) {
        (Some(debugger), Some(deadline)) => debugger.wait_until(deadline).await,
        _ => wait_until(deadline).await,
    }
}

/// Runs `work`. Stops it as timed out when `expired` completes, and as canceled when `canceled` completes. Also returns
/// whether `expired` has completed.
pub(super) async fn run_until<T>(
    stop: &StopToken,
    expired: impl Future<Output = ()>,
    canceled: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> (T, bool) {
    let (mut work, mut canceled, mut expired) = (pin!(work), pin!(canceled), pin!(expired));
    let (mut has_expired, mut is_canceled) = (false, false);
    loop {
        tokio::select! {
            biased;
            result = &mut work => return (result, has_expired),
            () = &mut expired, if !has_expired => {
                has_expired = true;
                stop.stop(TerminationCause::TimedOut);
            }
            () = &mut canceled, if !is_canceled => {
                is_canceled = true;
                stop.stop(TerminationCause::CanceledByUser);
            }
        }
    }
}

/// Writes the start and title of a section to the log. A section without a title is omitted.
pub(super) fn open_section(log: &dyn Log, has_section_markers: bool, name: &str, title: &str) {
    if title.is_empty() {
        return;
    }
    if has_section_markers {
        log.write(Stream::Runner, style::section_start(name).as_bytes());
    }
    log.write(Stream::Runner, style::title(title).as_bytes());
}

pub(super) fn close_section(log: &dyn Log, has_section_markers: bool, name: &str, title: &str) {
    if has_section_markers && !title.is_empty() {
        log.write(Stream::Runner, style::section_end(name).as_bytes());
    }
}

fn step_timeout_message<J>(step: &Step<J>) -> String {
    let timeout = go_duration(Duration::from_millis(step.policy.timeout_ms));
    match step.role() {
        Role::Script => "script timeout: context deadline exceeded".to_owned(),
        Role::AfterScript => "after script timeout: context deadline exceeded".to_owned(),
        Role::Sources => format!("get sources timeout: exceeded timeout of {timeout}"),
        Role::Prepare | Role::Cleanup | Role::Other => {
            format!("{} timeout: exceeded timeout of {timeout}", step.name)
        }
    }
}
