//! From a slot to an agent that has the job (life-of-a-job R2, R3).
//!
//! A place that is lost before its agent was asked costs the job nothing: it gets another one, and the trace says so. From
//! the first `Run` on an agent may have started the user's script, whatever was heard of it: then only that agent is asked
//! again, and never another one (J2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_environment::{Directories, Environment, EnvironmentError, SlotKey};
use muster_job::{FailureReason, Secret};

use super::agent::{self, AgentError};
use super::interrupt::{Interruption, heard};
use super::{Actor, JobError, Next};
use crate::lower::{Certificates, LowerError, Placement, asking, lower, short_token};
use crate::settings::TlsFiles;
use crate::state::JobState;

/// Times that a place is tried in which no agent can be reached, before the job fails.
const PLACES_MAX: u32 = 3;
/// Places that may be lost under a job before it fails.
const MOVES_MAX: usize = 10;
/// How long a job that is to end waits for the answer to its `Run`.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// Between two tries to reach a place, at first and at most.
const REACH_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// What came of handing a job to an agent.
pub(super) enum Handed {
    /// An agent has it.
    Taken,
    /// It does not take it, or no plan can be made of the job.
    Refused { reason: FailureReason, exit_code: Option<i32>, message: String },
    /// No agent was reached. `asked`: one may have heard of the job all the same.
    NotReached { message: String, asked: bool },
    /// The place is gone for good.
    Lost { message: String, asked: bool },
}

impl Handed {
    fn refused(message: String) -> Self {
        Self::Refused { reason: FailureReason::RunnerSystemFailure, exit_code: None, message }
    }
}

impl From<LowerError> for Handed {
    fn from(error: LowerError) -> Self {
        Self::Refused { reason: error.reason, exit_code: error.exit_code, message: error.message }
    }
}

impl Actor {
    /// R2: waits for a slot. A cancel, or a coordinator that has no use for the job any more, ends the wait.
    pub(super) async fn lease(&mut self) -> Result<Next, JobError> {
        let runner = short_token(self.context.runner.token.expose());
        let key = SlotKey { runner, project_id: self.payload.job_info.project_id };
        let (context, asking) = (Arc::clone(&self.context), asking(&self.payload));
        let lease = tokio::select! {
            lease = context.provider.acquire(&key, &asking) => lease,
            why = heard(&mut self.uploader, &context.cancel, self.prepare_by) => return self.interrupted(why).await,
        };
        match lease {
            Ok(lease) => {
                let next = self.state.clone().lease(lease.record.clone())?;
                self.lease = Some(lease);
                self.no_lease = None;
                self.move_to(next).await
            }
            Err(error) => {
                self.watch.no_environment();
                let message = match error {
                    EnvironmentError::NotAcquired(message) => message,
                    error => format!("no environment can be had: {error}"),
                };
                self.end(FailureReason::RunnerSystemFailure, None, &message).await
            }
        }
    }

    /// R3: hands the job to the agent.
    pub(super) async fn start(&mut self) -> Result<Next, JobError> {
        let handed = match self.hand_over().await {
            Ok(handed) => handed,
            Err(why) => return self.interrupted(why).await,
        };
        // Another environment has another agent, which cannot know whether the first one started the job.
        let elsewhere = self.is_elsewhere();
        match handed {
            Handed::Taken => {
                let next = self.state.clone().start()?;
                self.watch.running();
                return self.move_to(next).await;
            }
            Handed::Refused { reason, exit_code, message } => return self.end(reason, exit_code, &message).await,
            Handed::NotReached { message, asked } | Handed::Lost { message, asked } if asked && elsewhere => {
                return self.system_failure(&message).await;
            }
            Handed::NotReached { message, asked } => {
                self.places_tried += 1;
                if self.places_tried >= PLACES_MAX {
                    return self.system_failure(&message).await;
                }
                if asked {
                    // The agent may have the job by now, in the directory of this slot: no other job must get it.
                    tracing::warn!(%message, tried = self.places_tried, "the agent does not answer, it is asked again");
                    return Ok(Next::State);
                }
                tracing::warn!(%message, tried = self.places_tried, "no agent reached, nothing started: another slot is tried");
                self.moved.extend(elsewhere.then(|| moved(&message)));
            }
            Handed::Lost { message, .. } => {
                if self.moved.len() >= MOVES_MAX {
                    return self.system_failure(&message).await;
                }
                tracing::warn!(%message, "the place is lost, nothing started: the job gets another one");
                self.moved.push(moved(&message));
            }
        }
        self.lowered = None;
        let next = self.state.clone().lose_lease()?;
        let moved = self.move_to(next).await;
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
        moved
    }

    /// Reaches the place and says `Run`, each for the time of grace, until an agent takes or refuses the job, unless the
    /// job is to end, or the place is lost, meanwhile.
    pub(super) async fn hand_over(&mut self) -> Result<Handed, Interruption> {
        let (Some(lease), Some(id)) = (&self.lease, self.run_id()) else {
            let why = self.no_lease.clone().unwrap_or_else(|| "the slot of the job is lost".to_owned());
            return Ok(Handed::refused(why));
        };
        let environment = Arc::clone(&lease.environment);
        // An agent that had the job once has prepared it.
        let by = self.prepare_by.filter(|_| matches!(self.state, JobState::Leased { .. }));
        let grace = self.context.agent_grace;
        if self.lowered.is_none() {
            let directories = tokio::select! {
                directories = tokio::time::timeout(grace, reach(environment.as_ref())) => directories,
                message = environment.lost() => return Ok(Handed::Lost { message, asked: false }),
                why = heard(&mut self.uploader, &self.context.cancel, by) => return Err(why),
            };
            let Ok(directories) = directories else {
                let message = format!("no agent was reached within {} s", grace.as_secs());
                return Ok(Handed::NotReached { message, asked: false });
            };
            if let Err(error) = self.lower(directories, environment.words()) {
                return Ok(error.into());
            }
        }
        let Some(lowered) = &self.lowered else { return Ok(Handed::refused("the job has no plan".to_owned())) };
        let asked = AtomicBool::new(false);
        let run = agent::run_until_taken(environment.as_ref(), &id, lowered, self.is_elsewhere(), &asked);
        let mut run = std::pin::pin!(tokio::time::timeout(grace, run));
        let answer = tokio::select! {
            answer = &mut run => answer,
            message = environment.lost() => {
                return Ok(Handed::Lost { message, asked: asked.load(Ordering::Relaxed) });
            }
            // An agent that is answering just now winds the job down better than anyone else.
            why = heard(&mut self.uploader, &self.context.cancel, by) => {
                tokio::time::timeout(ANSWER_LIMIT, run).await.map_err(|_| why)?
            }
        };
        let asked = asked.load(Ordering::Relaxed);
        Ok(match answer {
            Ok(Ok(())) => Handed::Taken,
            Ok(Err(AgentError::Refused(message))) => Handed::refused(message),
            Ok(Err(error)) => Handed::NotReached { message: error.to_string(), asked },
            Err(_) => Handed::NotReached { message: "the agent does not answer".to_owned(), asked },
        })
    }

    /// Whether the job's place is one of several, each with an agent of its own.
    fn is_elsewhere(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| !lease.record.claim.is_empty())
    }

    /// How long preparing the job may take: `prepare_timeout`, where it is not longer than the job's own limit.
    pub(super) fn prepare_limit(&self) -> Option<Duration> {
        let job = crate::lower::job_timeout(&self.payload);
        self.context.runner.prepare_timeout.filter(|limit| *limit <= job)
    }

    /// Lowers the payload; always to the same plan for the same slot.
    fn lower(&mut self, own: Directories, words: Vec<String>) -> Result<(), LowerError> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let runner = &self.context.runner;
        let placement = Placement {
            directories: own.with(runner.builds_dir.as_deref(), runner.cache_dir.as_deref()),
            slot: lease.record.slot.clone(),
            runner: Arc::clone(runner),
            host_name: self.context.host_name.clone(),
            way: self.moved.iter().cloned().chain(words).collect(),
            certificates: certificates(&runner.tls),
            share: lease.environment.share(),
        };
        let lowered = lower(&self.payload, &placement);
        self.watch.lowered(&lowered);
        let mut lowered = lowered?;
        // A job's own word for the trace that it belongs to stands.
        let own = self.watch.traceparent().filter(|own| lowered.variables.iter().all(|known| known.key != own.key));
        lowered.variables.extend(own);
        self.lowered = Some(lowered);
        Ok(())
    }
}

/// The one line of a job that is moved.
fn moved(message: &str) -> String {
    format!("{message}; nothing had been started, so the job was moved to another instance")
}

/// Where jobs find their files in the place, once it is reached; the caller bounds the time.
async fn reach(environment: &dyn Environment) -> Directories {
    let (mut wait, cap) = REACH_AGAIN;
    loop {
        match environment.directories().await {
            Ok(directories) => return directories,
            Err(error) => tracing::warn!(%error, "the place of the job is not reached, trying again"),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(cap);
    }
}

/// What the runner's keys lead to, read anew for each job, because certificates are replaced while a manager runs. A file
/// that cannot be read leaves the job without it: the calls that need it say more than this could.
fn certificates(files: &TlsFiles) -> Certificates {
    let read = |path: &Option<std::path::PathBuf>| {
        let path = path.as_ref()?;
        std::fs::read_to_string(path)
            .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "a certificate cannot be read"))
            .ok()
            .map(Secret::new)
    };
    Certificates { ca: read(&files.ca), certificate: read(&files.certificate), key: read(&files.key) }
}
