//! Runs Debian's Docker Engine.

#![expect(clippy::expect_used, reason = "a test whose engine cannot be prepared fails")]

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::missing;

const SOCKET: &str = "docker.sock";
/// Runs a program until the input of the script ends, then sends the signal to the program and removes its directory.
///
/// The input also ends if the test is killed. Each line of input restarts the program as a restart of the machine
/// would.
const SUPERVISE: &str = r#"dir=$1 signal=$2; shift 2
"$@" & exec 2>/dev/null
while read -r _; do kill -s KILL $!; wait $!; rm -rf "$dir/exec" "$dir/pid"; "$@" & done
kill -s "$signal" $!; wait $!; rm -rf "$dir""#;
/// Enables the loopback interface, and runs a program.
const ONCE: &str = "ip link set lo up; exec \"$0\" \"$@\"";
/// Enables the loopback interface, runs a program, and starts it again whenever it ends.
const REPEATEDLY: &str = "ip link set lo up; while :; do \"$0\" \"$@\"; done";

/// Returns a command that runs a script in a separate network. The caller appends the arguments of the script.
///
/// All processes of the script end with the command.
pub(crate) const fn isolate(script: &str) -> [&str; 10] {
    ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", script]
}

const NO_DOCKER: &str = "dockerd cannot run here (it needs root and Debian's package docker.io)";

/// A running Docker Engine, or Podman in its place ([`crate::podman`]), with its own data. Dropping this value ends the
/// process.
#[derive(Debug)]
pub struct DockerEngine {
    supervisor: Child,
    dir: PathBuf,
    /// Path of the socket, relative to `dir`.
    socket: &'static str,
}

impl Drop for DockerEngine {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

impl DockerEngine {
    /// Starts an engine without the default bridge. `arguments` are added to its command line.
    ///
    /// Returns `None` if an engine cannot run here.
    ///
    /// # Panics
    /// If no temporary directory can be created.
    #[track_caller]
    #[must_use]
    pub fn start(arguments: &[&str]) -> Option<Self> {
        let local = ["--bridge=none", "--iptables=false", "--storage-driver=vfs"];
        Self::start_dockerd("TERM", &[], &[&local, arguments].concat()).map_err(missing).ok()
    }

    /// Returns an engine that the tests of this process share, or `None` if an engine cannot run here.
    ///
    /// The engine has a separate network with the default bridge, which other engines and tests cannot reach.
    ///
    /// # Panics
    /// If no temporary directory can be created.
    #[track_caller]
    #[must_use]
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Result<DockerEngine, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Self::start_dockerd("KILL", &isolate(ONCE), &[]));
        shared.as_ref().map_err(missing).ok()
    }

    /// Starts an engine like [`DockerEngine::shared`], but for this caller only. After [`DockerEngine::crash`], the
    /// engine starts again and its containers have kept running (`live-restore`).
    ///
    /// Returns `None` if an engine cannot run here.
    ///
    /// # Panics
    /// If no temporary directory can be created.
    #[track_caller]
    #[must_use]
    pub fn isolated() -> Option<Self> {
        Self::start_dockerd("KILL", &isolate(REPEATEDLY), &["--live-restore"]).map_err(missing).ok()
    }

    /// Kills the process of an isolated engine, which is then started again. Returns whether the process existed.
    #[must_use]
    pub fn crash(&self) -> bool {
        let id = self.process_id("dockerd");
        id.is_some_and(|id| Command::new("kill").arg("-KILL").arg(id).status().is_ok_and(|status| status.success()))
    }

    /// Returns the process ID of the engine, whose network namespace contains the engine's bridge.
    ///
    /// # Panics
    /// If the process does not exist.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let pid = self.process_id("dockerd").and_then(|pid| pid.to_str()?.parse().ok());
        pid.expect("the process of the engine does not exist")
    }

    /// Opens a port in the network of the engine's containers.
    ///
    /// # Errors
    /// If the port cannot be opened.
    ///
    /// # Panics
    /// If the engine does not run.
    pub fn listen(&self, address: IpAddr) -> std::io::Result<TcpListener> {
        self.in_network(move || TcpListener::bind((address, 0)))
    }

    /// Connects to an address in the network of the engine's containers.
    ///
    /// # Errors
    /// If the connection fails.
    ///
    /// # Panics
    /// If the engine does not run.
    pub fn connect(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        self.in_network(move || TcpStream::connect(address))
    }

    /// Opens a socket in the network of the engine's containers. The socket belongs to this network in all threads.
    fn in_network<T: Send + 'static>(
        &self,
        open: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        let namespace = std::fs::File::open(format!("/proc/{}/ns/net", self.pid()))?;
        // Only this new thread changes to the network of the engine.
        let opening = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            open()
        });
        opening.join().expect("the thread has panicked")
    }

    /// Returns the address of the engine's machine on the default bridge, which containers can reach.
    ///
    /// # Panics
    /// If the engine has no default bridge.
    #[must_use]
    pub fn gateway(&self) -> IpAddr {
        let mut command = self.command_in_network("ip");
        let output =
            command.args(["-4", "-o", "address", "show", "dev", "docker0"]).output().expect("failed to run ip");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let address = text.split_whitespace().find_map(|word| word.split_once('/')?.0.parse().ok());
        address.expect("the engine has no default bridge")
    }

    /// Returns a command that runs the program in the network of the engine's containers.
    ///
    /// # Panics
    /// If the engine does not run.
    #[must_use]
    pub fn command_in_network(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid())).arg("--").arg(program);
        command
    }

    /// Returns the ID of the engine's process that runs `program`, or `None`.
    pub(crate) fn process_id(&self, program: &str) -> Option<OsString> {
        let data = self.dir.join("data");
        let is_engine = |process: &Path| {
            let arguments = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let mut arguments = arguments.split(|byte| *byte == 0);
            arguments.next() == Some(program.as_bytes())
                && arguments.any(|argument| argument == data.as_os_str().as_encoded_bytes())
        };
        let mut processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        processes.find(|process| is_engine(&process.path())).map(|process| process.file_name())
    }

    /// Kills the engine with all containers, as if its machine lost power, and starts it again. Does not wait until it
    /// answers.
    ///
    /// # Panics
    /// If the engine's supervisor has ended.
    pub fn restart(&mut self) {
        let input = self.supervisor.stdin.as_mut().expect("the supervisor of the engine has no input");
        input.write_all(b"restart\n").expect("the supervisor of the engine has ended");
    }

    fn start_dockerd(signal: &str, wrapper: &[&str], arguments: &[&str]) -> Result<Self, String> {
        Self::start_dockerd_in(signal, |_| {
            (wrapper.iter().map(Into::into).collect(), arguments.iter().map(Into::into).collect())
        })
    }

    /// Starts `dockerd`. `describe` gets the directory of the engine, and returns the wrapper that `dockerd` is
    /// appended to (empty: none), and additional arguments of `dockerd`. `signal` is the signal that ends the engine.
    pub(crate) fn start_dockerd_in(
        signal: &str,
        describe: impl FnOnce(&Path) -> (Vec<OsString>, Vec<OsString>),
    ) -> Result<Self, String> {
        let started = Self::run(signal, SOCKET, "API listen on", |dir| {
            let (mut command, arguments) = describe(dir);
            command.push("dockerd".into());
            for (option, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
                command.extend([option.into(), dir.join(name).into_os_string()]);
            }
            command.extend(["--host".into(), format!("unix://{}", dir.join(SOCKET).display()).into()]);
            command.extend(arguments);
            (command, Vec::new())
        });
        started.map_err(|error| format!("{NO_DOCKER}: {error}"))
    }

    /// Starts the engine, and waits until it writes `ready` to its log. The error is the last line of the log.
    ///
    /// `describe` gets the directory of the engine, and returns a pair: the command that runs the engine, and
    /// additional environment variables. `signal` is the signal that ends the engine.
    pub(crate) fn run(
        signal: &str,
        socket: &'static str,
        ready: &str,
        describe: impl FnOnce(&Path) -> (Vec<OsString>, Vec<(&'static str, OsString)>),
    ) -> Result<Self, String> {
        let dir = tempfile::tempdir().expect("failed to create a directory for the engine").keep();
        let (program, env) = describe(&dir);
        let mut command = Command::new("sh");
        command.args(["-c", SUPERVISE, "sh"]).arg(&dir).arg(signal).args(program).envs(env);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut supervisor = command.spawn().expect("failed to run sh");
        let stderr = supervisor.stderr.take().expect("the engine has no pipe for its log");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut last = String::new();
        let is_ready = lines.any(|line| {
            last = line;
            last.contains(ready)
        });
        std::thread::spawn(move || lines.for_each(drop));
        let engine = Self { supervisor, dir, socket };
        if is_ready { Ok(engine) } else { Err(last) }
    }

    /// Returns the path of the engine's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join(self.socket)
    }

    /// Returns the directory of the engine.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the URL of the engine.
    #[must_use]
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Calls the engine's API, and returns the status and the body of the answer.
    ///
    /// # Panics
    /// If the engine does not answer.
    #[must_use]
    pub fn call(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        self.try_call(method, path, body).expect("the engine does not answer")
    }

    /// Calls the engine's API, and returns the status and the body of the answer.
    ///
    /// # Errors
    /// If the engine does not answer.
    pub fn try_call(&self, method: &str, path: &str, body: &[u8]) -> std::io::Result<(u16, String)> {
        let mut stream = UnixStream::connect(self.socket())?;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.unwrap_or_default(), body.to_owned()))
    }
}
