//! Starts servers of object stores. `scripts/test` installs them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpStream;
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
/// Bucket of [`fake_gcs`].
pub const GCS_BUCKET: &str = "caches";

/// A running server. Dropping this value kills the server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Host and port.
    pub address: String,
}

impl Server {
    fn start(command: Command) -> Self {
        Self::start_with(command, |_, line| address(line))
    }

    /// `find_address` returns the address, from the program's process ID and a line that it has printed.
    fn start_with(mut command: Command, find_address: impl Fn(u32, &str) -> Option<String>) -> Self {
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
            // A full pipe would block the server.
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
            server.address = find_address(server.child.id(), &line).unwrap_or_default();
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

fn address(line: &str) -> Option<String> {
    let after = line.split_once("127.0.0.1:")?.1;
    let port: String = after.chars().take_while(char::is_ascii_digit).collect();
    (!port.is_empty() && port != "0").then(|| format!("127.0.0.1:{port}"))
}

fn listening_address(pid: u32) -> Option<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let sockets: Vec<_> = files.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, _, _, _, _, _, inode, ..] = fields.as_slice() else { return None };
        let is_listening = *state == "0A" && sockets.contains(&format!("socket:[{inode}]").into());
        let port = u16::from_str_radix(local.split_once(':')?.1, 16).ok()?;
        is_listening.then(|| format!("127.0.0.1:{port}"))
    })
}

fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
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

/// Starts moto, an emulator of Amazon S3, of AWS roles and of the metadata service of EC2. It does not verify
/// signatures.
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

/// Starts fake-gcs-server, an emulator of Google Cloud Storage, which does not verify signatures. It has
/// [`GCS_BUCKET`].
///
/// # Panics
/// If the server does not start, or has no bucket.
#[track_caller]
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails if its server does not start")]
pub fn fake_gcs() -> Option<Server> {
    let mut command =
        command(variable("MUSTER_TEST_FAKE_GCS", "fake-gcs-server, an emulator of Google Cloud Storage")?);
    let data = tempfile::tempdir().expect("failed to create a directory for the server");
    // The server creates a bucket for each directory when it starts.
    std::fs::create_dir(data.path().join(GCS_BUCKET)).expect("failed to create the bucket's directory");
    command
        .args(["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", "0", "-data"])
        .arg(data.path());
    // The server prints the port 0 instead of the chosen port.
    let server =
        Server::start_with(command, |pid, line| line.contains("server started").then(|| listening_address(pid))?);
    // Only for requests to its public host does the server interpret paths as Google does.
    let body = format!(r#"{{"publicHost": "{}"}}"#, server.address);
    let answer = call(&server.address, "PUT", "/_internal/config", &body).expect("the server does not answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Some(server)
}

fn call(address: &str, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
