//! Client of the hypervisor daemon on an instance, for nested virtual machines.
//! See docs/spec/fleeting.md, section 8.
//!
//! The client reaches the daemon through a [`Session`] with the daemon's machine, so the daemon needs no socket that is open to the network.
//! The first client initializes the daemon. A slot has one virtual machine: creating another machine in the slot
//! removes the first one. A runner manager thereby also removes the machines that a crashed manager left in the slots.

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

use crate::host::connection::is_transport_failure;
use crate::protocol::nesting as wire;
use crate::protocol::nesting::nesting_client::NestingClient;
use muster_job::error_chain;
use muster_remote::Session;
use target::DaemonAddress;

/// Error message of the daemon for a call before `Init`.
/// Status code and text are compared exactly, as in the Go host.
const NOT_INITIALIZED: &str = "not initialized";
/// Error message of the daemon for a second `Init`.
/// Status code and text are compared exactly, as in the Go host.
const ALREADY_INITIALIZED: &str = "already initialized";
/// Start of the daemon's message when the machine in the slot cannot be removed.
const CLEAR_SLOT_ERROR: &str = "clearing slot:";
const CREATE: &str = "Create";

/// Timeouts of the calls. The protocol defines none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NestingTimeouts {
    /// Time to connect, and for `Init`. Defaults to 60 seconds.
    pub init: Duration,
    /// Time to clone and boot a machine and to get its address.
    /// Defaults to 15 minutes; the daemon itself waits 5 minutes for the address.
    pub create: Duration,
    /// Time to delete a machine. Defaults to 60 seconds.
    pub delete: Duration,
    /// Time to list the machines. Defaults to 60 seconds.
    pub list: Duration,
}

impl Default for NestingTimeouts {
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
    /// ID of the machine in the daemon.
    pub id: String,
    /// Name of the image. Some daemons leave it empty in lists.
    pub image: String,
    /// Address in the network of the daemon's machine.
    pub address: String,
}

/// Result of creating a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// The new machine.
    pub machine: VirtualMachine,
    /// ID of the machine that was removed from the slot.
    /// `None` means that the slot was empty, or that no slot was given.
    pub stomped: Option<String>,
}

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum NestingError {
    /// The daemon cannot be reached.
    #[error(
        "failed to reach the nesting daemon at {daemon}: {cause}; check that it runs on the instance and that nesting_host is correct"
    )]
    Unreachable {
        /// `nesting_host`.
        daemon: String,
        /// Reason why the connection failed.
        cause: String,
    },
    /// The daemon did not respond in time.
    #[error("no response to {call} from the nesting daemon at {daemon} within {} s", timeout.as_secs())]
    Timeout {
        /// `nesting_host`.
        daemon: String,
        /// Name of the call.
        call: &'static str,
        /// Timeout of the call.
        timeout: Duration,
    },
    /// The daemon returned an error.
    #[error("nesting daemon at {daemon}: {call} failed: {message}")]
    Refused {
        /// `nesting_host`.
        daemon: String,
        /// Name of the call.
        call: &'static str,
        /// Error message of the daemon.
        message: String,
    },
    /// The response is invalid.
    #[error("nesting daemon at {daemon}: invalid response to {call}: {problem}")]
    InvalidResponse {
        /// `nesting_host`.
        daemon: String,
        /// Name of the call.
        call: &'static str,
        /// Problem with the response.
        problem: &'static str,
    },
}

impl NestingError {
    /// Returns whether the image may be the cause, so that another image may work.
    /// An error about clearing the slot has nothing to do with the image.
    #[must_use]
    pub fn is_image_error(&self) -> bool {
        matches!(self, Self::Refused { call: CREATE, message, .. } if !message.starts_with(CLEAR_SLOT_ERROR))
    }
}

type Client = NestingClient<Channel>;

/// A client of one daemon.
#[derive(Debug, Clone)]
pub struct Nesting {
    client: Client,
    daemon: String,
    config: Vec<u8>,
    timeouts: NestingTimeouts,
}

impl Nesting {
    /// Connects to the daemon at `nesting_host`, which is resolved on the session's machine.
    /// `config` is `nesting_config`.
    ///
    /// # Errors
    /// [`NestingError::Unreachable`].
    pub async fn connect(
        session: Arc<dyn Session>,
        nesting_host: &str,
        config: &serde_json::Value,
        timeouts: NestingTimeouts,
    ) -> Result<Self, NestingError> {
        let daemon = DaemonAddress::parse(nesting_host);
        let unreachable = |cause: String| NestingError::Unreachable { daemon: nesting_host.to_owned(), cause };
        let connector = service_fn(move |_| {
            let (session, daemon) = (Arc::clone(&session), daemon.clone());
            async move { session.dial(&daemon.network, &daemon.address).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://nesting");
        let connecting = endpoint.connect_with_connector(connector);
        let channel = match tokio::time::timeout(timeouts.init, connecting).await {
            Err(_) => return Err(unreachable(format!("no response within {} s", timeouts.init.as_secs()))),
            Ok(connected) => connected.map_err(|error| unreachable(error_chain(&error)))?,
        };
        let config = config.to_string().into_bytes();
        Ok(Self { client: NestingClient::new(channel), daemon: nesting_host.to_owned(), config, timeouts })
    }

    /// Creates a machine from an image. The machine that was in `slot` is removed first.
    ///
    /// # Errors
    /// [`NestingError`]. After [`NestingError::Timeout`] or [`NestingError::Unreachable`], the machine may exist. If it has a slot, the next
    /// machine in this slot replaces it.
    pub async fn create(&self, image: &str, slot: Option<i32>) -> Result<Created, NestingError> {
        let request = wire::CreateRequest { name: image.to_owned(), slot };
        let send = |mut client: Client| {
            let request = request.clone();
            async move { client.create(request).await }
        };
        let answer = self.call(CREATE, self.timeouts.create, send).await?;
        let invalid = |problem| NestingError::InvalidResponse { daemon: self.daemon.clone(), call: CREATE, problem };
        let machine = answer.vm.ok_or_else(|| invalid("it contains no machine"))?;
        if machine.id.is_empty() || machine.addr.is_empty() {
            return Err(invalid("the machine has no ID or no address"));
        }
        Ok(Created { machine: machine.into(), stomped: answer.stomped_vm_id.filter(|id| !id.is_empty()) })
    }

    /// Deletes a machine.
    ///
    /// # Errors
    /// [`NestingError`].
    pub async fn delete(&self, id: &str) -> Result<(), NestingError> {
        let request = wire::DeleteRequest { id: id.to_owned() };
        let send = |mut client: Client| {
            let request = request.clone();
            async move { client.delete(request).await }
        };
        self.call("Delete", self.timeouts.delete, send).await.map(drop)
    }

    /// Lists the machines.
    ///
    /// # Errors
    /// [`NestingError`].
    pub async fn list(&self) -> Result<Vec<VirtualMachine>, NestingError> {
        let send = |mut client: Client| async move { client.list(wire::ListRequest {}).await };
        let answer = self.call("List", self.timeouts.list, send).await?;
        Ok(answer.vms.into_iter().map(Into::into).collect())
    }

    /// Deletes all machines for which `retain` returns false.
    /// Returns each of them with the result of its deletion.
    ///
    /// # Errors
    /// [`NestingError`] if the machines cannot be listed.
    pub async fn clear(
        &self,
        retain: impl Fn(&str) -> bool,
    ) -> Result<Vec<(VirtualMachine, Result<(), NestingError>)>, NestingError> {
        let mut removed = Vec::new();
        for machine in self.list().await?.into_iter().filter(|machine| !retain(&machine.id)) {
            let result = self.delete(&machine.id).await;
            removed.push((machine, result));
        }
        Ok(removed)
    }

    /// Makes a call.
    /// If the daemon is not initialized, initializes it and repeats the call (cases N1 and N4).
    async fn call<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        call: &'static str,
        timeout: Duration,
        send: impl Fn(Client) -> F,
    ) -> Result<T, NestingError> {
        match self.with_timeout(call, timeout, send(self.client.clone())).await? {
            Err(status) if is_precondition_error(&status, NOT_INITIALIZED) => {}
            answer => return self.unwrap_status(call, answer),
        }
        let init = wire::InitRequest { config: self.config.clone() };
        let answer = self.with_timeout("Init", self.timeouts.init, self.client.clone().init(init)).await?;
        // Another client may have initialized the daemon in the meantime.
        if !matches!(&answer, Err(status) if is_precondition_error(status, ALREADY_INITIALIZED)) {
            self.unwrap_status("Init", answer)?;
        }
        let answer = self.with_timeout(call, timeout, send(self.client.clone())).await?;
        self.unwrap_status(call, answer)
    }

    async fn with_timeout<T>(
        &self,
        call: &'static str,
        timeout: Duration,
        work: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<Result<T, Status>, NestingError> {
        match tokio::time::timeout(timeout, work).await {
            Err(_) => Err(NestingError::Timeout { daemon: self.daemon.clone(), call, timeout }),
            Ok(answer) => Ok(answer.map(tonic::Response::into_inner)),
        }
    }

    fn unwrap_status<T>(&self, call: &'static str, answer: Result<T, Status>) -> Result<T, NestingError> {
        answer.map_err(|status| {
            let daemon = self.daemon.clone();
            if is_transport_failure(&status) {
                return NestingError::Unreachable { daemon, cause: error_chain(&status) };
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

fn is_precondition_error(status: &Status, message: &str) -> bool {
    status.code() == Code::FailedPrecondition && status.message() == message && status.details().is_empty()
}
