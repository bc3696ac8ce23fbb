//! The virtual machine of one job: created or restored, reached through its instance, and deleted.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_config::settings::IsolationSettings;
use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::model::{ConnectInfo, InstanceId};
use muster_fleeting::nesting::NestingError;
use muster_job::error_chain;
use muster_remote::{self as remote, CommandResult, RemoteCommand, RunError, Session, Stream};
use muster_taskscaler::driver::LeaseHandle;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Isolation, Operation, VmError, VmOperationGuard, connect_daemon};
use crate::deploy::{DeployError, Dialed, RemoteMachine};
use crate::instance::connect::{Addresses, NEW_MACHINE_AUTH_GRACE, TraceAddresses, trace_lines};
use crate::instance::lease::HeldLease;
use crate::instance::provider::ExecutorContext;
use crate::instance::settings;
use crate::{NestedVm, VmImage};

/// Maximum timeout for connecting, except for the first attempt after the creation.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for deleting a machine, with repeated attempts (`docs/spec/fleeting.md`, section 8.4).
const DELETE_TIMEOUT: Duration = Duration::from_secs(60);
/// Initial and maximum pause between attempts to delete a machine.
const DELETE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

pub(in crate::instance) struct NestedMachine {
    isolation: Arc<Isolation>,
    /// Name of the instance, unique among all groups.
    instance: String,
    machine: NestedVm,
    settings: IsolationSettings,
    /// Connection to the agent in the machine.
    remote_machine: Arc<RemoteMachine>,
    /// Trace lines that follow the lines about the instance.
    trace_lines: Vec<String>,
    /// Addresses of the instance. Empty before it was reached.
    addresses: Mutex<Addresses>,
    /// Session with the instance over which the machine was created.
    ///
    /// The first connection uses it, or the deletion if there was no connection.
    creation_session: Mutex<Option<Arc<dyn Session>>>,
    lost: watch::Sender<Option<String>>,
    shown_addresses: TraceAddresses,
}

impl NestedMachine {
    /// Creates a machine in the slot.
    ///
    /// # Errors
    /// [`VmError`] if the slot was released, the instance cannot be reached, or the daemon cannot create the machine.
    pub(super) async fn create(
        isolation: &Arc<Isolation>,
        held: &HeldLease,
        settings: IsolationSettings,
        image: &VmImage,
    ) -> Result<Arc<Self>, VmError> {
        let (Some(slot), shared) = (held.slot(), held.shared()) else {
            return Err(VmError("the slot was released".to_owned()));
        };
        let name = shared.name(slot.group(), slot.instance().as_str());
        let instance = name.as_str();
        let instance_error = |error: String| {
            slot.report_health(Err(error.clone()));
            VmError(format!("instance {instance}: {error}"))
        };
        let instance_session = shared.dial((slot.group(), slot.instance()), || slot.connect_info(), false).await;
        let (instance_session, addresses) = instance_session.map_err(|error| {
            slot.report_connection_lost();
            instance_error(error_chain(&error))
        })?;
        let instance_session: Arc<dyn Session> = Arc::from(instance_session);
        let began = Instant::now();
        let number = i32::try_from(slot.slot()).unwrap_or(i32::MAX);
        let created =
            async { connect_daemon(&settings, &instance_session).await?.create(&image.name, Some(number)).await }.await;
        let created = match created {
            Ok(created) => created,
            Err(error) => {
                instance_session.close().await;
                let text =
                    format!("failed to create a virtual machine of image {:?}: {error}{}", image.name, remedy(&error));
                return Err(match error.is_image_error() && image.is_of_job {
                    true => VmError(format!("instance {instance}: {text}")),
                    false => instance_error(text),
                });
            }
        };
        let machine = NestedVm { id: created.machine.id, address: created.machine.address };
        tracing::info!(
            instance,
            slot = number,
            machine = machine.id,
            address = machine.address,
            image = image.name,
            took_ms = began.elapsed().as_millis(),
            "virtual machine created for a job"
        );
        let mut trace_lines = vec![
            "Enforcing VM Isolation".to_owned(),
            "Dialing nesting daemon".to_owned(),
            "Creating nesting VM tunnel".to_owned(),
            format!("Creating nesting VM {}", image.name),
            format!("Created nesting VM {} {}", machine.id, machine.address),
        ];
        if let Some(stomped) = created.stomped {
            isolation.metrics.count(Operation::Stomp);
            isolation.untrack((instance, slot.instance()), &stomped);
            tracing::warn!(instance, slot = number, machine = stomped, "orphaned virtual machine in the slot deleted");
            trace_lines.push(format!("Stomped nesting VM:  {stomped}"));
        }
        let nested = Self::new(shared, slot, machine, settings, trace_lines);
        *nested.addresses.lock() = addresses;
        *nested.creation_session.lock() = Some(instance_session);
        Ok(Arc::new(nested))
    }

    pub(in crate::instance) fn restore(
        shared: &ExecutorContext,
        slot: &LeaseHandle,
        machine: NestedVm,
        settings: IsolationSettings,
    ) -> Arc<Self> {
        let trace_lines =
            vec!["Enforcing VM Isolation".to_owned(), format!("Found nesting VM {} {}", machine.id, machine.address)];
        shared.isolation.metrics.count(Operation::Reuse);
        let nested = Self::new(shared, slot, machine, settings, trace_lines);
        let (instance, machine) = (&nested.instance, &nested.machine.id);
        tracing::info!(instance, machine, "job continues in its virtual machine");
        Arc::new(nested)
    }

    fn new(
        shared: &ExecutorContext,
        slot: &LeaseHandle,
        machine: NestedVm,
        settings: IsolationSettings,
        trace_lines: Vec<String>,
    ) -> Self {
        let isolation = &shared.isolation;
        let instance = shared.name(slot.group(), slot.instance().as_str()).as_str().to_owned();
        isolation.track(&instance, &machine.id);
        Self {
            remote_machine: shared.new_machine(&format!("{instance}/{}", machine.id)),
            isolation: Arc::clone(isolation),
            instance,
            machine,
            settings,
            trace_lines,
            addresses: Mutex::default(),
            creation_session: Mutex::default(),
            lost: watch::Sender::new(None),
            shown_addresses: settings::trace_addresses(&shared.settings()),
        }
    }

    pub(in crate::instance) fn machine(&self) -> &NestedVm {
        &self.machine
    }

    pub(in crate::instance) fn remote_machine(&self) -> &Arc<RemoteMachine> {
        &self.remote_machine
    }

    fn trace_lines(&self) -> Vec<String> {
        let lines = trace_lines(&self.instance, &self.addresses.lock(), self.shown_addresses);
        lines.into_iter().chain(self.trace_lines.iter().cloned()).collect()
    }

    /// Waits until the machine is lost while its instance exists, and returns the reason. Cancel-safe.
    pub(in crate::instance) async fn lost(&self) -> String {
        let mut lost = self.lost.subscribe();
        // Cannot fail, because the sender is a field of `self`.
        let reason = lost.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    async fn dial_instance(
        &self,
        shared: &ExecutorContext,
        slot: &LeaseHandle,
    ) -> Result<Arc<dyn Session>, DeployError> {
        let (instance_session, addresses) =
            shared.dial((slot.group(), slot.instance()), || slot.connect_info(), false).await?;
        *self.addresses.lock() = addresses;
        Ok(Arc::from(instance_session))
    }

    /// Opens a session with the machine, through a session with its instance.
    ///
    /// # Errors
    /// [`DeployError`] if there is no session.
    pub(in crate::instance) async fn dial(
        &self,
        shared: &ExecutorContext,
        slot: &LeaseHandle,
    ) -> Result<Dialed, DeployError> {
        let first = self.creation_session.lock().take();
        let is_first = first.is_some();
        let instance_session = match first {
            Some(instance_session) => instance_session,
            None => self.dial_instance(shared, slot).await?,
        };
        match self.dial_through(shared, &instance_session, is_first).await {
            Ok(machine_session) => Ok(Dialed {
                session: Box::new(TunneledSession { machine_session, instance_session }),
                trace_lines: self.trace_lines(),
            }),
            Err(error) => {
                instance_session.close().await;
                Err(error)
            }
        }
    }

    async fn dial_through(
        &self,
        shared: &ExecutorContext,
        instance_session: &Arc<dyn Session>,
        is_first: bool,
    ) -> Result<Box<dyn Session>, DeployError> {
        if !is_first {
            self.verify_exists(instance_session).await?;
        }
        let name = format!("{}/{}", self.instance, self.machine.id);
        let connector = settings::vm_connector(&self.settings.connector);
        let mut connector = connector.map_err(|error| DeployError::NoSession(error_chain(&error)))?;
        let mut grace = NEW_MACHINE_AUTH_GRACE.min(connector.timeout);
        if !is_first {
            connector.timeout = connector.timeout.min(RECONNECT_TIMEOUT);
            grace = Duration::ZERO;
        }
        let internal_addr = self.machine.address.clone();
        let info = ConnectInfo { connector, internal_addr, external_addr: String::new(), expires: None };
        shared.ensure_supported(&name, &info.connector)?;
        let target = connector::target(&InstanceId::new(name.as_str()), info, DialOptions::default());
        let target = target.map_err(|error| DeployError::dial(&name, error))?;
        let dialed = remote::dial_through(instance_session.as_ref(), &target, &self.isolation.hosts, grace).await;
        dialed.map_err(|error| {
            DeployError::NoSession(format!("instance {name}: {error}; vm_isolation.connector_config configures the connection to this virtual machine"))
        })
    }

    /// Checks that the machine still exists, because another job's machine may have its address now, and clones of an
    /// image have the same host key.
    ///
    /// # Errors
    /// [`DeployError`] if the machine was lost or the daemon does not answer.
    async fn verify_exists(&self, instance_session: &Arc<dyn Session>) -> Result<(), DeployError> {
        let listed = async { connect_daemon(&self.settings, instance_session).await?.list().await }.await;
        let (NestedVm { id, .. }, instance) = (&self.machine, &self.instance);
        let listed = listed.map_err(|error| {
            DeployError::NoSession(format!(
                "failed to verify that virtual machine {id} on instance {instance} exists: {error}"
            ))
        })?;
        if listed.iter().any(|machine| machine.id == *id) {
            return Ok(());
        }
        let daemon = &self.settings.nesting_host;
        let reason = format!(
            "virtual machine {id} on instance {instance} was lost: the nesting daemon at {daemon} no longer lists it"
        );
        if self.lost.send_replace(Some(reason.clone())).is_none() {
            self.isolation.metrics.count(Operation::Lost);
            tracing::warn!(instance, machine = id, "virtual machine of a running job lost");
        }
        Err(DeployError::NoSession(reason))
    }

    pub(in crate::instance) fn remove(self: Arc<Self>, slot: LeaseHandle, shared: Arc<ExecutorContext>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return slot.finish_job() };
        let busy = VmOperationGuard::new(&self.isolation.busy);
        runtime.spawn(async move {
            let _busy = busy;
            let deleted = tokio::select! {
                // The machine was lost with its instance.
                _ = slot.lost() => Ok(None),
                deleted = self.delete(&shared, &slot) => deleted.map(Some),
            };
            let (metrics, instance, machine) = (&self.isolation.metrics, &self.instance, &self.machine.id);
            match deleted {
                Ok(Some(took)) => {
                    metrics.record_deletion(took);
                    tracing::info!(instance, machine, took_ms = took.as_millis(), "virtual machine of a job deleted");
                }
                Ok(None) => {}
                Err(error) => {
                    metrics.count(Operation::DeleteFailed);
                    slot.report_health(Err(format!("failed to delete a virtual machine: {error}")));
                    tracing::warn!(
                        instance, machine, %error,
                        "failed to delete the virtual machine of a job; the next job in its slot or the next start of the manager deletes it"
                    );
                }
            }
            self.isolation.untrack((instance, slot.instance()), machine);
            self.isolation.hosts.forget(&format!("{instance}/{machine}"));
            slot.finish_job();
        });
    }

    async fn delete(&self, shared: &ExecutorContext, slot: &LeaseHandle) -> Result<Duration, VmError> {
        let (began, mut last) = (Instant::now(), VmError(String::new()));
        let attempts = async {
            let (mut pause, cap) = DELETE_BACKOFF;
            loop {
                match self.delete_once(shared, slot).await {
                    Ok(()) => return,
                    Err(error) => last = error,
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(cap);
            }
        };
        match tokio::time::timeout(DELETE_TIMEOUT, attempts).await {
            Ok(()) => Ok(began.elapsed()),
            Err(_) => Err(VmError(format!("not deleted within {} s: {last}", DELETE_TIMEOUT.as_secs()))),
        }
    }

    async fn delete_once(&self, shared: &ExecutorContext, slot: &LeaseHandle) -> Result<(), VmError> {
        let first = self.creation_session.lock().take();
        let instance_session = match first {
            Some(instance_session) => instance_session,
            None => self.dial_instance(shared, slot).await?,
        };
        let deleted = async {
            let daemon = connect_daemon(&self.settings, &instance_session).await?;
            match daemon.delete(&self.machine.id).await {
                // Some daemons refuse to delete a machine that does not exist.
                Err(error @ NestingError::Refused { .. }) => {
                    let exists = daemon.list().await?.iter().any(|machine| machine.id == self.machine.id);
                    if exists { Err(error) } else { Ok(()) }
                }
                deleted => deleted,
            }
        };
        let deleted = deleted.await.map_err(|error| VmError(error_chain(&error)));
        instance_session.close().await;
        deleted
    }
}

/// Returns advice for errors about the image, because the daemon does not explain them.
fn remedy(error: &NestingError) -> &'static str {
    if error.is_image_error() {
        "; check that the instance has the image and enough resources for another machine"
    } else {
        ""
    }
}

struct TunneledSession {
    machine_session: Box<dyn Session>,
    instance_session: Arc<dyn Session>,
}

#[async_trait]
impl Session for TunneledSession {
    async fn run(&self, run: RemoteCommand<'_>) -> Result<CommandResult, RunError> {
        self.machine_session.run(run).await
    }

    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        self.machine_session.dial(network, address).await
    }

    async fn dial_command(&self, command: &str) -> Result<Box<dyn Stream>, RunError> {
        self.machine_session.dial_command(command).await
    }

    async fn close(&self) {
        self.machine_session.close().await;
        self.instance_session.close().await;
    }
}
