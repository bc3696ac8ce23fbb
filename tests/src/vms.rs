//! Virtual machines of a fake nesting daemon: each is a process with an SSH server, and a home directory of its own.

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

/// An image that there is none of.
pub const NO_IMAGE: &str = "none";

/// What makes the machines.
pub struct Vms {
    homes: PathBuf,
    /// What lets into all machines, as in an image.
    authorized: String,
    running: Mutex<BTreeMap<String, Child>>,
    /// So many creations fail.
    failing: Mutex<u32>,
    /// Creations wait while this is set.
    held: watch::Sender<bool>,
    /// Creations that have begun.
    begun: watch::Sender<u32>,
    /// So many machines are made that nobody can reach.
    unreachable: Mutex<u32>,
}

/// A daemon with its machines, on this host.
pub struct Nest {
    /// The daemon.
    pub daemon: FakeDaemon,
    /// Its machines.
    pub vms: Arc<Vms>,
    folder: tempfile::TempDir,
}

impl Nest {
    /// Starts one.
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

    /// The table `[runners.autoscaler.vm_isolation]`; `more` are more of its keys.
    pub fn table(&self, more: &str) -> String {
        table(&self.folder.path().join("nesting.sock"), &self.folder.path().join("key"), more)
    }

    /// All machines are there, and do nothing; how many processes there were.
    pub fn freeze(&self) -> usize {
        Machines::new(&self.vms.homes).freeze()
    }

    /// The home of a machine.
    pub fn home(&self, machine: &str) -> PathBuf {
        self.vms.homes.join(machine)
    }
}

/// The table of a daemon on a socket, whose machines let a key in.
pub fn table(socket: &Path, key: &Path, more: &str) -> String {
    format!(
        "[runners.autoscaler.vm_isolation]\n      enabled = true\n      nesting_host = \"unix://{}\"\n      {more}\n      \
         [runners.autoscaler.vm_isolation.nesting_config]\n        image_directory = \"/images\"\n      \
         [runners.autoscaler.vm_isolation.connector_config]\n        username = \"ci\"\n        key_path = {key:?}\n        \
         timeout = \"30s\"\n",
        socket.display()
    )
}

/// Makes a private key in a file; its public half.
pub fn write_key(path: &Path) -> String {
    let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap();
    std::fs::write(path, key.to_openssh(LineEnding::LF).unwrap().as_bytes()).unwrap();
    key.public_key().to_openssh().unwrap()
}

impl Vms {
    /// So many creations fail from now on.
    pub fn fail(&self, creations: u32) {
        *self.failing.lock() = creations;
    }

    /// So many machines have no SSH server from now on.
    pub fn make_unreachable(&self, machines: u32) {
        *self.unreachable.lock() = machines;
    }

    /// Creations wait, or wait no longer.
    pub fn hold(&self, hold: bool) {
        self.held.send_replace(hold);
    }

    /// Waits until so many creations have begun.
    pub async fn begun(&self, creations: u32) {
        let mut begun = self.begun.subscribe();
        tokio::time::timeout(LIMIT, begun.wait_for(|begun| *begun >= creations)).await.unwrap().unwrap();
    }

    /// The machine and all that runs in it is no more, and nobody was asked.
    pub async fn crash(&self, machine: &str) {
        let child = self.running.lock().remove(machine);
        end(child.unwrap()).await;
    }
}

/// Whether there was one of so many left.
fn one_of(many: &Mutex<u32>) -> bool {
    let mut many = many.lock();
    let is_one = *many > 0;
    *many = many.saturating_sub(1);
    is_one
}

async fn end(mut child: Child) {
    // Its stdin closes: the machine ends all that runs in it.
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
            // Nobody listens at the port of discard.
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
            // Also one that does nothing any more.
            Machines::new(self.homes.join(id)).end();
            end(child).await;
        }
        Ok(())
    }
}
