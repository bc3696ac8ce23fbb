//! Starts servers of object stores. `scripts/test` installs them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::variable;

/// Maximum time between two lines that a starting server prints. Several servers may start at once on a slow machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Account of [`azurite`].
pub const AZURITE_ACCOUNT: &str = "muster";
/// Key of [`AZURITE_ACCOUNT`].
pub const AZURITE_KEY: &str = "bXVzdGVy";

/// A running server. It is killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Host and port.
    pub address: String,
}

impl Server {
    /// Starts a program that prints its address.
    fn start(mut command: Command) -> Self {
        let name = format!("{command:?}");
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{name}: {error}"));
        let (lines, printed) = mpsc::channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            child.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        for output in outputs.into_iter().flatten() {
            let lines = lines.clone();
            // The thread reads to the end, because a full pipe would block the server.
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = lines.send(line);
                }
            });
        }
        drop(lines);
        let mut server = Self { child, address: String::new() };
        let mut log = String::new();
        while server.address.is_empty() {
            let line = printed.recv_timeout(START_TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("{name} does not print its address: {log}"));
            server.address = address(&line).unwrap_or_default();
            log.push_str(&line);
            log.push('\n');
        }
        server
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the address with a port that a line contains. `None` means that the line has no such address.
fn address(line: &str) -> Option<String> {
    let after = line.split_once("127.0.0.1:")?.1;
    let port: String = after.chars().take_while(char::is_ascii_digit).collect();
    (!port.is_empty() && port != "0").then(|| format!("127.0.0.1:{port}"))
}

fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // The servers must not use the proxies of the user who runs the tests.
    command.env_remove("HTTP_PROXY").env_remove("http_proxy");
    command
}

/// Returns a program of the Python environment that has moto and the libraries of Amazon and Google.
#[track_caller]
#[must_use]
pub fn python_program(name: &str) -> Option<Command> {
    let environment = variable("MUSTER_TEST_OBJECT_STORES", "a Python environment with moto and google-cloud-storage")?;
    Some(command(Path::new(&environment).join("bin").join(name)))
}

/// Starts moto, an emulator of Amazon S3, of AWS roles and of the metadata service of EC2. It does not verify signatures.
#[track_caller]
#[must_use]
pub fn moto() -> Option<Server> {
    let mut command = python_program("moto_server")?;
    command.args(["-H", "127.0.0.1", "-p", "0"]);
    Some(Server::start(command))
}

/// Starts Azurite, Microsoft's emulator of Azure Blob Storage, which verifies signatures. It has [`AZURITE_ACCOUNT`].
#[track_caller]
#[must_use]
pub fn azurite() -> Option<Server> {
    let mut command = command(variable("MUSTER_TEST_AZURITE", "azurite-blob, the emulator of Azure Blob Storage")?);
    command.args(["--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]);
    command.env("AZURITE_ACCOUNTS", format!("{AZURITE_ACCOUNT}:{AZURITE_KEY}"));
    Some(Server::start(command))
}
