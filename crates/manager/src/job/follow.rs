//! Copies the agent's log to the coordinator until the job has a result, whatever breaks on the way.

use std::pin::pin;
use std::time::Duration;

use muster_agent_api::result::JobResult;
use muster_environment::AgentConnection;
use tokio::time::{Instant, sleep_until};

use super::Actor;
use super::agent::{self, AgentError};
use super::interrupt::{Interruption, heard};
use super::place::Handed;
use super::uploader::Verdict;

/// Past the job's own timeout, which the agent enforces: winding down, after_script, uploads.
const WATCHDOG_SLACK: Duration = Duration::from_secs(30 * 60);
/// Between two tries to reach a lost agent, at first and at most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How following ended.
pub(super) enum Followed {
    /// The job has a result, and every byte of its log is acknowledged.
    Result(Box<JobResult>),
    /// The coordinator has no use for the job.
    Gone,
    /// The agent is lost for good, for this reason.
    Lost(String),
    /// The job is to end, and no agent answers that could end it.
    Interrupted(Interruption),
}

/// What one connection to the agent came to.
enum Once {
    Done(Followed),
    /// The coordinator wants another part of the log.
    Again,
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
    /// Follows the job to its end. Reconnects to a lost agent for the time of grace, counted from the last sign of it.
    pub(super) async fn follow(&mut self) -> Followed {
        let limit = crate::lower::job_timeout(&self.payload) + WATCHDOG_SLACK;
        let watchdog = Instant::now() + limit;
        let mut seen = Instant::now();
        let mut wait = RECONNECT.0;
        let mut pace = Pace::new(self.uploader.acknowledged());
        loop {
            let error = match self.follow_once(&mut seen, watchdog).await {
                Ok(Once::Done(followed)) => return followed,
                Ok(Once::Again) => {
                    let stopping = self.context.cancel.is_cancelled();
                    tokio::select! {
                        () = tokio::time::sleep(pace.pause(self.uploader.acknowledged())) => {}
                        () = self.context.cancel.cancelled(), if !stopping => {}
                    }
                    continue;
                }
                Err(AgentError::Refused(message)) => return Followed::Lost(message),
                // A restarted agent waits for `Run` where the user's first command had not started (R3, J2).
                Err(AgentError::Unknown) => match self.hand_over().await {
                    Ok(Handed::Taken) => AgentError::Unknown,
                    Ok(Handed::Refused { message, .. } | Handed::Lost { message, .. }) => {
                        return Followed::Lost(message);
                    }
                    Ok(Handed::NotReached { message, .. }) => AgentError::Broken(message),
                    Err(why) => return Followed::Interrupted(why),
                },
                Err(error) => error,
            };
            if Instant::now() >= watchdog {
                return Followed::Lost(format!("no result within {} s", limit.as_secs()));
            }
            if seen.elapsed() >= self.context.agent_grace {
                return Followed::Lost(format!("the job's environment was lost: {error}"));
            }
            tracing::warn!(%error, "the agent is out of reach, trying again");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                why = heard(&mut self.uploader, &self.context.cancel, None) => return Followed::Interrupted(why),
            }
            wait = (wait * 2).min(RECONNECT.1);
        }
    }

    async fn follow_once(&mut self, seen: &mut Instant, watchdog: Instant) -> Result<Once, AgentError> {
        let (Some(environment), Some(id)) = (self.environment(), self.run_id()) else {
            let why = self.no_lease.clone().unwrap_or_else(|| "the slot of the job is lost".to_owned());
            return Err(AgentError::Refused(why));
        };
        let on_connection = async {
            let connection = environment.connect().await?;
            let followed = self.follow_on(&connection, &id, seen, watchdog).await;
            agent::doubt_if_broken(&connection, &followed);
            followed
        };
        tokio::select! {
            followed = on_connection => followed,
            // What was on its way to the coordinator is told apart by its length.
            why = environment.lost() => Ok(Once::Done(Followed::Lost(why))),
        }
    }

    /// One connection. Cancel-safe in its select: `message` of a stream is, and uploads are awaited in the branch.
    async fn follow_on(
        &mut self,
        connection: &AgentConnection,
        id: &str,
        seen: &mut Instant,
        watchdog: Instant,
    ) -> Result<Once, AgentError> {
        let mut log = agent::follow(connection, id, self.uploader.end()).await?;
        *seen = Instant::now();
        let stop = self.context.cancel.clone();
        let mut canceled = false;
        // Asked for at once: it then comes together with the end of the log.
        let mut result = pin!(agent::wait(connection, id));
        let mut early: Option<Result<JobResult, AgentError>> = None;
        let mut given_back = false;
        loop {
            tokio::select! {
                chunk = log.message(), if self.uploader.has_room() => match chunk? {
                    Some(chunk) => {
                        *seen = Instant::now();
                        self.uploader.push(&chunk.data);
                    }
                    None => break,
                },
                () = sleep_until(self.uploader.due()) => {
                    let mut sending = pin!(self.uploader.send());
                    // A call may hang for a minute; a stop must not wait for it.
                    let verdict = loop {
                        tokio::select! {
                            verdict = &mut sending => break verdict,
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
                    return Ok(Once::Done(Followed::Lost(message)));
                }
            }
            // The agent's silence is no loss while the connection stands: tonic's pings watch it.
            *seen = Instant::now();
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
            Some(Err(_)) => agent::wait(connection, id).await?,
        };
        self.executed = true;
        self.uploader.ending();
        if self.uploader.must_repeat() {
            self.ended(&result);
            self.give_back().await;
        }
        Ok(match self.drain().await {
            Verdict::Gone => Once::Done(Followed::Gone),
            _ if self.uploader.is_trace_refused() => Once::Done(Followed::Result(Box::new(result))),
            Verdict::FollowAgain => Once::Again,
            _ if self.uploader.end() < result.log_bytes => Once::Again,
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
        agent::cancel(connection, id).await?;
        *canceled = true;
    }
    Ok(())
}
