//! Runs one phase: section, title, tries, limits.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_api::builtin::{Builtin, JobPlan, Phase};
use muster_agent_api::result::StepNode;
use muster_job::{EndCause, go_duration};
use muster_steps::stop::Stop;
use tokio::time::sleep_until;

use super::{Brakes, is_after_script, is_user_script};
use crate::context::Context;
use crate::failure::Failure;
use crate::trace::style;
use crate::{artifacts, author_steps, cache, checkout, script};

/// Between two tries of a phase, at first and at most, where the plan does not say (job-execution 1.4).
const RETRY_WAIT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// The stage between the first and the second try of a checkout.
const CLEAR_WORKTREE: &str = "clear_worktree";
const CLEAR_WORKTREE_TITLE: &str = "Deleting all tracked and untracked files due to source fetch failure";
/// More tries than this are a mistake (job-execution 1.4).
const MAX_ATTEMPTS: u32 = 10;

/// Runs phases of one job.
pub(super) struct Runner<'a> {
    pub(super) context: Arc<Context>,
    pub(super) plan: &'a JobPlan,
    pub(super) brakes: &'a Brakes,
    /// The job's.
    pub(super) deadline: Option<Instant>,
}

/// What became of a phase.
pub(super) struct Done {
    pub(super) result: Result<(), Failure>,
    /// The author's own steps, for a phase that has such.
    pub(super) steps: Vec<StepNode>,
}

impl Runner<'_> {
    pub(super) async fn run(&self, phase: &Phase, cancel_reaches: bool) -> Done {
        self.open_section(&phase.name, &phase.title);
        let mut steps = Vec::new();
        let result = self.tries(phase, cancel_reaches, &mut steps).await;
        self.context.trace.end_lines();
        if let Err(Failure::Stopped(EndCause::TimedOut) | Failure::PhaseTimeout(_)) = &result {
            self.context.say(&style::warning(&format!(
                "{} could not run to completion because the timeout was exceeded. \
                 Raise the job's `timeout`, or RUNNER_SCRIPT_TIMEOUT and RUNNER_AFTER_SCRIPT_TIMEOUT.",
                phase.name
            )));
        }
        self.close_section(&phase.name);
        Done { result: result.map_err(|failure| self.name_timeout(failure)), steps }
    }

    /// The job's own limit has its own words.
    fn name_timeout(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Stopped(EndCause::TimedOut) if self.plan.timeout_ms > 0 => {
                let limit = go_duration(Duration::from_millis(self.plan.timeout_ms));
                Failure::JobTimeout(format!("execution took longer than {limit} seconds"))
            }
            other => other,
        }
    }

    async fn tries(&self, phase: &Phase, cancel_reaches: bool, steps: &mut Vec<StepNode>) -> Result<(), Failure> {
        let own_limit = (phase.timeout_ms > 0).then(|| Instant::now() + Duration::from_millis(phase.timeout_ms));
        let stop = self.brakes.stop.child();
        let attempts = phase.attempts.clamp(1, MAX_ATTEMPTS);
        let (mut pause, pause_max) = match self.plan.retry_wait_ms {
            (0, _) => RETRY_WAIT,
            (first, most) => (Duration::from_millis(first), Duration::from_millis(most)),
        };
        let work = async {
            let mut attempt = 1;
            loop {
                let failure = match self.once(phase, &stop, steps).await {
                    Ok(()) => return Ok(()),
                    Err(failure) if attempt >= attempts || stop.cause().is_some() => return Err(failure),
                    Err(failure) => failure,
                };
                self.context.say(&style::warning(&format!("Retrying... {} error={failure}", phase.name)));
                tokio::select! {
                    cause = stop.stopped() => return Err(Failure::Stopped(cause)),
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(pause_max);
                attempt += 1;
                if attempt == 2 {
                    self.clear_worktree(phase, &stop).await?;
                }
            }
        };
        self.within_limits(phase, own_limit, cancel_reaches, &stop, work).await
    }

    /// What a failed checkout left is removed before the next try, in a section of its own (job-execution 1.4).
    async fn clear_worktree(&self, phase: &Phase, stop: &Stop) -> Result<(), Failure> {
        if !matches!(&phase.run, Builtin::Checkout(checkout) if checkout::has_repository(checkout)) {
            return Ok(());
        }
        self.open_section(CLEAR_WORKTREE, CLEAR_WORKTREE_TITLE);
        let cleared = checkout::clear_worktree(&self.context, stop).await;
        self.close_section(CLEAR_WORKTREE);
        cleared
    }

    fn open_section(&self, name: &str, title: &str) {
        if self.plan.trace_sections {
            self.context.say(&style::section_start(name));
        }
        self.context.say(&style::title(title));
    }

    fn close_section(&self, name: &str) {
        if self.plan.trace_sections {
            self.context.say(&style::section_end(name));
        }
    }

    /// Ends the work at the job's deadline, at the phase's own, or by a cancel. The work decides how long its end takes: processes have
    /// the grace time, and what blocks a thread has what [`crate::blocking`] gives it.
    async fn within_limits(
        &self,
        phase: &Phase,
        own_limit: Option<Instant>,
        cancel_reaches: bool,
        stop: &Stop,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        // Cleaning up has a limit of its own only: it comes after the job's deadline, too.
        let is_cleaning = phase.when == muster_agent_api::builtin::PhaseWhen::Finally;
        let deadline = self.deadline.filter(|_| !is_cleaning);
        let own_is_first = match (own_limit, deadline) {
            (Some(own), Some(job)) => own < job,
            (own, _) => own.is_some(),
        };
        let limit = if own_is_first { own_limit } else { deadline };
        let mut work = pin!(work);
        let mut timed_out = false;
        let mut canceled = false;
        loop {
            tokio::select! {
                biased;
                result = &mut work => {
                    return match result {
                        Err(Failure::Stopped(EndCause::TimedOut)) if timed_out && own_is_first => {
                            Err(Failure::PhaseTimeout(phase_timeout(phase)))
                        }
                        other => other,
                    };
                }
                () = reached(limit), if !timed_out => {
                    timed_out = true;
                    stop.stop(EndCause::TimedOut);
                }
                () = self.brakes.cancel.cancelled(), if cancel_reaches && !canceled => {
                    canceled = true;
                    stop.stop(EndCause::CanceledByUser);
                }
            }
        }
    }

    async fn once(&self, phase: &Phase, stop: &Stop, steps: &mut Vec<StepNode>) -> Result<(), Failure> {
        let context = &self.context;
        if let (Some(cause), false) = (stop.cause(), matches!(phase.run, Builtin::Cleanup(_))) {
            return Err(Failure::Stopped(cause));
        }
        if !matches!(phase.run, Builtin::Prepare(_) | Builtin::Cleanup(_)) {
            context.begin_phase(stop).await?;
        }
        match &phase.run {
            Builtin::Script(script) => script::run(context, script, stop).await,
            Builtin::Checkout(checkout) => checkout::run(context, checkout, stop).await,
            Builtin::Prepare(prepare) => {
                let lines = prepare.lines.iter().map(|line| style::plain(line));
                let echoed = prepare.echoed.iter().map(|line| format!("{line}\n"));
                context.say(&lines.chain(echoed).collect::<String>());
                Ok(())
            }
            Builtin::Cleanup(cleanup) => {
                checkout::clean_up(context, cleanup, stop).await?;
                context.clear_files(stop).await
            }
            Builtin::CacheRestore(all) => {
                for cache in &all.caches {
                    cache::restore(context, cache, stop).await?;
                }
                Ok(())
            }
            Builtin::CacheSave(all) => {
                for cache in &all.caches {
                    cache::save(context, cache, stop).await?;
                }
                Ok(())
            }
            Builtin::ArtifactsDownload(download) => artifacts::download(context, download, stop).await,
            Builtin::ArtifactsUpload(all) => {
                for upload in &all.artifacts {
                    artifacts::upload(context, upload, stop).await?;
                }
                Ok(())
            }
            Builtin::Steps { steps: list } => {
                steps.clear();
                author_steps::run(context, list, stop, steps).await
            }
        }
    }
}

pub(super) async fn reached(limit: Option<Instant>) {
    match limit {
        Some(limit) => sleep_until(limit.into()).await,
        None => std::future::pending().await,
    }
}

fn phase_timeout(phase: &Phase) -> String {
    let limit = go_duration(Duration::from_millis(phase.timeout_ms));
    match &phase.run {
        run if is_user_script(run) => "script timeout: context deadline exceeded".to_owned(),
        run if is_after_script(run) => "after script timeout: context deadline exceeded".to_owned(),
        Builtin::Checkout(_) => format!("get sources timeout: exceeded timeout of {limit}"),
        _ => format!("{} timeout: exceeded timeout of {limit}", phase.name),
    }
}
