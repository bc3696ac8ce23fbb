//! The agents of this host: one for new jobs, and outdated agents that finish their jobs.
//!
//! ```text
//! number 0: agent.sock, spool      environment `host`
//! number n: agent.<n>.sock, spool.<n>          `host-<n>`
//! ```
//!
//! New jobs go to the agent that runs the manager's executable. If none does, an agent is started with the first free
//! number. A job stays with the agent that its lease names. An agent that died is restarted on its own spool. An
//! outdated agent is ended when it has no more jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::agent::ListJobsRequest;
use parking_lot::Mutex;
use rustix::process::{Signal, Uid};
use tokio::task::JoinHandle;

use super::agent::{self, HostAgent};
use super::agent_replacement::LIST_TIMEOUT;
use super::{HostEnvironment, HostOptions, socket_path, user};
use crate::ExecutorError;

/// Name of environment number 0, and prefix of the other names.
const HOST: &str = "host";
/// Numbers of agents. Agents of at most 16 different executables can have jobs at the same time.
const AGENT_NUMBERS: std::ops::Range<u32> = 0..16;
/// Interval at which the jobs of outdated agents are listed, because agents send no event when a job ends.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Agents {
    options: HostOptions,
    /// User as which the agents run.
    user: Uid,
    known: Mutex<BTreeMap<u32, Arc<HostEnvironment>>>,
    /// Number of the agent for new jobs. `None` until it has been chosen. The lock is held while it is chosen.
    current: tokio::sync::Mutex<Option<u32>>,
    /// Task that chooses the agent for new jobs when the first job of an earlier manager process is restored.
    choosing: Mutex<Option<JoinHandle<()>>>,
    /// Task that ends the outdated agents.
    retiring: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Agents {
    fn drop(&mut self) {
        // The next manager will end the outdated agents.
        if let Some(task) = self.retiring.lock().take() {
            task.abort();
        }
    }
}

impl Agents {
    /// Returns the agents of this host, without starting one.
    ///
    /// # Errors
    /// [`ExecutorError::File`] or [`ExecutorError::User`] if there is no usable path for the socket, or if other users
    /// can write to its directory.
    pub(super) fn new(options: HostOptions, user: Uid) -> Result<Self, ExecutorError> {
        let (known, current, choosing, retiring) = Default::default();
        let agents = Self { options, user, known, current, choosing, retiring };
        agent::check_socket_directory(&*agents.by_number(0)?)?;
        Ok(agents)
    }

    /// Returns the environment of agent number 0.
    ///
    /// # Errors
    /// [`ExecutorError::File`] or [`ExecutorError::User`] if there is no usable path for the socket.
    pub(super) fn first(&self) -> Result<Arc<HostEnvironment>, ExecutorError> {
        self.by_number(0)
    }

    /// Returns the environment with this name. `None` means that this host cannot have an environment of that name.
    pub(super) fn by_name(&self, name: &str) -> Option<Arc<HostEnvironment>> {
        let number = AGENT_NUMBERS.into_iter().find(|number| self::name(*number) == name)?;
        self.by_number(number).ok()
    }

    /// Returns the environment for new jobs, and its name.
    ///
    /// # Errors
    /// [`ExecutorError`] if no number is free, or a socket's directory is not usable.
    pub(super) async fn current(&self) -> Result<(String, Arc<HostEnvironment>), ExecutorError> {
        let mut current = self.current.lock().await;
        let number = match *current {
            Some(number) => number,
            None => *current.insert(self.choose().await?),
        };
        Ok((name(number), self.by_number(number)?))
    }

    /// Finds the outdated agents in the background, so that they end after their last jobs even if no new job comes.
    pub(super) fn retire_outdated(self: &Arc<Self>) {
        let agents = Arc::clone(self);
        self.choosing.lock().get_or_insert_with(|| {
            tokio::spawn(async move {
                if let Err(error) = agents.current().await {
                    // The next job repeats this, and reports the error.
                    tracing::debug!(%error, "failed to choose the agent for new jobs");
                }
            })
        });
    }

    fn by_number(&self, number: u32) -> Result<Arc<HostEnvironment>, ExecutorError> {
        let mut known = self.known.lock();
        if let Some(environment) = known.get(&number) {
            return Ok(Arc::clone(environment));
        }
        let agent_dir = user::agent_dir(&self.options);
        let socket = socket_path(&agent_dir, number)?;
        if let Some(name) = self.options.user.as_ref().filter(|_| !socket.starts_with(&agent_dir)) {
            let message =
                format!("the path {} is too long for a socket; use a shorter state directory", agent_dir.display());
            return Err(ExecutorError::User { name: name.clone(), message });
        }
        let dotted = if number == 0 { String::new() } else { format!(".{number}") };
        let environment = Arc::new(HostEnvironment {
            options: self.options.clone(),
            user: self.user,
            socket,
            spool: agent_dir.join(format!("spool{dotted}")),
            record: self.options.state_dir.join(format!("agent{dotted}.process")),
            current: tokio::sync::Mutex::default(),
        });
        known.insert(number, Arc::clone(&environment));
        Ok(environment)
    }

    async fn choose(&self) -> Result<u32, ExecutorError> {
        let (mut own, mut free, mut outdated) = (None, None, Vec::new());
        for number in AGENT_NUMBERS {
            let environment = self.by_number(number)?;
            // Without a spool, no agent has been started with this number.
            if number > 0 && free.is_some() && !environment.spool.exists() {
                continue;
            }
            match HostAgent::find(&environment, None).await {
                Ok(agent) if agent.runs_file(&self.options.executable) => {
                    own.get_or_insert(number);
                }
                Ok(agent) => {
                    tracing::info!(
                        environment = name(number),
                        pid = agent.process.pid(),
                        version = agent.connection.identity().version,
                        "outdated agent finishes its jobs; a new agent takes new jobs"
                    );
                    outdated.push(OutdatedAgent { environment, agent });
                }
                Err(error @ ExecutorError::Untrusted { .. }) => {
                    tracing::warn!(%error, "untrusted process on the socket of an agent, using another socket")
                }
                Err(error @ ExecutorError::File { .. }) => return Err(error),
                Err(_) => drop(free.get_or_insert(number)),
            }
        }
        if !outdated.is_empty() {
            *self.retiring.lock() = Some(tokio::spawn(retire(outdated)));
        }
        own.or(free).ok_or_else(|| ExecutorError::Start {
            message: format!(
                "outdated agents or other processes listen on all {} sockets; wait until one of them ends",
                AGENT_NUMBERS.len()
            ),
            log: self.options.state_dir.join("agent.log"),
        })
    }
}

fn name(number: u32) -> String {
    if number == 0 { HOST.to_owned() } else { format!("{HOST}-{number}") }
}

struct OutdatedAgent {
    environment: Arc<HostEnvironment>,
    agent: HostAgent,
}

impl OutdatedAgent {
    /// Without jobs, only two references to the environment remain: in the list of all environments, and in `self`.
    fn has_no_jobs(&self) -> bool {
        Arc::strong_count(&self.environment) <= 2
    }

    /// Ends the agent if it has no more jobs. Returns whether it must be checked again.
    async fn end_if_unused(&self) -> bool {
        let mut client = self.agent.connection.agent();
        match tokio::time::timeout(LIST_TIMEOUT, client.list_jobs(ListJobsRequest {})).await {
            Ok(Ok(answer)) if answer.get_ref().jobs.is_empty() && self.has_no_jobs() => {
                terminate(&self.agent);
                false
            }
            Ok(Ok(_)) => true,
            // If a job still needs this agent, the agent is restarted with the manager's executable.
            Ok(Err(_)) | Err(_) if self.agent.process.has_ended() => false,
            Ok(Err(error)) => {
                tracing::debug!(%error, pid = self.agent.process.pid(), "failed to list the jobs of an outdated agent, retrying");
                true
            }
            Err(_) => {
                tracing::debug!(pid = self.agent.process.pid(), "outdated agent does not answer, retrying");
                true
            }
        }
    }
}

async fn retire(mut agents: Vec<OutdatedAgent>) {
    while !agents.is_empty() {
        // Wait first: jobs of an earlier manager process are still being restored.
        tokio::time::sleep(POLL_INTERVAL).await;
        let mut remaining = Vec::new();
        for outdated in agents {
            if outdated.end_if_unused().await {
                remaining.push(outdated);
            }
        }
        agents = remaining;
    }
}

fn terminate(agent: &HostAgent) {
    let pid = agent.process.pid();
    match agent.process.signal(Signal::TERM) {
        Ok(()) => tracing::info!(pid, "ending an outdated agent without jobs"),
        Err(error) => tracing::warn!(pid, %error, "failed to end an outdated agent without jobs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::{executor, serve_other_version};
    use crate::{Executor as _, LeaseRecord, Slot, SlotKey};

    #[tokio::test]
    async fn outdated_agent_of_a_restored_job_is_retired_without_a_new_job() {
        let home = tempfile::tempdir().unwrap();
        let executor = executor(home.path(), "/nonexistent");
        let environment = executor.agents.first().unwrap();
        agent::record_this_process(&environment.record);
        let server = serve_other_version(&environment.socket, 1);
        let key = SlotKey { runner: "short".to_owned(), project_id: 3 };
        // The lease is held, so that this test does not end its own process.
        let lease = executor.restore(&LeaseRecord::local(HOST, Slot { id: 0, project_slot: 0, key })).await.unwrap();
        let choosing = executor.agents.choosing.lock().take().expect("outdated agents must be searched");
        choosing.await.unwrap();
        assert!(executor.agents.retiring.lock().is_some());
        lease.release();
        server.shutdown_background();
    }

    #[tokio::test]
    async fn outdated_agent_that_does_not_answer_is_checked_again() {
        let home = tempfile::tempdir().unwrap();
        let environment = executor(home.path(), "/nonexistent").agents.first().unwrap();
        agent::record_this_process(&environment.record);
        let server = serve_other_version(&environment.socket, 1);
        let agent = HostAgent::find(&environment, None).await.unwrap();
        // The agent stops to answer, but its process, which is that of this test, runs.
        server.shutdown_background();
        std::fs::remove_file(&environment.socket).unwrap();
        // If the server still answers, the agent must have a user, so that this test does not end its own process.
        let _in_use = [Arc::clone(&environment), Arc::clone(&environment)];
        assert!(OutdatedAgent { environment, agent }.end_if_unused().await);
    }
}
