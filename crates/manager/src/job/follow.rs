//! Copies the agent's log to the coordinator until the job has a result, whatever breaks on the way.

use std::pin::pin;
use std::time::Duration;

use muster_agent_api::client::{AgentConnection, AgentError, Reach as _, Silence};
use muster_agent_api::result::JobResult;
use muster_agent_api::step_runner::FollowLogsResponse;
use tokio::time::{Instant, sleep_until};
use tonic::Streaming;

use super::beginning::Beginning;
use super::interrupt::{Interruption, heard};
use super::outage::Line;
use super::place::{Handed, unresponsive_timeout};
use super::progress::AgentProgress;
use super::uploader::Verdict;
use super::{Actor, JobError};

/// Past the job's own timeout, which the agent enforces: winding down, after_script, uploads.
pub(super) const WATCHDOG_SLACK: Duration = Duration::from_secs(30 * 60);
/// Between two tries to reach a lost agent, at first and at most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How following ended.
pub(super) enum Followed {
    /// The job has a result, and every byte of its log is acknowledged.
    Result(Box<JobResult>),
    /// The coordinator has no use for the job.
    Gone,
    /// The agent's place is lost for good, for this reason.
    Lost(String),
    /// The agent cannot bring the job to an end, for this reason.
    Unfit(String),
    /// The job is to end, and no agent answers that could end it.
    Interrupted(Interruption),
    /// The manager cannot go on with it.
    Failed(JobError),
}

/// What one connection to the agent came to.
enum Once {
    Done(Followed),
    /// The coordinator wants another part of the log.
    Again,
    /// There was none for too long.
    Silent,
}

/// Slows down what is repeated and brings nothing: a coordinator that wants the same again and again is not to be asked at
/// full speed.
pub(super) struct Pace {
    reached: u64,
    wait: Duration,
}

impl Pace {
    /// From this acknowledged length on.
    pub(super) fn new(reached: u64) -> Self {
        Self { reached, wait: RECONNECT.0 }
    }

    /// How long to wait where no more was ever acknowledged than before; each such wait is twice the one before.
    pub(super) fn pause(&mut self, acknowledged: u64) -> Duration {
        if acknowledged > self.reached {
            *self = Self::new(acknowledged);
            return Duration::ZERO;
        }
        let longer = (self.wait * 2).min(RECONNECT.1);
        std::mem::replace(&mut self.wait, longer)
    }
}

impl Actor {
    /// Follows the job to its end. Reconnects to a lost agent for the time of grace, or as long as its place may be silent.
    pub(super) async fn follow(&mut self) -> Followed {
        let limit = crate::lower::job_timeout(&self.payload) + WATCHDOG_SLACK;
        let watchdog = Instant::now() + limit;
        let mut silence = Silence::new(self.patience());
        let place = self.state.held().filter(|record| record.is_remote());
        let mut line = place.map(|record| self.context.answering.job_on(&record.environment));
        let mut pace = Pace::new(self.uploader.acknowledged());
        let mut last = None;
        loop {
            let error = match self.follow_once(&mut silence, line.as_mut(), watchdog).await {
                Ok(Once::Done(followed)) => return followed,
                Ok(Once::Silent) if line.as_mut().is_some_and(Line::has_more_time) => {
                    silence = Silence::new(self.patience());
                    continue;
                }
                Ok(Once::Silent) => return self.lost_in_silence(last.as_ref()),
                Ok(Once::Again) => {
                    let stopping = self.context.cancel.is_cancelled();
                    tokio::select! {
                        () = tokio::time::sleep(pace.pause(self.uploader.acknowledged())) => {}
                        () = self.context.cancel.cancelled(), if !stopping => {}
                    }
                    continue;
                }
                Err(AgentError::Refused(message)) => return Followed::Unfit(message),
                // A restarted agent waits for `Run` where the user's first command had not started (R3, J2).
                Err(AgentError::Unknown) => match self.hand_over().await {
                    Ok(Handed::Taken { .. }) => AgentError::Unknown,
                    Ok(Handed::Refused { message, .. }) => return Followed::Unfit(message),
                    Ok(Handed::Lost { message }) => return Followed::Lost(message),
                    Ok(Handed::StartApprovalUnsupported) => {
                        AgentError::Broken("the agent is of an earlier version".to_owned())
                    }
                    Ok(Handed::NotReached { message, .. }) => AgentError::Broken(message),
                    Err(why) => return Followed::Interrupted(why),
                },
                Err(error) => error,
            };
            if Instant::now() >= watchdog {
                return Followed::Unfit(format!("no result within {} s", limit.as_secs()));
            }
            tracing::warn!(%error, "the agent is out of reach, trying again");
            let pause = silence.next_pause();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = silence.exceeded() => {
                    if !line.as_mut().is_some_and(Line::has_more_time) {
                        return self.lost_in_silence(Some(&error));
                    }
                    silence = Silence::new(self.patience());
                }
                why = heard(&mut self.uploader, &self.context.cancel, None) => return Followed::Interrupted(why),
            }
            last = Some(error);
        }
    }

    /// How long the agent may be silent. After a start of the manager all instances are reached anew at the same time.
    fn patience(&self) -> Duration {
        let own = self.environment().and_then(|environment| unresponsive_timeout(environment.as_ref()));
        own.filter(|_| self.progress.is_dispatched()).unwrap_or(self.context.agent_grace)
    }

    fn lost_in_silence(&mut self, last: Option<&AgentError>) -> Followed {
        let message = self.silent(last);
        self.give_up_place(&message);
        Followed::Lost(message)
    }

    async fn follow_once(
        &mut self,
        silence: &mut Silence,
        mut line: Option<&mut Line>,
        watchdog: Instant,
    ) -> Result<Once, AgentError> {
        let (Some(environment), Some(id)) = (self.environment(), self.run_id()) else {
            let why = self.no_lease.clone().unwrap_or_else(|| "the slot of the job is lost".to_owned());
            return Ok(Once::Done(Followed::Lost(why)));
        };
        if let Err(error) = self.mend_log_start().await {
            return Ok(Once::Done(Followed::Failed(error)));
        }
        let offset = self.uploader.end() - self.state.log_start();
        let connecting = async {
            let connection = environment.reach().await?;
            let log = connection.follow(&id, offset).await?;
            Ok::<_, AgentError>((connection, log))
        };
        // Before the agent was reached a newer executable may be on its way to it, and one of this host may be starting.
        let may_be_cut = self.progress.is_dispatched() && environment.replaceable().is_some();
        let try_limit = silence.next_timeout();
        let (connection, log) = tokio::select! {
            connected = connecting => connected?,
            why = environment.lost() => return Ok(Once::Done(Followed::Lost(why))),
            () = silence.count(may_be_cut) => return Ok(Once::Silent),
            // What was sent while nobody was there is sent again less and less often by the system: a new try comes through.
            () = sleep_until(Instant::now() + try_limit), if may_be_cut => {
                return Err(AgentError::Broken(format!("no connection within {} ms", try_limit.as_millis())));
            }
        };
        self.progress.reach(AgentProgress::Dispatched);
        if let Some(line) = &mut line {
            line.set(true);
        }
        let followed = tokio::select! {
            followed = self.follow_on(&connection, log, &id, watchdog) => followed,
            // What was on its way to the coordinator is told apart by its length.
            why = environment.lost() => return Ok(Once::Done(Followed::Lost(why))),
        };
        connection.mark_suspect_if_broken(&followed);
        // The agent's silence is none while the connection stands: pings watch it.
        *silence = Silence::new(self.patience());
        if let Some(line) = line {
            line.set(false);
        }
        followed
    }

    /// A trace that is shorter than what was there before this attempt has lost what was before: the log begins at its end.
    async fn mend_log_start(&mut self) -> Result<(), JobError> {
        if self.uploader.end() < self.state.log_start() {
            let next = self.state.clone().with_log_start(self.uploader.end())?;
            self.move_to(next).await?;
        }
        Ok(())
    }

    /// One connection. Cancel-safe in its select: `message` of a stream is, and uploads are awaited in the branch.
    async fn follow_on(
        &mut self,
        connection: &AgentConnection,
        mut log: Streaming<FollowLogsResponse>,
        id: &str,
        watchdog: Instant,
    ) -> Result<Once, AgentError> {
        // An agent that asks before the user's first command is answered once that is stored.
        let asks = self.is_elsewhere() && connection.identity().supports_start_approval;
        let mut beginning = Beginning::new(asks, connection.wait_for_start_approval(id), connection.approve_start(id));
        let stop = self.context.cancel.clone();
        let mut canceled = false;
        // Asked for at once: it then comes together with the end of the log.
        let mut result = pin!(connection.wait(id));
        let mut early: Option<Result<JobResult, AgentError>> = None;
        let mut given_back = false;
        loop {
            tokio::select! {
                chunk = log.message(), if self.uploader.has_room() => match chunk? {
                    Some(chunk) => self.uploader.push(&chunk.data),
                    None => break,
                },
                begun = beginning.go_on(&mut self.state, &self.context, &self.run), if !beginning.is_over() => {
                    if let Err(error) = begun? {
                        return Ok(Once::Done(Followed::Failed(error)));
                    }
                }
                () = sleep_until(self.uploader.due()) => {
                    let mut sending = pin!(self.uploader.send());
                    // A call may hang for a minute; neither a stop nor the first command must wait for it.
                    let verdict = loop {
                        tokio::select! {
                            verdict = &mut sending => break verdict,
                            begun = beginning.go_on(&mut self.state, &self.context, &self.run),
                                if !beginning.is_over() =>
                            {
                                if let Err(error) = begun? {
                                    return Ok(Once::Done(Followed::Failed(error)));
                                }
                            }
                            () = stop.cancelled(), if !canceled => cancel_once(&mut canceled, connection, id).await?,
                        }
                    };
                    match verdict {
                        Verdict::GoOn => {}
                        Verdict::FollowAgain => return Ok(Once::Again),
                        Verdict::Cancel => cancel_once(&mut canceled, connection, id).await?,
                        Verdict::Gone => return Ok(Once::Done(Followed::Gone)),
                    }
                }
                answer = &mut result, if early.is_none() => early = Some(answer),
                () = stop.cancelled(), if !canceled => cancel_once(&mut canceled, connection, id).await?,
                () = sleep_until(watchdog) => {
                    let message = "the job did not end by its timeout, and the agent did not end it".to_owned();
                    return Ok(Once::Done(Followed::Unfit(message)));
                }
            }
            // The log waits for the coordinator, and the job has ended: its slot is another one's.
            if let (Some(Ok(result)), true, false) = (&early, self.uploader.must_repeat(), given_back) {
                given_back = true;
                self.ended(result);
                self.give_back().await;
            }
            if self.uploader.is_trace_refused()
                && let Some(Ok(result)) = early.take_if(|early| early.is_ok())
            {
                return Ok(Once::Done(Followed::Result(Box::new(result))));
            }
        }
        let result = match early {
            None => result.await?,
            Some(Ok(result)) => result,
            Some(Err(_)) => connection.wait(id).await?,
        };
        self.progress.reach(AgentProgress::Executed);
        self.uploader.ending();
        if self.uploader.must_repeat() {
            self.ended(&result);
            self.give_back().await;
        }
        Ok(match self.drain().await {
            Verdict::Gone => Once::Done(Followed::Gone),
            _ if self.uploader.is_trace_refused() => Once::Done(Followed::Result(Box::new(result))),
            Verdict::FollowAgain => Once::Again,
            _ if self.uploader.end() < self.state.log_start().saturating_add(result.log_bytes) => Once::Again,
            _ => Once::Done(Followed::Result(Box::new(result))),
        })
    }

    /// Sends what is held, at once: nothing follows for now.
    pub(super) async fn drain(&mut self) -> Verdict {
        let mut pace = Pace::new(self.uploader.acknowledged());
        while !self.uploader.is_empty() {
            self.uploader.pause().await;
            match self.uploader.send().await {
                // The job has ended: there is nothing left to wind down.
                Verdict::GoOn | Verdict::Cancel if self.uploader.is_trace_refused() => break,
                Verdict::GoOn | Verdict::Cancel if self.uploader.must_repeat() => self.give_back().await,
                Verdict::GoOn | Verdict::Cancel => {
                    let wait = pace.pause(self.uploader.acknowledged());
                    if !wait.is_zero() {
                        self.give_back().await;
                        tokio::time::sleep(wait).await;
                    }
                }
                verdict => return verdict,
            }
        }
        Verdict::GoOn
    }
}

async fn cancel_once(canceled: &mut bool, connection: &AgentConnection, id: &str) -> Result<(), AgentError> {
    if !*canceled {
        tracing::info!("the job is canceled");
        connection.cancel(id).await?;
        *canceled = true;
    }
    Ok(())
}
