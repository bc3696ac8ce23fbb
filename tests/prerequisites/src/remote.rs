//! A Docker Engine in the role of another machine. Clients connect to it over TCP with TLS, or over SSH.

#![expect(clippy::expect_used, reason = "a test whose engine cannot be prepared fails")]

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

use crate::docker::{DockerEngine, isolate};
use crate::{SSHD, missing, program, sshd};

/// Starts the engine with its own network and its own directory for temporary files. In that directory, it shares with
/// this machine only the engine's directory, which contains the socket and the keys.
const MACHINE: &str = r#"set -e; dir=$1 temporary=$2; shift 2
ip link set lo up
mount --bind "$dir" /mnt; mount -t tmpfs tmpfs "$temporary"; mkdir -p "$dir"; mount --move /mnt "$dir"
mkdir -p "$dir/data"; mount -t tmpfs tmpfs "$dir/data"
exec "$@""#;
const TLS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2376);
const SSH: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 22);
/// Name of the machine in `known_hosts`.
const NAME: &str = "engine.example";

/// A Docker Engine with its own network and files, and an SSH server beside it.
#[derive(Debug)]
pub struct RemoteEngine {
    /// The engine. Its socket and [`DockerEngine::call`] are for the test itself, not for the tested program.
    pub engine: DockerEngine,
    /// Ends with the namespaces of the engine.
    _sshd: Child,
}

impl RemoteEngine {
    /// Starts the engine. Returns `None` if it cannot run here.
    ///
    /// # Panics
    /// If the engine's directory cannot be created, or the SSH server does not start.
    #[track_caller]
    #[must_use]
    pub fn start() -> Option<Self> {
        if !sshd() || !program("docker", "--version", "docker.io") {
            return None;
        }
        let started = DockerEngine::start_dockerd_in("KILL", |dir| {
            for name in ["server", "client", "ssh"] {
                std::fs::create_dir(dir.join(name)).expect("failed to create a directory of the engine");
            }
            certificates(&dir.join("server"), &dir.join("client"));
            let mut command: Vec<OsString> = isolate(MACHINE).map(Into::into).into();
            command.extend(["sh".into(), dir.into(), std::env::temp_dir().into_os_string()]);
            let mut arguments: Vec<OsString> =
                vec!["--host".into(), format!("tcp://{TLS}").into(), "--tlsverify".into()];
            for (option, name) in [("--tlscacert", "ca.pem"), ("--tlscert", "cert.pem"), ("--tlskey", "key.pem")] {
                arguments.extend([option.into(), dir.join("server").join(name).into()]);
            }
            (command, arguments)
        });
        let engine = started.map_err(missing).ok()?;
        let server = start_sshd(&engine);
        Some(Self { engine, _sshd: server })
    }

    /// Returns the TLS address in the network of the engine.
    #[must_use]
    pub fn tls_address(&self) -> SocketAddr {
        TLS
    }

    /// Returns the address of the SSH server in the network of the engine.
    #[must_use]
    pub fn ssh_address(&self) -> SocketAddr {
        SSH
    }

    /// Returns the directory with the certificates of a client.
    #[must_use]
    pub fn client_certificates(&self) -> PathBuf {
        self.engine.dir().join("client")
    }

    /// Returns the URL for processes whose `PATH` begins with the directory of [`RemoteEngine::create_ssh_client`].
    #[must_use]
    pub fn ssh_url(&self) -> String {
        format!("ssh://root@{NAME}")
    }

    /// Creates a program `ssh` in `directory` that connects to `address`, with the host key and a key to log in.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn create_ssh_client(&self, directory: &Path, address: SocketAddr) {
        let keys = self.engine.dir().join("ssh");
        let config = directory.join("ssh_config");
        let text = format!(
            "Host {NAME}\nHostName {}\nPort {}\nHostKeyAlias {NAME}\nIdentityFile {keys}/user\nIdentitiesOnly yes\n\
             UserKnownHostsFile {keys}/known_hosts\nStrictHostKeyChecking yes\n",
            address.ip(),
            address.port(),
            keys = keys.display()
        );
        std::fs::write(&config, text).expect("failed to write the settings of ssh");
        let client = directory.join("ssh");
        let script = format!("#!/bin/sh\nexec /usr/bin/ssh -F '{}' \"$@\"\n", config.display());
        crate::create_program(&client, script);
    }
}

/// Writes `ca.pem`, `cert.pem` and `key.pem` for an engine at 127.0.0.1 and for its client. Both trust the same
/// authority.
///
/// # Panics
/// If a file cannot be written.
pub fn certificates(engine: &Path, client: &Path) {
    const FAILED: &str = "failed to create a certificate";
    let mut authority = CertificateParams::new(Vec::new()).expect(FAILED);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect(FAILED)).expect(FAILED);
    for (dir, usage) in [(engine, ExtendedKeyUsagePurpose::ServerAuth), (client, ExtendedKeyUsagePurpose::ClientAuth)] {
        let key = KeyPair::generate().expect(FAILED);
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect(FAILED);
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &authority).expect(FAILED);
        for (name, text) in
            [("ca.pem", authority.pem()), ("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem())]
        {
            std::fs::write(dir.join(name), text).expect(FAILED);
        }
    }
}

/// Starts an SSH server in the namespaces of the engine, and creates its host key and the user key.
///
/// Its sessions have `DOCKER_HOST` set to the engine's socket.
fn start_sshd(engine: &DockerEngine) -> Child {
    const FAILED: &str = "failed to prepare the SSH server";
    let dir = engine.dir().join("ssh");
    let path = |name: &str| dir.join(name).display().to_string();
    for key in ["host", "user"] {
        let status = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).status();
        assert!(status.expect(FAILED).success(), "{FAILED}");
    }
    let public = |key: &str| std::fs::read_to_string(path(&format!("{key}.pub"))).expect(FAILED);
    std::fs::write(path("known_hosts"), format!("{NAME} {}", public("host"))).expect(FAILED);
    std::fs::write(path("authorized_keys"), public("user")).expect(FAILED);
    let config = format!(
        "ListenAddress {SSH}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n\
         SetEnv DOCKER_HOST={}\n",
        path("host"),
        path("authorized_keys"),
        engine.url()
    );
    std::fs::write(path("sshd_config"), config).expect(FAILED);
    let mut command = Command::new("nsenter");
    command.arg("--target").arg(engine.pid().to_string()).args(["--mount", "--net", "--pid", "--", SSHD, "-D", "-e"]);
    command.arg("-f").arg(path("sshd_config")).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut server = command.spawn().expect(FAILED);
    let stderr = server.stderr.take().expect(FAILED);
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let log: Vec<String> = lines.by_ref().take_while(|line| !line.contains("Server listening on")).collect();
    std::thread::spawn(move || lines.for_each(drop));
    assert!(engine.connect(SSH).is_ok(), "{FAILED}: {log:?}");
    server
}
