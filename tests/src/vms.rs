//! Virtual machines of a fake nesting daemon. Each is a process with an SSH server and its own home directory.

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
use crate::process::{LIMIT, plugin_local};

/// Name of an image that does not exist.
pub const NO_IMAGE: &str = "none";

/// Creates the machines.
pub struct Vms {
    homes: PathBuf,
    /// Public key that all machines accept, as if it were in their image.
    authorized: String,
    running: Mutex<BTreeMap<String, Child>>,
    /// Number of creations that will fail.
    failing: Mutex<u32>,
    /// Whether creations wait.
    held: watch::Sender<bool>,
    /// Number of creations that have begun.
    begun: watch::Sender<u32>,
    /// Number of machines that will be created without an SSH server.
    unreachable: Mutex<u32>,
}

/// Nesting daemon on this host, with its machines.
pub struct Nest {
    /// Fake daemon.
    pub daemon: FakeDaemon,
    /// Machines of the daemon.
    pub vms: Arc<Vms>,
    folder: tempfile::TempDir,
}

impl Nest {
    /// Starts a daemon.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authorized = write_key(&folder.path().join("key"));
        let vms = Arc::new(Vms {
            homes: folder.path().join("homes"),
            authorized,
            running: Mutex::default(),
            failing: Mutex::default(),
            held: watch::Sender::new(false),
            begun: watch::Sender::new(0),
            unreachable: Mutex::default(),
        });
        let hypervisor: Arc<dyn Hypervisor> = Arc::<Vms>::clone(&vms);
        let daemon = FakeDaemon::start(&folder.path().join("nesting.sock"), hypervisor, false).unwrap();
        Self { daemon, vms, folder }
    }

    /// Returns the table `[runners.autoscaler.vm_isolation]`, with the additional keys `more`.
    pub fn table(&self, more: &str) -> String {
        table(&self.folder.path().join("nesting.sock"), &self.folder.path().join("key"), more)
    }

    /// Stops all processes of all machines: the machines exist, but do not respond. Returns the number of processes.
    pub fn freeze(&self) -> usize {
        Machines::new(&self.vms.homes).freeze()
    }

    /// Returns the home directory of a machine.
    pub fn home(&self, machine: &str) -> PathBuf {
        self.vms.homes.join(machine)
    }
}

/// Returns the configuration table of a daemon on a socket, whose machines accept a key.
pub fn table(socket: &Path, key: &Path, more: &str) -> String {
    format!(
        "[runners.autoscaler.vm_isolation]\n      enabled = true\n      nesting_host = \"unix://{}\"\n      {more}\n      \
         [runners.autoscaler.vm_isolation.nesting_config]\n        image_directory = \"/images\"\n      \
         [runners.autoscaler.vm_isolation.connector_config]\n        username = \"ci\"\n        key_path = {key:?}\n        \
         timeout = \"30s\"\n",
        socket.display()
    )
}

/// Writes a private key to a file. Returns the public key.
pub fn write_key(path: &Path) -> String {
    let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap();
    std::fs::write(path, key.to_openssh(LineEnding::LF).unwrap().as_bytes()).unwrap();
    key.public_key().to_openssh().unwrap()
}

impl Vms {
    /// Sets the number of creations that will fail.
    pub fn fail(&self, creations: u32) {
        *self.failing.lock() = creations;
    }

    /// Sets the number of machines that will be created without an SSH server.
    pub fn make_unreachable(&self, machines: u32) {
        *self.unreachable.lock() = machines;
    }

    /// Sets whether creations wait.
    pub fn hold(&self, hold: bool) {
        self.held.send_replace(hold);
    }

    /// Waits until this number of creations has begun.
    pub async fn begun(&self, creations: u32) {
        let mut begun = self.begun.subscribe();
        tokio::time::timeout(LIMIT, begun.wait_for(|begun| *begun >= creations)).await.unwrap().unwrap();
    }

    /// Kills the machine with everything that runs in it, without a request to the daemon.
    pub async fn crash(&self, machine: &str) {
        let child = self.running.lock().remove(machine);
        end(child.unwrap()).await;
    }
}

/// Decrements the counter. Returns false if it was 0 already.
fn one_of(many: &Mutex<u32>) -> bool {
    let mut many = many.lock();
    let is_one = *many > 0;
    *many = many.saturating_sub(1);
    is_one
}

async fn end(mut child: Child) {
    // Closing standard input makes the machine terminate everything that runs in it.
    drop(child.stdin.take());
    child.wait().await.unwrap();
}

#[async_trait]
impl Hypervisor for Vms {
    async fn create(&self, id: &str, image: &str) -> Result<String, String> {
        self.begun.send_modify(|begun| *begun += 1);
        let _ = self.held.subscribe().wait_for(|held| !held).await;
        if image == NO_IMAGE {
            return Err("no such image".to_owned());
        }
        if one_of(&self.failing) {
            return Err("no space left".to_owned());
        }
        if one_of(&self.unreachable) {
            // No process listens on the discard port.
            return Ok("127.0.0.1:9".to_owned());
        }
        let home = self.homes.join(id);
        std::fs::create_dir_all(&home).unwrap();
        let mut command = Command::new(plugin_local());
        command.arg("instance").current_dir(&home).env("HOME", &home).env("VM_IMAGE", image);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let line = format!("{}\n", self.authorized);
        child.stdin.as_mut().unwrap().write_all(line.as_bytes()).await.unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).await.unwrap();
        let port = said.split_whitespace().next().unwrap().to_owned();
        self.running.lock().insert(id.to_owned(), child);
        Ok(format!("127.0.0.1:{port}"))
    }

    async fn delete(&self, id: &str) -> Result<(), String> {
        let child = self.running.lock().remove(id);
        if let Some(child) = child {
            // This also ends a machine that was stopped with SIGSTOP.
            Machines::new(self.homes.join(id)).end();
            end(child).await;
        }
        Ok(())
    }
}
