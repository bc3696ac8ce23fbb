//! Nested virtual machines (`vm_isolation`): the client of the hypervisor daemon on an instance (fleeting.md 8).
//!
//! The daemon is reached through a [`Session`] to its host, so no socket of it has to be open to the network. It is
//! initialised by whoever comes first; others find it so. A slot has one machine: making another one in it removes the
//! first, which is how machines that a lost manager left behind go.

#[cfg(any(test, feature = "test-support"))]
pub mod fake;
mod target;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use crate::causes::causes;
use crate::host::connection::is_broken;
use crate::protocol::nesting as wire;
use crate::protocol::nesting::nesting_client::NestingClient;
use muster_remote::Session;
use target::Daemon;

/// What the daemon says before `Init`, and to a second one. Code and text are compared as a whole, as the Go host does.
const NOT_INITIALISED: &str = "not initialized";
const INITIALISED: &str = "already initialized";
/// How the daemon begins when the machine that is in the slot cannot be removed.
const CLEARING: &str = "clearing slot:";
const CREATE: &str = "Create";

/// How long a call may take. The protocol has no deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NestingLimits {
    /// The connection, and `Init`.
    pub init: Duration,
    /// A clone, a boot, and an address: the daemon's own limit for the last is five minutes.
    pub create: Duration,
    /// A removal.
    pub delete: Duration,
    /// A list.
    pub list: Duration,
}

impl Default for NestingLimits {
    fn default() -> Self {
        Self {
            init: Duration::from_secs(60),
            create: Duration::from_secs(900),
            delete: Duration::from_secs(60),
            list: Duration::from_secs(60),
        }
    }
}

/// A virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualMachine {
    /// Its name at the daemon.
    pub id: String,
    /// Its image; some daemons leave it out in lists.
    pub image: String,
    /// Its address, as its host sees it.
    pub address: String,
}

/// A machine that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// The machine.
    pub machine: VirtualMachine,
    /// The one that was in the slot before, and is removed.
    pub stomped: Option<String>,
}

/// Why the daemon did not do it.
#[derive(Debug, thiserror::Error)]
pub enum NestingError {
    /// Nobody answers.
    #[error(
        "the nesting daemon at {daemon} cannot be reached: {cause}; does it run on the instance, and is nesting_host right?"
    )]
    Unreachable {
        /// `nesting_host`.
        daemon: String,
        /// Why.
        cause: String,
    },
    /// No answer in time.
    #[error("the nesting daemon at {daemon} did not answer {call} within {} s", limit.as_secs())]
    Deadline {
        /// `nesting_host`.
        daemon: String,
        /// The call.
        call: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// It says no.
    #[error("the nesting daemon at {daemon}: {call} failed: {message}")]
    Refused {
        /// `nesting_host`.
        daemon: String,
        /// The call.
        call: &'static str,
        /// Its words.
        message: String,
    },
    /// The answer makes no sense.
    #[error("the nesting daemon at {daemon}: {call} answered nonsense: {what}")]
    Nonsense {
        /// `nesting_host`.
        daemon: String,
        /// The call.
        call: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl NestingError {
    /// Whether it is about what was asked for, and perhaps only that: another image may be made where one is refused. That a
    /// slot cannot be cleared is about the daemon.
    #[must_use]
    pub fn is_about_the_image(&self) -> bool {
        matches!(self, Self::Refused { call: CREATE, message, .. } if !message.starts_with(CLEARING))
    }
}

type Client = NestingClient<Channel>;

/// A daemon.
#[derive(Debug, Clone)]
pub struct Nesting {
    client: Client,
    daemon: String,
    config: Vec<u8>,
    limits: NestingLimits,
}

impl Nesting {
    /// Connects to the daemon at `nesting_host`, as the host of the session sees it. `config` is `nesting_config`.
    ///
    /// # Errors
    /// [`NestingError::Unreachable`].
    pub async fn connect(
        session: Arc<dyn Session>,
        nesting_host: &str,
        config: &serde_json::Value,
        limits: NestingLimits,
    ) -> Result<Self, NestingError> {
        let daemon = Daemon::parse(nesting_host);
        let unreachable = |cause: String| NestingError::Unreachable { daemon: nesting_host.to_owned(), cause };
        let connector = service_fn(move |_| {
            let (session, daemon) = (Arc::clone(&session), daemon.clone());
            async move { session.dial(&daemon.network, &daemon.address).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://nesting");
        let connecting = endpoint.connect_with_connector(connector);
        let channel = match tokio::time::timeout(limits.init, connecting).await {
            Err(_) => return Err(unreachable(format!("no answer within {} s", limits.init.as_secs()))),
            Ok(connected) => connected.map_err(|error| unreachable(causes(&error)))?,
        };
        let config = config.to_string().into_bytes();
        Ok(Self { client: NestingClient::new(channel), daemon: nesting_host.to_owned(), config, limits })
    }

    /// Makes a machine of an image. With a slot, the machine that was in it goes first.
    ///
    /// # Errors
    /// [`NestingError`]: where it is a [`NestingError::Deadline`], a machine may have been made, which the next one in the
    /// slot removes.
    pub async fn create(&self, image: &str, slot: Option<i32>) -> Result<Created, NestingError> {
        let request = wire::CreateRequest { name: image.to_owned(), slot };
        let ask = |mut client: Client| {
            let request = request.clone();
            async move { client.create(request).await }
        };
        let answer = self.call(CREATE, self.limits.create, ask).await?;
        let nonsense = |what| NestingError::Nonsense { daemon: self.daemon.clone(), call: CREATE, what };
        let machine = answer.vm.ok_or_else(|| nonsense("no machine"))?;
        if machine.id.is_empty() || machine.addr.is_empty() {
            return Err(nonsense("a machine without id or address"));
        }
        Ok(Created { machine: machine.into(), stomped: answer.stomped_vm_id.filter(|id| !id.is_empty()) })
    }

    /// Removes a machine.
    ///
    /// # Errors
    /// [`NestingError`].
    pub async fn delete(&self, id: &str) -> Result<(), NestingError> {
        let request = wire::DeleteRequest { id: id.to_owned() };
        let ask = |mut client: Client| {
            let request = request.clone();
            async move { client.delete(request).await }
        };
        self.call("Delete", self.limits.delete, ask).await.map(drop)
    }

    /// The machines there are.
    ///
    /// # Errors
    /// [`NestingError`].
    pub async fn list(&self) -> Result<Vec<VirtualMachine>, NestingError> {
        let ask = |mut client: Client| async move { client.list(wire::ListRequest {}).await };
        let answer = self.call("List", self.limits.list, ask).await?;
        Ok(answer.vms.into_iter().map(Into::into).collect())
    }

    /// Removes all machines but those that `keep` names: an instance that is ready has none of nobody. Gives those that it
    /// removed, and those that are left, each with the reason.
    ///
    /// # Errors
    /// [`NestingError`] where they cannot even be listed.
    pub async fn clear(
        &self,
        keep: impl Fn(&str) -> bool,
    ) -> Result<Vec<(VirtualMachine, Result<(), NestingError>)>, NestingError> {
        let mut removed = Vec::new();
        for machine in self.list().await?.into_iter().filter(|machine| !keep(&machine.id)) {
            let result = self.delete(&machine.id).await;
            removed.push((machine, result));
        }
        Ok(removed)
    }

    /// One call; a daemon that was not initialised is, and is asked once more (N4).
    async fn call<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        call: &'static str,
        limit: Duration,
        ask: impl Fn(Client) -> F,
    ) -> Result<T, NestingError> {
        match self.timed(call, limit, ask(self.client.clone())).await? {
            Err(status) if is(&status, NOT_INITIALISED) => {}
            answer => return self.judge(call, answer),
        }
        let init = wire::InitRequest { config: self.config.clone() };
        let answer = self.timed("Init", self.limits.init, self.client.clone().init(init)).await?;
        // Another one was faster.
        if !matches!(&answer, Err(status) if is(status, INITIALISED)) {
            self.judge("Init", answer)?;
        }
        let answer = self.timed(call, limit, ask(self.client.clone())).await?;
        self.judge(call, answer)
    }

    async fn timed<T>(
        &self,
        call: &'static str,
        limit: Duration,
        work: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<Result<T, Status>, NestingError> {
        match tokio::time::timeout(limit, work).await {
            Err(_) => Err(NestingError::Deadline { daemon: self.daemon.clone(), call, limit }),
            Ok(answer) => Ok(answer.map(tonic::Response::into_inner)),
        }
    }

    fn judge<T>(&self, call: &'static str, answer: Result<T, Status>) -> Result<T, NestingError> {
        answer.map_err(|status| {
            let daemon = self.daemon.clone();
            if is_broken(&status) {
                return NestingError::Unreachable { daemon, cause: causes(&status) };
            }
            NestingError::Refused { daemon, call, message: status.message().to_owned() }
        })
    }
}

impl From<wire::VirtualMachine> for VirtualMachine {
    fn from(wire: wire::VirtualMachine) -> Self {
        Self { id: wire.id, image: wire.name, address: wire.addr }
    }
}

fn is(status: &Status, message: &str) -> bool {
    status.code() == Code::FailedPrecondition && status.message() == message && status.details().is_empty()
}
