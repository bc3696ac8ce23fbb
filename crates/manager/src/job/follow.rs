//! Copies the agent's log to the coordinator until the job has a result.

use std::pin::pin;
use std::time::Duration;

use muster_agent_api::client::{AgentConnection, AgentError, Reach as _, Silence};
use muster_agent_api::result::{JobResult, MAX_RESULT_BYTES};
use muster_agent_api::step_runner::FollowLogsResponse;
use tokio::time::{Instant, sleep_until};
use tonic::Streaming;

use super::JobError;
use super::actor::JobActor;
use super::backoff::NoProgressBackoff;
use super::dispatch::DispatchOutcome;
use super::environment::unresponsive_timeout;
use super::interrupt::{Interruption, watch_for_interruption};
use super::outage::ConnectionHealth;
use super::progress::AgentProgress;
use super::start_approval::StartApproval;
use super::uploader::UploadOutcome;

/// Time that the agent has for `after_script` and uploads after the job's timeout.
pub(super) const WATCHDOG_SLACK: Duration = Duration::from_secs(30 * 60);

pub(super) enum FollowOutcome {
    /// The coordinator has the whole log, or refuses the rest.
    Result(Box<JobResult>),
    /// The coordinator no longer expects the job.
    JobGone,
    Lost(String),
    /// The agent cannot finish the job, for this reason.
    AgentRefused(String),
    /// No agent is reachable that could end the job.
    Interrupted(Interruption),
    Failed(JobError),
}

enum ConnectionOutcome {
    Done(FollowOutcome),
    /// The coordinator needs another part of the log.
    Resync,
    Unresponsive,
}

impl JobActor {
    /// Reconnects until [`Self::unresponsive_timeout`] has passed, or longer if other instances have jobs, too, and no
    /// instance is reachable.
    pub(super) async fn follow(&mut self) -> FollowOutcome {
        let timeout = crate::lower::job_timeout(&self.payload) + WATCHDOG_SLACK;
        let watchdog = Instant::now() + timeout;
        let mut silence = Silence::new(self.unresponsive_timeout());
        let record = self.row.state().held_lease().filter(|record| record.is_remote());
        let mut health = record.map(|record| self.runner.reachability.track_job(&record.unique_id()));
        let mut backoff = NoProgressBackoff::new(self.uploader.acknowledged());
        let mut last_error = None;
        loop {
            let error = match self.follow_once(&mut silence, health.as_mut(), watchdog).await {
                Ok(ConnectionOutcome::Done(outcome)) => return outcome,
                Ok(ConnectionOutcome::Unresponsive)
                    if health.as_mut().is_some_and(ConnectionHealth::extend_deadline) =>
                {
                    silence = Silence::new(self.unresponsive_timeout());
                    continue;
                }
                Ok(ConnectionOutcome::Unresponsive) => return self.lost_as_unresponsive(last_error.as_ref()),
                Ok(ConnectionOutcome::Resync) => {
                    let is_stopping = self.runner.cancel.is_cancelled();
                    tokio::select! {
                        () = tokio::time::sleep(backoff.pause(self.uploader.acknowledged())) => {}
                        () = self.runner.cancel.cancelled(), if !is_stopping => {}
                    }
                    continue;
                }
                Err(AgentError::Refused(message)) => return FollowOutcome::AgentRefused(message),
                Err(error @ AgentError::InvalidResult(_)) => return FollowOutcome::AgentRefused(error.to_string()),
                // A canceled job must not be started again.
                Err(AgentError::Unknown) if self.uploader.is_canceled() => {
                    return FollowOutcome::Interrupted(Interruption::Canceled);
                }
                // An agent that restarted before the user's first command continues only after another `Run` (R3, J2).
                Err(AgentError::Unknown) => match self.dispatch().await {
                    Ok(DispatchOutcome::Accepted { .. }) => AgentError::Unknown,
                    Ok(DispatchOutcome::Refused { message, .. }) => return FollowOutcome::AgentRefused(message),
                    Ok(DispatchOutcome::Lost { message }) => return FollowOutcome::Lost(message),
                    Ok(DispatchOutcome::NoStartApproval) => {
                        AgentError::Broken("the agent is outdated: it does not support start approval".to_owned())
                    }
                    Ok(DispatchOutcome::NotReached { message, .. }) => AgentError::Broken(message),
                    Err(interruption) => return FollowOutcome::Interrupted(interruption),
                },
                Err(error) => error,
            };
            if Instant::now() >= watchdog {
                return FollowOutcome::AgentRefused(format!("the job had no result after {} s", timeout.as_secs()));
            }
            tracing::warn!(%error, "failed to reach the agent, retrying");
            let pause = silence.next_pause();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = silence.exceeded() => {
                    if !health.as_mut().is_some_and(ConnectionHealth::extend_deadline) {
                        return self.lost_as_unresponsive(Some(&error));
                    }
                    silence = Silence::new(self.unresponsive_timeout());
                }
                interruption = watch_for_interruption(&mut self.uploader, &self.runner.cancel, None) => {
                    return FollowOutcome::Interrupted(interruption);
                }
            }
            last_error = Some(error);
        }
    }

    /// Returns how long the agent may stay unresponsive.
    ///
    /// The environment's own timeout applies only after an agent has accepted the job. Earlier, it may be too
    /// short, because a restarted manager connects to all instances at once.
    fn unresponsive_timeout(&self) -> Duration {
        let own = self.environment.current().and_then(|environment| unresponsive_timeout(environment.as_ref()));
        own.filter(|_| self.progress.is_dispatched()).unwrap_or(self.runner.agent_reconnect_timeout)
    }

    fn lost_as_unresponsive(&mut self, error: Option<&AgentError>) -> FollowOutcome {
        let message = self.unresponsive_message(error);
        self.environment.retire(&message, self.is_remote());
        FollowOutcome::Lost(message)
    }

    async fn follow_once(
        &mut self,
        silence: &mut Silence,
        mut health: Option<&mut ConnectionHealth>,
        watchdog: Instant,
    ) -> Result<ConnectionOutcome, AgentError> {
        let (Some(environment), Some(id)) = (self.environment.current(), self.row.agent_run_id()) else {
            return Ok(ConnectionOutcome::Done(FollowOutcome::Lost(self.environment.missing_reason())));
        };
        if let Err(error) = self.fix_log_offset() {
            return Ok(ConnectionOutcome::Done(FollowOutcome::Failed(error)));
        }
        let offset = self.uploader.end() - self.row.state().trace_offset();
        let connecting = async {
            let connection = environment.reach().await?;
            let log = connection.follow(&id, offset).await?;
            Ok::<_, AgentError>((connection, log))
        };
        // At first, the agent may still be starting, or being copied to the instance.
        let has_timeout = self.progress.is_dispatched() && environment.replaceable().is_some();
        let attempt_timeout = silence.next_timeout();
        let (connection, log) = tokio::select! {
            connected = connecting => connected?,
            reason = environment.lost() => return Ok(ConnectionOutcome::Done(FollowOutcome::Lost(reason))),
            () = silence.count(has_timeout) => return Ok(ConnectionOutcome::Unresponsive),
            // TCP resends at growing intervals, so a new attempt gets through earlier.
            () = sleep_until(Instant::now() + attempt_timeout), if has_timeout => {
                let limit_ms = muster_job::milliseconds(attempt_timeout);
                return Err(AgentError::Broken(format!("no connection within {limit_ms} ms")));
            }
        };
        self.progress.reach(AgentProgress::Dispatched);
        if let Some(health) = &mut health {
            health.set_connected(true);
        }
        let followed = tokio::select! {
            followed = self.follow_connection(&connection, log, &id, watchdog) => followed,
            // May drop an upload. The length that the coordinator acknowledges next shows which bytes have arrived.
            reason = environment.lost() => return Ok(ConnectionOutcome::Done(FollowOutcome::Lost(reason))),
        };
        connection.mark_suspect_if_broken(&followed);
        // The time of the open connection does not count as silence, because pings watched the connection.
        *silence = Silence::new(self.unresponsive_timeout());
        if let Some(health) = health {
            health.set_connected(false);
        }
        followed
    }

    /// Corrects the offset at which the agent's log begins in the trace.
    ///
    /// If the coordinator has lost bytes of the trace that precede the log, the log begins at a smaller offset.
    fn fix_log_offset(&mut self) -> Result<(), JobError> {
        let end = self.uploader.end();
        if end < self.row.state().trace_offset() {
            self.transition(|state| state.with_trace_offset(end))?;
        }
        Ok(())
    }

    /// Follows the job over one connection.
    ///
    /// The `select!` is cancel-safe, because uploads are awaited inside their branch.
    async fn follow_connection(
        &mut self,
        connection: &AgentConnection,
        mut log: Streaming<FollowLogsResponse>,
        id: &str,
        watchdog: Instant,
    ) -> Result<ConnectionOutcome, AgentError> {
        let needs_approval = self.is_remote() && connection.identity().supports_start_approval;
        let mut approval =
            StartApproval::new(needs_approval, connection.wait_for_start_approval(id), connection.approve_start(id));
        let stop = self.runner.cancel.clone();
        let mut canceled = false;
        // An earlier connection may have broken before the agent was told of the cancellation.
        if self.uploader.is_canceled() {
            cancel_once(&mut canceled, connection, id).await?;
        }
        // Requested early, so that the result arrives with the end of the log.
        let mut result = pin!(connection.wait(id, MAX_RESULT_BYTES));
        let mut early_result: Option<Result<JobResult, AgentError>> = None;
        let mut has_tried_release = false;
        loop {
            tokio::select! {
                chunk = log.message(), if self.uploader.has_capacity() => match chunk? {
                    Some(chunk) => self.uploader.push(&chunk.data),
                    None => break,
                },
                approved = approval.advance(&mut self.row), if !approval.is_done() => {
                    if let Err(error) = approved? {
                        return Ok(ConnectionOutcome::Done(FollowOutcome::Failed(error)));
                    }
                }
                () = sleep_until(self.uploader.due()) => {
                    let mut sending = pin!(self.uploader.send());
                    // A call may take a minute, and neither a stop nor the start approval may wait for it.
                    let outcome = loop {
                        tokio::select! {
                            outcome = &mut sending => break outcome,
                            approved = approval.advance(&mut self.row), if !approval.is_done() => {
                                if let Err(error) = approved? {
                                    return Ok(ConnectionOutcome::Done(FollowOutcome::Failed(error)));
                                }
                            }
                            () = stop.cancelled(), if !canceled => cancel_once(&mut canceled, connection, id).await?,
                        }
                    };
                    match outcome {
                        UploadOutcome::Continue => {}
                        UploadOutcome::Resync => return Ok(ConnectionOutcome::Resync),
                        UploadOutcome::Cancel => cancel_once(&mut canceled, connection, id).await?,
                        UploadOutcome::JobGone => return Ok(ConnectionOutcome::Done(FollowOutcome::JobGone)),
                    }
                }
                answer = &mut result, if early_result.is_none() => early_result = Some(answer),
                () = stop.cancelled(), if !canceled => cancel_once(&mut canceled, connection, id).await?,
                () = sleep_until(watchdog) => {
                    let message = "the job exceeded its timeout, and its agent did not end it".to_owned();
                    return Ok(ConnectionOutcome::Done(FollowOutcome::AgentRefused(message)));
                }
            }
            // The job has ended and only waits for the coordinator, so another job can have the slot.
            if let (Some(Ok(result)), true, false) = (&early_result, self.uploader.must_repeat(), has_tried_release) {
                has_tried_release = true;
                self.record_result(result);
                self.release_slot();
            }
            if self.uploader.is_trace_refused()
                && let Some(Ok(result)) = early_result.take_if(|early_result| early_result.is_ok())
            {
                return Ok(ConnectionOutcome::Done(FollowOutcome::Result(Box::new(result))));
            }
        }
        let result = match early_result {
            None => result.await?,
            Some(Ok(result)) => result,
            Some(Err(_)) => connection.wait(id, MAX_RESULT_BYTES).await?,
        };
        self.progress.reach(AgentProgress::Executed);
        self.uploader.set_ended();
        if self.uploader.must_repeat() {
            self.record_result(&result);
            self.release_slot();
        }
        let log_end = self.row.state().trace_offset().saturating_add(result.log_bytes);
        Ok(match self.drain().await {
            UploadOutcome::JobGone => ConnectionOutcome::Done(FollowOutcome::JobGone),
            _ if self.uploader.is_trace_refused() => ConnectionOutcome::Done(FollowOutcome::Result(Box::new(result))),
            UploadOutcome::Resync => ConnectionOutcome::Resync,
            _ if self.uploader.end() < log_end => ConnectionOutcome::Resync,
            _ => ConnectionOutcome::Done(FollowOutcome::Result(Box::new(result))),
        })
    }

    pub(super) async fn drain(&mut self) -> UploadOutcome {
        let mut backoff = NoProgressBackoff::new(self.uploader.acknowledged());
        while !self.uploader.is_empty() {
            self.uploader.pause().await;
            // `Cancel` is handled like `Continue`, because the job has ended.
            match self.uploader.send().await {
                UploadOutcome::Continue | UploadOutcome::Cancel if self.uploader.is_trace_refused() => break,
                UploadOutcome::Continue | UploadOutcome::Cancel if self.uploader.must_repeat() => self.release_slot(),
                UploadOutcome::Continue | UploadOutcome::Cancel => {
                    let wait = backoff.pause(self.uploader.acknowledged());
                    if !wait.is_zero() {
                        self.release_slot();
                        tokio::time::sleep(wait).await;
                    }
                }
                outcome => return outcome,
            }
        }
        UploadOutcome::Continue
    }
}

async fn cancel_once(canceled: &mut bool, connection: &AgentConnection, id: &str) -> Result<(), AgentError> {
    if !*canceled {
        tracing::info!("job canceled");
        connection.cancel(id).await?;
        *canceled = true;
    }
    Ok(())
}
