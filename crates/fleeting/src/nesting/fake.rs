//! A nesting daemon for tests. It has the rules of the real one: `Init` first, and one machine per slot.
//! The test supplies the hypervisor.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::{ALREADY_INITIALIZED, NOT_INITIALIZED};
use crate::protocol::nesting as wire;
use crate::protocol::nesting::nesting_server::{Nesting, NestingServer};

/// Creates and deletes the machines.
#[async_trait]
pub trait Hypervisor: Send + Sync + 'static {
    /// Creates the machine `id` from an image and returns its address.
    ///
    /// # Errors
    /// The daemon returns the text as an error.
    async fn create(&self, id: &str, image: &str) -> Result<String, String>;

    /// Deletes the machine.
    ///
    /// # Errors
    /// The daemon returns the text as an error.
    async fn delete(&self, id: &str) -> Result<(), String>;

    /// Runs before a list is returned.
    async fn before_list(&self) {}
}

/// An existing machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeMachine {
    /// Name of the image.
    pub image: String,
    /// Slot in which the machine was created.
    pub slot: Option<i32>,
    /// Address of the machine.
    pub address: String,
}

#[derive(Debug, Default)]
struct State {
    config: Option<Vec<u8>>,
    inits: u32,
    created: u32,
    machines: BTreeMap<String, FakeMachine>,
    slots: BTreeMap<i32, String>,
}

struct Shared {
    hypervisor: Arc<dyn Hypervisor>,
    loses_init_race: bool,
    state: Mutex<State>,
}

/// A fake daemon. It serves requests until it is dropped.
pub struct FakeDaemon {
    shared: Arc<Shared>,
    server_task: JoinHandle<()>,
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.server_task.abort();
    }
}

impl FakeDaemon {
    /// Serves on a socket.
    ///
    /// With `loses_init_race`, each `Init` fails as if another client had initialized the daemon at the same time.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn start(socket: &Path, hypervisor: Arc<dyn Hypervisor>, loses_init_race: bool) -> io::Result<Self> {
        let incoming = UnixListenerStream::new(UnixListener::bind(socket)?);
        let shared = Arc::new(Shared { hypervisor, loses_init_race, state: Mutex::default() });
        let server = tonic::transport::Server::builder().add_service(NestingServer::new(Service(Arc::clone(&shared))));
        let server_task = tokio::spawn(async move {
            // The server runs until the test drops the daemon.
            let _ = server.serve_with_incoming(incoming).await;
        });
        Ok(Self { shared, server_task })
    }

    /// Returns the machines by ID.
    #[must_use]
    pub fn machines(&self) -> BTreeMap<String, FakeMachine> {
        self.shared.state().machines.clone()
    }

    /// Removes a machine as if it had ended without a request.
    pub fn lose_machine(&self, id: &str) {
        let mut state = self.shared.state();
        state.machines.remove(id);
        state.slots.retain(|_, machine| machine != id);
    }

    /// Returns the number of machines ever requested.
    #[must_use]
    pub fn created_count(&self) -> u32 {
        self.shared.state().created
    }

    /// Returns the number of `Init` calls, and the configuration of the last one.
    /// The configuration is empty before the first call.
    #[must_use]
    pub fn init_calls(&self) -> (u32, Vec<u8>) {
        let state = self.shared.state();
        (state.inits, state.config.clone().unwrap_or_default())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn initialized_state(&self) -> Result<MutexGuard<'_, State>, Status> {
        let state = self.state();
        if state.config.is_none() { Err(Status::failed_precondition(NOT_INITIALIZED)) } else { Ok(state) }
    }

    async fn remove(&self, id: &str) -> Result<(), String> {
        self.hypervisor.delete(id).await?;
        let mut state = self.state();
        state.slots.retain(|_, machine| machine != id);
        state.machines.remove(id);
        Ok(())
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl Nesting for Service {
    async fn init(&self, request: Request<wire::InitRequest>) -> Result<Response<wire::InitResponse>, Status> {
        let mut state = self.0.state();
        let is_second = state.config.replace(request.into_inner().config).is_some() || self.0.loses_init_race;
        state.inits += 1;
        if is_second {
            return Err(Status::failed_precondition(ALREADY_INITIALIZED));
        }
        Ok(Response::new(wire::InitResponse {}))
    }

    async fn create(&self, request: Request<wire::CreateRequest>) -> Result<Response<wire::CreateResponse>, Status> {
        let wire::CreateRequest { name, slot } = request.into_inner();
        let (stomped, id) = {
            let mut state = self.0.initialized_state()?;
            state.created += 1;
            let stomped = slot.and_then(|slot| state.slots.get(&slot).cloned());
            (stomped, format!("nesting-{}", state.created))
        };
        if let Some(id) = &stomped {
            self.0.remove(id).await.map_err(|error| Status::unknown(format!("clearing slot: {error}")))?;
        }
        let (shared, image, machine_id) = (Arc::clone(&self.0), name.clone(), id.clone());
        // The machine is created even if the caller has disconnected.
        let created = tokio::spawn(async move {
            let address = shared.hypervisor.create(&machine_id, &image).await?;
            let mut state = shared.state();
            state.machines.insert(machine_id.clone(), FakeMachine { image, slot, address: address.clone() });
            if let Some(slot) = slot {
                state.slots.insert(slot, machine_id);
            }
            Ok(address)
        });
        let created = created.await.unwrap_or_else(|error| Err(error.to_string()));
        let vm = Some(wire::VirtualMachine { id, name, addr: created.map_err(Status::unknown)? });
        Ok(Response::new(wire::CreateResponse { vm, stomped_vm_id: stomped }))
    }

    async fn delete(&self, request: Request<wire::DeleteRequest>) -> Result<Response<wire::DeleteResponse>, Status> {
        let id = request.into_inner().id;
        if !self.0.initialized_state()?.machines.contains_key(&id) {
            return Err(Status::unknown(format!("no vm ({id}) found")));
        }
        self.0.remove(&id).await.map_err(Status::unknown)?;
        Ok(Response::new(wire::DeleteResponse {}))
    }

    async fn list(&self, _: Request<wire::ListRequest>) -> Result<Response<wire::ListResponse>, Status> {
        self.0.hypervisor.before_list().await;
        let to_wire = |(id, machine): (&String, &FakeMachine)| wire::VirtualMachine {
            id: id.clone(),
            name: String::new(),
            addr: machine.address.clone(),
        };
        let vms = self.0.initialized_state()?.machines.iter().map(to_wire).collect();
        Ok(Response::new(wire::ListResponse { vms }))
    }

    async fn shutdown(&self, _: Request<wire::ShutdownRequest>) -> Result<Response<wire::ShutdownResponse>, Status> {
        Err(Status::unimplemented("not used by runners"))
    }
}
