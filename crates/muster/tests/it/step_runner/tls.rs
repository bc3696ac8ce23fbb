//! TCP with mutual TLS: servers with `--listen`, and `proxy --connect`.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::client::{AgentConnection, Unreachable};
use muster_agent_api::result::{MAX_RESULT_BYTES, Outcome};
use muster_agent_api::step_runner::RunRequest;
use muster_agent_api::step_runner::step_result::Status as State;
use muster_agent_api::tls::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::serve::{Server, proxy_client, run};
use super::*;
use crate::process::until;

pub(super) const MARKER: &str = "step-runner is listening on TCP address ";
/// Year in which the valid certificates expire.
const EXPIRY_YEAR: i32 = 4000;

pub(super) struct Authority<'a> {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: &'a Path,
    file: PathBuf,
}

impl<'a> Authority<'a> {
    pub(super) fn new(dir: &'a Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = dir.join(format!("{name}.crt"));
        std::fs::write(&file, issuer.pem()).unwrap();
        Self { issuer, dir, file }
    }

    /// Writes a certificate for 127.0.0.1 and its key. A server or client with the returned files accepts only peers with a certificate of
    /// this authority.
    fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose, year: i32) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.extended_key_usages = vec![usage];
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let file = |suffix: &str| self.dir.join(format!("{name}.{suffix}"));
        std::fs::write(file("crt"), signed.pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        TlsFiles { certificate: file("crt"), key: file("key"), authority: self.file.clone() }
    }

    pub(super) fn server(&self) -> TlsFiles {
        self.sign("server", ExtendedKeyUsagePurpose::ServerAuth, EXPIRY_YEAR)
    }

    pub(super) fn client(&self) -> TlsFiles {
        self.sign("client", ExtendedKeyUsagePurpose::ClientAuth, EXPIRY_YEAR)
    }
}

pub(super) fn listen_flags<'a>(address: &'a str, files: &'a TlsFiles) -> [&'a str; 8] {
    let path = |path: &'a Path| path.to_str().unwrap();
    let (certificate, key, authority) = (path(&files.certificate), path(&files.key), path(&files.authority));
    ["--listen", address, "--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", authority]
}

pub(super) fn proxy(project: &Project, address: &str, files: &TlsFiles) -> Command {
    let mut command = project.command(&["proxy", "--connect", address]);
    command.arg("--tls-cert").arg(&files.certificate).arg("--tls-key").arg(&files.key);
    command.arg("--tls-ca").arg(&files.authority);
    command
}

struct TcpAgent {
    server: Server,
    address: SocketAddr,
}

impl TcpAgent {
    fn start(project: &Project, files: &TlsFiles, arguments: &[&str]) -> Self {
        let mut command = agent(project);
        command.args(listen_flags("127.0.0.1:0", files)).args(arguments);
        let (server, lines) = Server::start_with_lines(&mut command);
        let address = lines.iter().find_map(|line| line.strip_prefix(MARKER)).unwrap_or_else(|| panic!("{lines:?}"));
        Self { server, address: address.trim().parse().unwrap() }
    }

    async fn connect(&self, files: &TlsFiles) -> Result<AgentConnection, Unreachable> {
        self.connect_over(tokio::net::TcpStream::connect(self.address).await.unwrap(), files).await
    }

    async fn connect_over(
        &self,
        stream: tokio::net::TcpStream,
        files: &TlsFiles,
    ) -> Result<AgentConnection, Unreachable> {
        let connector = TlsConnector::from(Arc::new(files.client().unwrap()));
        let stream = connector.connect(ServerName::from(self.address.ip()), stream).await;
        let stream = stream.map_err(|error| Unreachable { location: String::new(), message: error.to_string() })?;
        AgentConnection::from_stream("the agent".to_owned(), stream).await
    }

    fn wait_for_refusal(&mut self, reason: &str) {
        let mut line = String::new();
        while !line.contains("connection refused") {
            line.clear();
            assert_ne!(self.server.stderr.read_line(&mut line).unwrap(), 0, "the agent ended");
        }
        assert!(line.contains(reason), "{reason} is missing in {line}");
    }
}

fn agent(project: &Project) -> Command {
    let (socket, spool) = (project.tmp().join("agent.sock"), project.tmp().join("spool"));
    let mut command = project.program(Path::new(env!("CARGO_BIN_EXE_muster")), &["agent", "serve", "--no-cgroups"]);
    command.arg("--socket").arg(socket).arg("--spool").arg(spool);
    command
}

fn request(project: &Project, list: &str) -> RunRequest {
    let work_dir = project.work().to_str().unwrap().to_owned();
    RunRequest { id: "1".to_owned(), work_dir, steps: format!("{{}}\n---\nrun:\n{list}\n"), ..RunRequest::default() }
}

#[tokio::test]
async fn log_is_resumed_over_another_tls_connection() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let (agent, files) = (TcpAgent::start(&project, &authority.server(), &[]), authority.client());
    let first = agent.connect(&files).await.unwrap();
    let list = "- {name: a, script: 'echo one; while [ ! -e end ]; do sleep 0.01; done; seq 100000'}";
    first.run(request(&project, list)).await.unwrap();
    let mut log = Vec::new();
    let mut stream = first.follow("1", 0).await.unwrap();
    while !log.ends_with(b"one\n") {
        log.extend(stream.message().await.unwrap().unwrap().data);
    }
    drop((stream, first));
    project.write("end", "");
    let second = agent.connect(&files).await.unwrap();
    let mut stream = second.follow("1", log.len() as u64).await.unwrap();
    while let Some(message) = stream.message().await.unwrap() {
        log.extend(message.data);
    }
    let numbers = (1..=100_000).map(|number| format!("{number}\n")).collect::<String>();
    assert_eq!(String::from_utf8(log).unwrap(), format!("Running step name=a\none\n{numbers}"));
    assert_eq!(second.wait("1", MAX_RESULT_BYTES).await.unwrap().outcome, Outcome::Success);
    second.close("1").await.unwrap();
}

#[tokio::test]
async fn proxy_connects_to_a_server_over_tls() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let files = authority.server();
    let mut command = project.command(&["serve"]);
    let (server, lines) = Server::start_with_lines(command.args(listen_flags("127.0.0.1:0", &files)));
    let address = lines.iter().find_map(|line| line.strip_prefix(MARKER)).unwrap().trim();
    let (mut client, mut child) = proxy_client(&mut proxy(&project, address, &authority.client())).await;
    let (log, state, _) = run(&mut client, &project, "- {name: a, step: ./echo, inputs: {text: hi}}").await;
    assert_eq!((log.as_str(), state), ("Running step name=a\nhi 1 \n", State::Success));
    // Closing standard input ends the proxy.
    drop(client);
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.unwrap();
    assert!(ended.unwrap().success());
    drop(server);
}

#[tokio::test]
async fn clients_without_a_valid_certificate_are_refused_and_logged() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let stranger = Authority::new(project.dir.path(), "stranger");
    let mut agent = TcpAgent::start(&project, &authority.server(), &[]);
    let client = ExtendedKeyUsagePurpose::ClientAuth;
    let unknown =
        TlsFiles { authority: authority.file.clone(), ..stranger.sign("stranger_client", client.clone(), EXPIRY_YEAR) };
    let expired = authority.sign("expired", client, 2020);
    let other_usage = authority.sign("other", ExtendedKeyUsagePurpose::ServerAuth, EXPIRY_YEAR);
    for (files, reason) in [(unknown, "UnknownIssuer"), (expired, "certificate expired"), (other_usage, "key usage")] {
        let error = agent.connect(&files).await.unwrap_err();
        agent.wait_for_refusal(reason);
        let result = CommandResult::of(proxy(&project, &agent.address.to_string(), &files).output().unwrap());
        // Standard input is empty, so the proxy may end before the server's answer.
        assert_eq!(result.stdout, "", "{error}");
        agent.wait_for_refusal("");
    }
    // A client without TLS, and a client with TLS that sends no certificate.
    let mut plain = TcpStream::connect(agent.address).unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    agent.wait_for_refusal("");
    let roots = {
        use tokio_rustls::rustls::pki_types::CertificateDer;
        use tokio_rustls::rustls::pki_types::pem::PemObject as _;
        let mut roots = tokio_rustls::rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&authority.file).unwrap()).unwrap();
        roots
    };
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let anonymous = tokio_rustls::rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    let name = ServerName::from(agent.address.ip());
    let connected = TlsConnector::from(Arc::new(anonymous)).connect(name, stream).await;
    agent.wait_for_refusal("peer sent no certificates");
    drop(connected);
    agent.connect(&authority.client()).await.unwrap().check().await.unwrap();
}

#[test]
fn proxy_reports_why_it_cannot_connect() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let stranger = Authority::new(project.dir.path(), "stranger");
    let agent = TcpAgent::start(&project, &authority.server(), &[]);
    let (address, files) = (agent.address.to_string(), authority.client());
    let fails = |address: &str, files: &TlsFiles, texts: &[&str]| {
        let mut child = proxy(&project, address, files).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Standard input stays open, so only the server ends the proxy.
        let input = child.stdin.take();
        let result = CommandResult::of(child.wait_with_output().unwrap());
        drop(input);
        result.check(1, texts);
    };
    let other_server = TlsFiles { authority: stranger.file.clone(), ..files.clone() };
    fails(&address, &other_server, &["Error: dialing: dial tcp", "UnknownIssuer; set --tls-ca"]);
    fails(&address.replace("127.0.0.1", "localhost"), &files, &["not valid for name", "; connect to a name"]);
    let other_client = TlsFiles {
        authority: authority.file.clone(),
        ..stranger.sign("stranger_client", ExtendedKeyUsagePurpose::ClientAuth, EXPIRY_YEAR)
    };
    fails(&address, &other_client, &["the server ended the connection", "--tls-client-ca"]);
    fails("127.0.0.1", &files, &["the address has no port; name the address as HOST:PORT"]);
    let missing = TlsFiles { key: project.tmp().join("missing.key"), ..files.clone() };
    fails(&address, &missing, &["missing.key for TLS", "--tls-key"]);
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let plain_address = plain.local_addr().unwrap().to_string();
    let answers = std::thread::spawn(move || plain.accept().unwrap().0.write_all(b"not TLS, but text\n").unwrap());
    fails(&plain_address, &files, &["check that `serve` listens on this address with TLS"]);
    answers.join().unwrap();
    drop(agent);
    fails(&address, &files, &["Connection refused", "; start `serve` with this --listen address"]);
    project.run(&["proxy", "--connect", &address]).check(1, &["--tls-cert", "--tls-key", "--tls-ca"]);
    project.run(&["proxy", "--tls-key", "k"]).check(1, &["--connect"]);
}

#[tokio::test]
async fn clients_that_send_nothing_block_no_other_client() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let agent = TcpAgent::start(&project, &authority.server(), &[]);
    let mut idle: Vec<_> = (0..100).map(|_| TcpStream::connect(agent.address).unwrap()).collect();
    let connection = agent.connect(&authority.client()).await.unwrap();
    connection.run(request(&project, "- {name: a, script: echo hi}")).await.unwrap();
    assert_eq!(connection.wait("1", MAX_RESULT_BYTES).await.unwrap().outcome, Outcome::Success);
    // The agent accepted the client by closing the oldest idle connections. The others are still open, so the client did not wait for the
    // handshake timeout of 10 s.
    let is_closed = |stream: &mut TcpStream| match stream.read(&mut [0]) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
        ended => ended.unwrap_or(0) == 0,
    };
    assert!(is_closed(&mut idle[0]));
    idle[50].set_nonblocking(true).unwrap();
    assert!(!is_closed(&mut idle[50]));
}

#[tokio::test]
async fn flood_of_handshakes_does_not_displace_other_addresses() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let agent = TcpAgent::start(&project, &authority.server(), &[]);
    let connected = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    let flood = async || {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        socket.connect(agent.address).await.unwrap()
    };
    let mut flooding = Vec::new();
    for _ in 0..100 {
        flooding.push(flood().await);
    }
    // The handshake of `connected` is the oldest, but for each handshake over the limit of 64, the agent must end a handshake of the flood.
    for closed in &mut flooding[..30] {
        let mut byte = [0];
        let read = tokio::io::AsyncReadExt::read(closed, &mut byte);
        assert_eq!(tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap_or(0), 0);
    }
    let connection = agent.connect_over(connected, &authority.client()).await.unwrap();
    assert!(connection.identity().has_extension);
}

#[tokio::test]
async fn client_without_a_handshake_does_not_keep_an_agent_running() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let mut agent = TcpAgent::start(&project, &authority.server(), &["--idle-timeout", "1"]);
    let idle = TcpStream::connect(agent.address).unwrap();
    let status =
        until(async || agent.server.child.try_wait().unwrap().ok_or_else(|| "the agent runs".to_owned())).await;
    assert!(status.success());
    drop(idle);
}

#[test]
fn agent_does_not_start_with_invalid_tls_options() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let files = authority.server();
    let start = |address: &str, files: &TlsFiles| {
        CommandResult::of(agent(&project).args(listen_flags(address, files)).output().unwrap())
    };
    let empty = TlsFiles { certificate: project.tmp().join("empty.crt"), ..files.clone() };
    std::fs::write(&empty.certificate, "").unwrap();
    start("127.0.0.1:0", &empty).check(1, &["empty.crt for TLS: it contains no certificate"]);
    let other = authority.sign("other", ExtendedKeyUsagePurpose::ServerAuth, EXPIRY_YEAR);
    start("127.0.0.1:0", &TlsFiles { key: other.key, ..files.clone() }).check(1, &["server.crt for TLS"]);
    let missing = TlsFiles { authority: project.tmp().join("missing.crt"), ..files.clone() };
    start("127.0.0.1:0", &missing).check(1, &["missing.crt for TLS"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    start(&taken.local_addr().unwrap().to_string(), &files).check(1, &["failed to listen on 127.0.0.1:", "HOST:PORT"]);
    start("nowhere", &files).check(1, &["failed to listen on nowhere"]);
    let [option, address, ..] = listen_flags("127.0.0.1:0", &files);
    let incomplete = CommandResult::of(agent(&project).args([option, address]).output().unwrap());
    incomplete.check(2, &["--tls-cert", "--tls-key", "--tls-client-ca"]);
    project.run(&["serve", option, address]).check(1, &["--tls-cert", "--tls-key", "--tls-client-ca"]);
    assert!(!project.tmp().join("spool").exists(), "the agent must not create its spool");
}
