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
use muster_taskscaler::driver::LeaseHandle as Slot;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Busy, Isolation, NotMade, Operation, daemon};
use crate::deploy::{Dialed, RemoteMachine};
use crate::instance::connect::{Addresses, NEW_MACHINE_AUTH_GRACE, TraceAddresses, trace_lines};
use crate::instance::lease::HeldLease;
use crate::instance::provider::Shared;
use crate::instance::settings;
use crate::{NestedVm, VmImage};

/// Maximum time to connect to a machine that was reached before.
const AGAIN_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time to delete a machine (`docs/spec/fleeting.md`, section 8.4).
const DELETE_LIMIT: Duration = Duration::from_secs(60);
/// Initial and maximum pause between two attempts to delete a machine.
const DELETE_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Virtual machine of one job on its instance.
pub(in crate::instance) struct NestedMachine {
    isolation: Arc<Isolation>,
    /// ID of the instance at its provider.
    id: String,
    /// Name of the instance, unique among all groups.
    instance: String,
    machine: NestedVm,
    settings: IsolationSettings,
    /// Connection to the machine's agent. No other job uses it.
    place: Arc<RemoteMachine>,
    /// Trace lines that follow those about the connection to the instance.
    told: Vec<String>,
    /// Addresses of the instance. Empty before it was reached.
    addresses: Mutex<Addresses>,
    /// Session with the instance over which the machine was created, until it is used.
    first: Mutex<Option<Arc<dyn Session>>>,
    /// Reason why the machine was lost.
    gone: watch::Sender<Option<String>>,
    shown: TraceAddresses,
}

impl NestedMachine {
    /// Creates a machine in the slot.
    ///
    /// # Errors
    /// [`NotMade`] if the instance cannot be reached or the daemon cannot create the machine.
    pub(super) async fn make(
        isolation: &Arc<Isolation>,
        held: &HeldLease,
        settings: IsolationSettings,
        image: &VmImage,
    ) -> Result<Arc<Self>, NotMade> {
        let (Some(slot), shared) = (held.slot(), held.shared()) else {
            return Err(NotMade("the slot was given back".to_owned()));
        };
        let name = shared.name(slot.group(), slot.instance().as_str());
        let instance = name.as_str();
        let at_fault = |error: String| {
            slot.health(Err(error.clone()));
            NotMade(format!("instance {instance}: {error}"))
        };
        let host = shared.dial((slot.group(), slot.instance()), || slot.connect_info(), false).await;
        let (host, addresses) = host.map_err(|error| {
            slot.connection_lost();
            at_fault(error)
        })?;
        let host: Arc<dyn Session> = Arc::from(host);
        let began = Instant::now();
        let number = i32::try_from(slot.slot()).unwrap_or(i32::MAX);
        let created = async { daemon(&settings, &host).await?.create(&image.name, Some(number)).await }.await;
        let created = match created {
            Ok(created) => created,
            Err(error) => {
                host.close().await;
                let text = format!("no virtual machine of image {:?}: {error}{}", image.name, remedy(&error));
                return Err(match error.is_about_the_image() && image.is_of_job {
                    true => NotMade(format!("instance {instance}: {text}")),
                    false => at_fault(text),
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
            "a virtual machine was made for a job"
        );
        let mut told = vec![
            "Enforcing VM Isolation".to_owned(),
            "Dialing nesting daemon".to_owned(),
            "Creating nesting VM tunnel".to_owned(),
            format!("Creating nesting VM {}", image.name),
            format!("Created nesting VM {} {}", machine.id, machine.address),
        ];
        if let Some(stomped) = created.stomped {
            isolation.numbers.count(Operation::Stomp);
            isolation.disown(slot.instance().as_str(), &stomped);
            tracing::warn!(
                instance,
                slot = number,
                machine = stomped,
                "the slot had a virtual machine of nobody: it was removed"
            );
            told.push(format!("Stomped nesting VM:  {stomped}"));
        }
        let nested = Self::new(shared, slot, machine, settings, told);
        *nested.addresses.lock() = addresses;
        *nested.first.lock() = Some(host);
        Ok(Arc::new(nested))
    }

    /// Restores the machine of a lease of an earlier start.
    pub(in crate::instance) fn again(
        shared: &Shared,
        slot: &Slot,
        machine: NestedVm,
        settings: IsolationSettings,
    ) -> Arc<Self> {
        let told =
            vec!["Enforcing VM Isolation".to_owned(), format!("Found nesting VM {} {}", machine.id, machine.address)];
        shared.isolation.numbers.count(Operation::Reuse);
        let nested = Self::new(shared, slot, machine, settings, told);
        let (instance, machine) = (&nested.instance, &nested.machine.id);
        tracing::info!(instance, machine, "a job goes on in the virtual machine that it has");
        Arc::new(nested)
    }

    fn new(shared: &Shared, slot: &Slot, machine: NestedVm, settings: IsolationSettings, told: Vec<String>) -> Self {
        let isolation = &shared.isolation;
        let id = slot.instance().as_str().to_owned();
        let instance = shared.name(slot.group(), &id).as_str().to_owned();
        isolation.own(&id, &machine.id);
        Self {
            id,
            place: shared.place(&format!("{instance}/{}", machine.id)),
            isolation: Arc::clone(isolation),
            instance,
            machine,
            settings,
            told,
            addresses: Mutex::default(),
            first: Mutex::default(),
            gone: watch::Sender::new(None),
            shown: settings::trace_addresses(&shared.settings()),
        }
    }

    pub(in crate::instance) fn machine(&self) -> &NestedVm {
        &self.machine
    }

    pub(in crate::instance) fn place(&self) -> &Arc<RemoteMachine> {
        &self.place
    }

    /// Returns the trace lines that describe the connection to the machine.
    fn trace_lines(&self) -> Vec<String> {
        let way = trace_lines(&self.instance, &self.addresses.lock(), self.shown);
        way.into_iter().chain(self.told.iter().cloned()).collect()
    }

    /// Waits until the machine is known to be lost while its instance exists, and returns the reason. Cancel-safe.
    pub(in crate::instance) async fn gone(&self) -> String {
        let mut gone = self.gone.subscribe();
        // The sender is a field of `self`.
        let why = gone.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        match why {
            Some(why) => why,
            None => std::future::pending().await,
        }
    }

    async fn host(&self, shared: &Shared, slot: &Slot) -> Result<Arc<dyn Session>, String> {
        let (host, addresses) = shared.dial((slot.group(), slot.instance()), || slot.connect_info(), false).await?;
        *self.addresses.lock() = addresses;
        Ok(Arc::from(host))
    }

    /// Opens a session with the machine, through a session with its instance.
    ///
    /// # Errors
    /// Reason why there is no session, human-readable.
    pub(in crate::instance) async fn dial(&self, shared: &Shared, slot: &Slot) -> Result<Dialed, String> {
        let first = self.first.lock().take();
        let is_first = first.is_some();
        let host = match first {
            Some(host) => host,
            None => self.host(shared, slot).await?,
        };
        match self.dial_through(shared, &host, is_first).await {
            Ok(machine) => {
                Ok(Dialed { session: Box::new(TunneledSession { machine, host }), trace_lines: self.trace_lines() })
            }
            Err(error) => {
                host.close().await;
                Err(error)
            }
        }
    }

    async fn dial_through(
        &self,
        shared: &Shared,
        host: &Arc<dyn Session>,
        is_first: bool,
    ) -> Result<Box<dyn Session>, String> {
        if !is_first {
            self.look(host).await?;
        }
        let name = format!("{}/{}", self.instance, self.machine.id);
        let mut connector = settings::of_machines(&self.settings.connector).map_err(|error| error_chain(&error))?;
        let mut grace = NEW_MACHINE_AUTH_GRACE.min(connector.timeout);
        if !is_first {
            connector.timeout = connector.timeout.min(AGAIN_LIMIT);
            grace = Duration::ZERO;
        }
        let internal_addr = self.machine.address.clone();
        let info = ConnectInfo { connector, internal_addr, external_addr: String::new(), expires: None };
        shared.ensure_supported(&name, &info.connector)?;
        let target = connector::target(&InstanceId::new(name.as_str()), info, DialOptions::default());
        let target = target.map_err(|error| format!("instance {name}: {error}"))?;
        let dialled = remote::dial_through(host.as_ref(), &target, &self.isolation.hosts, grace).await;
        dialled.map_err(|error| {
            format!("instance {name}: {error} (a virtual machine on the instance: vm_isolation.connector_config says how it is reached)")
        })
    }

    /// Verifies that the machine still exists.
    ///
    /// This is necessary, because its address may belong to another job's machine by now, and clones of an image have the same host key.
    ///
    /// # Errors
    /// The machine was lost, or the daemon does not answer.
    async fn look(&self, host: &Arc<dyn Session>) -> Result<(), String> {
        let listed = async { daemon(&self.settings, host).await?.list().await }.await;
        let (NestedVm { id, .. }, instance) = (&self.machine, &self.instance);
        let listed = listed.map_err(|error| {
            format!("whether virtual machine {id} on instance {instance} is still there cannot be told: {error}")
        })?;
        if listed.iter().any(|machine| machine.id == *id) {
            return Ok(());
        }
        let daemon = &self.settings.nesting_host;
        let why = format!(
            "virtual machine {id} on instance {instance} was lost: the nesting daemon at {daemon} does not list it any more"
        );
        if self.gone.send_replace(Some(why.clone())).is_none() {
            self.isolation.numbers.count(Operation::Lost);
            tracing::warn!(instance, machine = id, "the virtual machine of a job ended by itself");
        }
        Err(why)
    }

    /// Deletes the machine, and then releases its slot. The job has ended or never started.
    pub(in crate::instance) fn remove(self: Arc<Self>, slot: Slot, shared: Arc<Shared>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return slot.finish_job() };
        let busy = Busy::new(&self.isolation.busy);
        runtime.spawn(async move {
            let _busy = busy;
            let deleted = tokio::select! {
                // The machine was lost with its instance.
                _ = slot.lost() => Ok(None),
                deleted = self.delete(&shared, &slot) => deleted.map(Some),
            };
            let (numbers, instance, machine) = (&self.isolation.numbers, &self.instance, &self.machine.id);
            match deleted {
                Ok(Some(took)) => {
                    numbers.deleted(took);
                    tracing::info!(instance, machine, took_ms = took.as_millis(), "the virtual machine of a job was removed");
                }
                Ok(None) => {}
                Err(error) => {
                    numbers.count(Operation::DeleteFailed);
                    slot.health(Err(format!("a virtual machine could not be removed: {error}")));
                    tracing::warn!(
                        instance, machine, error,
                        "the virtual machine of a job is left: the next job in its slot removes it, or the next start of the manager"
                    );
                }
            }
            self.isolation.disown(&self.id, machine);
            self.isolation.hosts.forget(&format!("{instance}/{machine}"));
            slot.finish_job();
        });
    }

    async fn delete(&self, shared: &Shared, slot: &Slot) -> Result<Duration, String> {
        let (began, mut last) = (Instant::now(), String::new());
        let tries = async {
            let (mut pause, cap) = DELETE_PAUSES;
            loop {
                match self.delete_once(shared, slot).await {
                    Ok(()) => return,
                    Err(error) => last = error,
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(cap);
            }
        };
        match tokio::time::timeout(DELETE_LIMIT, tries).await {
            Ok(()) => Ok(began.elapsed()),
            Err(_) => Err(format!("not within {} s: {last}", DELETE_LIMIT.as_secs())),
        }
    }

    async fn delete_once(&self, shared: &Shared, slot: &Slot) -> Result<(), String> {
        let first = self.first.lock().take();
        let host = match first {
            Some(host) => host,
            None => self.host(shared, slot).await?,
        };
        let deleted = async {
            let daemon = daemon(&self.settings, &host).await?;
            match daemon.delete(&self.machine.id).await {
                // Some daemons refuse to delete a machine that does not exist.
                Err(error @ NestingError::Refused { .. }) => {
                    let is_there = daemon.list().await?.iter().any(|machine| machine.id == self.machine.id);
                    if is_there { Err(error) } else { Ok(()) }
                }
                deleted => deleted,
            }
        };
        let deleted = deleted.await.map_err(|error| error.to_string());
        host.close().await;
        deleted
    }
}

/// Returns a hint for errors about the image, which the daemon does not explain.
fn remedy(error: &NestingError) -> &'static str {
    if error.is_about_the_image() {
        "; is there an image of that name on the instance, and room for one more machine?"
    } else {
        ""
    }
}

/// A session that runs through another one.
struct TunneledSession {
    machine: Box<dyn Session>,
    host: Arc<dyn Session>,
}

#[async_trait]
impl Session for TunneledSession {
    async fn run(&self, run: RemoteCommand<'_>) -> Result<CommandResult, RunError> {
        self.machine.run(run).await
    }

    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        self.machine.dial(network, address).await
    }

    async fn dial_command(&self, command: &str) -> Result<Box<dyn Stream>, RunError> {
        self.machine.dial_command(command).await
    }

    async fn close(&self) {
        self.machine.close().await;
        self.host.close().await;
    }
}
