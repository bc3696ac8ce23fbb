//! Fake nesting daemon. Each of its virtual machines is a process with an SSH server and its own home directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use muster_fleeting::nesting::fake::{FakeDaemon, Hypervisor};
use parking_lot::Mutex;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::machines::Machines;
use crate::process::{WAIT_TIMEOUT, plugin_local};

/// Name of an image that the daemon does not have.
pub const MISSING_IMAGE: &str = "none";

/// Virtual machines that the daemon creates and deletes.
pub struct Vms {
    homes: PathBuf,
    /// Public key that all machines accept.
    authorized_key: String,
    running_machines: Mutex<BTreeMap<String, Child>>,
    /// Number of creations that will fail.
    creation_failures: Mutex<u32>,
    /// Whether creations wait until they are resumed.
    creations_paused: watch::Sender<bool>,
    started_creations: watch::Sender<u32>,
    /// Number of machines that will be created without an SSH server.
    unreachable_machines: Mutex<u32>,
}

/// Fake nesting daemon on this host, and its virtual machines.
pub struct NestingFixture {
    /// Fake daemon.
    pub daemon: FakeDaemon,
    /// Machines of the daemon.
    pub vms: Arc<Vms>,
    directory: tempfile::TempDir,
}

impl NestingFixture {
    /// Starts a daemon.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authorized_key = write_key(&directory.path().join("key"));
        let vms = Arc::new(Vms {
            homes: directory.path().join("homes"),
            authorized_key,
            running_machines: Mutex::default(),
            creation_failures: Mutex::default(),
            creations_paused: watch::Sender::new(false),
            started_creations: watch::Sender::new(0),
            unreachable_machines: Mutex::default(),
        });
        let hypervisor: Arc<dyn Hypervisor> = Arc::<Vms>::clone(&vms);
        let daemon = FakeDaemon::start(&directory.path().join("nesting.sock"), hypervisor, false).unwrap();
        Self { daemon, vms, directory }
    }

    /// Returns the table `[runners.autoscaler.vm_isolation]` with additional keys.
    pub fn table(&self, extra_keys: &str) -> String {
        vm_isolation_table(&self.directory.path().join("nesting.sock"), &self.directory.path().join("key"), extra_keys)
    }

    /// Stops all processes of all machines (SIGSTOP), so that the machines do not respond. Returns the number of
    /// processes.
    pub fn freeze(&self) -> usize {
        Machines::new(&self.vms.homes).freeze()
    }

    /// Returns the home directory of a machine.
    pub fn home(&self, machine: &str) -> PathBuf {
        self.vms.homes.join(machine)
    }
}

/// Returns the table `[runners.autoscaler.vm_isolation]`. `key` is the path of the private key.
pub fn vm_isolation_table(socket: &Path, key: &Path, extra_keys: &str) -> String {
    format!(
        "[runners.autoscaler.vm_isolation]\n      enabled = true\n      nesting_host = \"unix://{}\"\n      {extra_keys}\n      \
         [runners.autoscaler.vm_isolation.nesting_config]\n        image_directory = \"/images\"\n      \
         [runners.autoscaler.vm_isolation.connector_config]\n        username = \"ci\"\n        key_path = {key:?}\n        \
         timeout = \"30s\"\n",
        socket.display()
    )
}

/// Writes a private key to a file, and returns the public key.
pub fn write_key(path: &Path) -> String {
    let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap();
    std::fs::write(path, key.to_openssh(LineEnding::LF).unwrap().as_bytes()).unwrap();
    key.public_key().to_openssh().unwrap()
}

impl Vms {
    /// Sets the number of creations that will fail.
    pub fn fail_creations(&self, creations: u32) {
        *self.creation_failures.lock() = creations;
    }

    /// Sets the number of machines that will be created without an SSH server.
    pub fn make_unreachable(&self, machines: u32) {
        *self.unreachable_machines.lock() = machines;
    }

    /// Makes creations of machines wait until [`Self::resume_creations`].
    pub fn pause_creations(&self) {
        self.creations_paused.send_replace(true);
    }

    /// Lets the waiting creations of machines continue.
    pub fn resume_creations(&self) {
        self.creations_paused.send_replace(false);
    }

    /// Waits until this number of creations has started in total.
    pub async fn wait_for_creations(&self, creations: u32) {
        let mut started = self.started_creations.subscribe();
        tokio::time::timeout(WAIT_TIMEOUT, started.wait_for(|started| *started >= creations)).await.unwrap().unwrap();
    }

    /// Kills the machine and all its processes without notifying the daemon.
    pub async fn crash(&self, machine: &str) {
        let child = self.running_machines.lock().remove(machine);
        stop(child.unwrap()).await;
    }
}

/// Decrements the counter. Returns false if it was already 0.
fn take_one(counter: &Mutex<u32>) -> bool {
    let mut counter = counter.lock();
    let is_positive = *counter > 0;
    *counter = counter.saturating_sub(1);
    is_positive
}

async fn stop(mut child: Child) {
    // The machine terminates its processes when its standard input is closed.
    drop(child.stdin.take());
    child.wait().await.unwrap();
}

#[async_trait]
impl Hypervisor for Vms {
    async fn create(&self, id: &str, image: &str) -> Result<String, String> {
        self.started_creations.send_modify(|started| *started += 1);
        let _ = self.creations_paused.subscribe().wait_for(|creations_paused| !creations_paused).await;
        if image == MISSING_IMAGE {
            return Err("no such image".to_owned());
        }
        if take_one(&self.creation_failures) {
            return Err("no space left".to_owned());
        }
        if take_one(&self.unreachable_machines) {
            // No process listens on the discard port.
            return Ok("127.0.0.1:9".to_owned());
        }
        let home = self.homes.join(id);
        std::fs::create_dir_all(&home).unwrap();
        let mut command = Command::new(plugin_local());
        command.arg("instance").current_dir(&home).env("HOME", &home).env("VM_IMAGE", image);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let line = format!("{}\n", self.authorized_key);
        child.stdin.as_mut().unwrap().write_all(line.as_bytes()).await.unwrap();
        let mut first_line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first_line).await.unwrap();
        let port = first_line.split_whitespace().next().unwrap().to_owned();
        self.running_machines.lock().insert(id.to_owned(), child);
        Ok(format!("127.0.0.1:{port}"))
    }

    async fn delete(&self, id: &str) -> Result<(), String> {
        let child = self.running_machines.lock().remove(id);
        if let Some(child) = child {
            // A machine that was stopped with SIGSTOP does not react to the end of its standard input.
            Machines::new(self.homes.join(id)).kill_all();
            stop(child).await;
        }
        Ok(())
    }
}
