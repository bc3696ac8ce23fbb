//! Connections to an engine through a command, TCP, TLS and SSH.

use std::path::Path;

use muster_test_prerequisites::{DockerEngine as TestEngine, certificates};

use super::fake::{Answer, FakeEngine};
use super::*;

fn settings(host: String) -> DockerEngine {
    DockerEngine { host, ..DockerEngine::default() }
}

/// Returns an unused port, because an engine does not report the port that it chose.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn engine_is_reached_over_tls_only_with_the_right_certificates() {
    let dirs = tempfile::tempdir().unwrap();
    let (engine_dir, client_dir, other_dir) =
        (dirs.path().join("engine"), dirs.path().join("client"), dirs.path().join("other"));
    for dir in [&engine_dir, &client_dir, &other_dir] {
        std::fs::create_dir(dir).unwrap();
    }
    certificates(&engine_dir, &client_dir);
    certificates(&other_dir, &other_dir);
    let address = format!("tcp://127.0.0.1:{}", free_port());
    let file = |name: &str| engine_dir.join(name).to_string_lossy().into_owned();
    let (ca, cert, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
    let arguments = ["--host", &address, "--tlsverify", "--tlscacert", &ca, "--tlscert", &cert, "--tlskey", &key];
    let Some(_engine) = TestEngine::start(&arguments) else { return };

    let with = |dir: &Path, tls_verify| DockerEngine {
        host: address.clone(),
        cert_path: dir.to_string_lossy().into_owned(),
        tls_verify,
    };
    connect(&with(&client_dir, true)).await.unwrap();
    connect(&with(&client_dir, false)).await.unwrap();
    let untrusted = connect(&with(&other_dir, true)).await.unwrap_err().to_string();
    assert!(untrusted.contains("failed to reach the Docker engine at tcp://127.0.0.1:"), "{untrusted}");
    assert!(untrusted.contains("invalid peer certificate"), "{untrusted}");
    connect(&with(&other_dir, false)).await.unwrap_err();
    connect(&settings(address.clone())).await.unwrap_err();
}

#[tokio::test]
async fn engine_is_reached_over_tcp() {
    let address = format!("tcp://127.0.0.1:{}", free_port());
    let Some(_engine) = TestEngine::start(&["--host", &address, "--tls=false"]) else { return };
    connect(&settings(address)).await.unwrap();
}

#[tokio::test]
async fn engine_is_reached_through_a_command() {
    let Some(engine) = TestEngine::start(&[]) else { return };
    let through = |command: &[&str]| {
        let command = command.iter().map(Into::into).collect();
        transport::client(Connector::new(Endpoint::Command(command)), CALL_TIMEOUT_S).unwrap()
    };
    let client = through(&["docker", "--host", &engine.url(), "system", "dial-stdio"]);
    let version = client.0.version().await.unwrap();
    assert_eq!(version.os.as_deref(), Some("linux"));

    let refused = through(&["sh", "-c", "echo 'Permission denied (publickey).' >&2; exit 255"]);
    let error = reason(&refused.0.version().await.unwrap_err());
    assert!(error.contains("Permission denied (publickey)."), "{error}");
    let missing = reason(&through(&["muster-test-no-such-program"]).0.version().await.unwrap_err());
    assert!(missing.contains("failed to run muster-test-no-such-program"), "{missing}");
}

#[tokio::test]
async fn engine_is_reached_over_ssh() {
    if !muster_test_prerequisites::sshd() || !muster_test_prerequisites::program("docker", "--version", "docker.io") {
        return;
    }
    let Some(engine) = TestEngine::start(&[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    for key in ["host", "user"] {
        let arguments = ["-q", "-t", "ed25519", "-N", "", "-f", &path(key)];
        assert!(std::process::Command::new("ssh-keygen").args(arguments).status().unwrap().success());
    }
    let write = |name: &str, text: String| std::fs::write(path(name), text).unwrap();
    let public = |key: &str| std::fs::read_to_string(path(&format!("{key}.pub"))).unwrap();
    write("known_hosts", format!("engine.example {}", public("host")));
    // The SSH server checks the requested command, and then runs a command for the separate socket of the test engine.
    let check = r#"test \"$SSH_ORIGINAL_COMMAND\" = 'docker system dial-stdio'"#;
    let command = format!("{check} && exec docker --host {} system dial-stdio", engine.url());
    write("authorized_keys", format!("command=\"{command}\" {}", public("user")));
    write(
        "sshd_config",
        format!(
            "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n",
            path("host"),
            path("authorized_keys")
        ),
    );
    write(
        "ssh_config",
        format!(
            "ProxyCommand /usr/sbin/sshd -i -f {}\nIdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\nStrictHostKeyChecking yes\n",
            path("sshd_config"),
            path("user"),
            path("known_hosts")
        ),
    );
    let version = async |host: &str| {
        let settings = settings(format!("ssh://root@{host}"));
        let (Endpoint::Command(mut command), _) = Endpoint::new(&settings, &Variables::default()).unwrap() else {
            panic!("{host} is not reached over SSH");
        };
        command.splice(1..1, ["-F".into(), path("ssh_config").into()]);
        let client = transport::client(Connector::new(Endpoint::Command(command)), CALL_TIMEOUT_S).unwrap();
        client.0.version().await.map_err(|error| reason(&error))
    };
    assert_eq!(version("engine.example").await.unwrap().os.as_deref(), Some("linux"));
    let unknown_host = version("other.example").await.unwrap_err();
    assert!(unknown_host.contains("Host key verification failed"), "{unknown_host}");
}

#[tokio::test]
async fn error_names_the_unusable_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let settings = DockerEngine {
        host: "tcp://127.0.0.1:1".to_owned(),
        cert_path: dir.path().to_string_lossy().into_owned(),
        tls_verify: true,
    };
    let message = async || connect(&settings).await.unwrap_err().to_string();
    assert!(message().await.contains("it has none of the files ca.pem, cert.pem and key.pem"));
    std::fs::write(dir.path().join("ca.pem"), "not a certificate").unwrap();
    assert!(message().await.contains("ca.pem for TLS to the Docker engine: it contains no certificate"));
    certificates(dir.path(), dir.path());
    std::fs::remove_file(dir.path().join("key.pem")).unwrap();
    assert!(message().await.contains("key.pem is missing beside it"));
}

#[tokio::test]
async fn platform_of_an_engine_is_checked_once_and_its_reachability_each_time() {
    let engine = FakeEngine::start(|call| match call {
        "GET /version" => Some(Answer::json(200, r#"{"Os":"linux"}"#)),
        _ => Some(Answer::json(200, "OK")),
    });
    let settings = settings(engine.host.clone());
    for _ in 0..3 {
        connect(&settings).await.unwrap();
    }
    assert_eq!(engine.calls(), ["GET /version", "GET /_ping", "GET /_ping"]);
    drop(engine);
    let error = connect(&settings).await.unwrap_err().to_string();
    assert!(error.contains("failed to reach the Docker engine at unix://"), "{error}");
}

#[test]
fn engine_that_cannot_run_the_agent_is_refused() {
    let check = |os: &str, architecture: &str| {
        check_platform("tcp://engine".to_owned(), Some(os.to_owned()), Some(architecture.to_owned()))
    };
    check("linux", go_architecture()).unwrap();
    check("linux", "").unwrap();
    check_platform(String::new(), None, None).unwrap();
    assert!(check("windows", go_architecture()).unwrap_err().to_string().contains("runs windows containers"));
    let error = check("linux", "riscv64").unwrap_err().to_string();
    assert!(error.contains("tcp://engine runs on riscv64, and this agent is for"), "{error}");
}
