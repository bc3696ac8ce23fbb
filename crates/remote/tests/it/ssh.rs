//! SSH sessions, including the cases C of docs/spec/fleeting.md, section 9.

use std::time::Duration;

use muster_remote::{
    DialError, Exit, KnownHosts, RemoteCommand, RunError, Session, Target, dial, dial_new, dial_through,
};
use russh::keys::ssh_key::{LineEnding, certificate};
use tokio::net::{TcpListener, TcpStream};

use crate::ssh_server::{AcceptedCredentials, Server, key, target};

fn with_password(mut target: Target, password: &str) -> Target {
    target.password = password.to_owned();
    target
}

async fn log_in(target: &Target) -> Result<Box<dyn Session>, DialError> {
    dial(target, &KnownHosts::default()).await
}

async fn password_server() -> (Server, Target) {
    let server =
        Server::start(AcceptedCredentials { password: Some("secret".to_owned()), ..AcceptedCredentials::default() })
            .await;
    let target = with_password(server.target(), "secret");
    (server, target)
}

#[tokio::test]
async fn c03_key_is_the_only_offered_credential() {
    let login = key();
    let server = Server::start(AcceptedCredentials {
        key: Some(login.public_key().clone()),
        password: Some("secret".to_owned()),
        ..AcceptedCredentials::default()
    })
    .await;
    let mut target = with_password(server.target(), "secret");
    target.key = login.to_openssh(LineEnding::LF).unwrap().as_bytes().to_vec();
    log_in(&target).await.unwrap();
    target.key = key().to_openssh(LineEnding::LF).unwrap().as_bytes().to_vec();
    let error = log_in(&target).await.err().unwrap();
    assert!(matches!(error, DialError::Auth { method: "key", .. }), "the password must not be tried: {error}");
}

#[tokio::test]
async fn c04_wrong_password_is_reported_after_one_attempt() {
    let (server, target) = password_server().await;
    log_in(&target).await.unwrap();
    let before = *server.tries.borrow();
    let mut wrong = with_password(server.target(), "wrong");
    wrong.timeout = Duration::from_secs(3600);
    let error = log_in(&wrong).await.err().unwrap();
    assert!(matches!(error, DialError::Auth { method: "password", .. }), "{error}");
    assert_eq!(*server.tries.borrow(), before + 1, "there must be only one attempt");
}

#[tokio::test]
async fn connects_through_the_session_of_another_machine() {
    let (instance, outer) = password_server().await;
    let inner =
        Server::start(AcceptedCredentials { password: Some("inner".to_owned()), ..AcceptedCredentials::default() })
            .await;
    let via = log_in(&outer).await.unwrap();
    let through = async |target: &Target, hosts: &KnownHosts, grace| dial_through(&*via, target, hosts, grace).await;
    let machine = with_password(inner.target(), "inner");
    let session = through(&machine, &KnownHosts::default(), Duration::ZERO).await.unwrap();
    assert_eq!(session.run(RemoteCommand::new("7")).await.unwrap().exit, Exit::Code(7));
    assert_eq!(
        *instance.events.lock().unwrap(),
        [format!("to {}", inner.address)],
        "the instance must open the connection"
    );

    let error =
        through(&with_password(inner.target(), "no"), &KnownHosts::default(), Duration::ZERO).await.err().unwrap();
    assert!(matches!(error, DialError::Auth { .. }), "{error}");
    let hosts = KnownHosts::default();
    hosts.pin(&machine.machine, &["SHA256:another".to_owned()]);
    let error = through(&machine, &hosts, Duration::ZERO).await.err().unwrap();
    assert!(matches!(error, DialError::HostKey { .. }), "{error}");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut closed_port = target(closed);
    closed_port.timeout = Duration::from_millis(200);
    let error = through(&closed_port, &KnownHosts::default(), Duration::ZERO).await.err().unwrap();
    assert!(matches!(error, DialError::Unreachable { .. }) && error.to_string().contains("was refused"), "{error}");
    let mut windows = machine;
    windows.protocol = "winrm".to_owned();
    let error = through(&windows, &KnownHosts::default(), Duration::ZERO).await.err().unwrap();
    assert!(matches!(error, DialError::Protocol { .. }), "{error}");
}

#[tokio::test]
async fn c04_certificate_that_follows_its_key_is_used() {
    let (login, authority) = (key(), key());
    let server = Server::start(AcceptedCredentials {
        authority: Some(authority.public_key().clone()),
        ..AcceptedCredentials::default()
    })
    .await;
    let key_with_certificate = |user: &str| {
        let mut builder = certificate::Builder::new_with_random_nonce(
            &mut russh::keys::key::safe_rng(),
            login.public_key().clone(),
            0,
            u64::from(u32::MAX),
        )
        .unwrap();
        builder.valid_principal(user).unwrap();
        let signed = builder.sign(&authority).unwrap();
        format!("{}\n{}\n", login.to_openssh(LineEnding::LF).unwrap().as_str().trim_end(), signed.to_openssh().unwrap())
    };
    let mut target = server.target();
    target.key = key_with_certificate("ci").into_bytes();
    log_in(&target).await.unwrap();
    target.key = key_with_certificate("other-user").into_bytes();
    let error = log_in(&target).await.err().unwrap();
    assert!(matches!(error, DialError::Auth { method: "certificate", .. }), "{error}");
    target.key.extend_from_slice(b"ssh-ed25519-cert-v01@openssh.com invalid\n");
    log_in(&target).await.err().unwrap();
}

#[tokio::test]
async fn c05_refused_port_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut target = target(listener.local_addr().unwrap());
    drop(listener);
    target.timeout = Duration::from_millis(200);
    let error = log_in(&target).await.err().unwrap();
    assert!(
        matches!(error, DialError::Unreachable { .. }) && error.to_string().to_lowercase().contains("refused"),
        "{error}"
    );
}

#[tokio::test]
async fn c05_expired_credentials_end_the_retries() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut target = target(listener.local_addr().unwrap());
    drop(listener);
    target.expires = Some(1);
    assert!(matches!(log_in(&target).await.err().unwrap(), DialError::Expired));
}

#[tokio::test]
async fn c06_exit_status_is_correct() {
    let (_server, target) = password_server().await;
    let session = log_in(&target).await.unwrap();
    for (command, expected) in [
        ("0", Exit::Code(0)),
        ("7", Exit::Code(7)),
        ("255", Exit::Code(255)),
        ("3221225786", Exit::Code(3_221_225_786)),
        ("signal", Exit::Signal("SEGV".to_owned())),
    ] {
        let mut stdout = Vec::new();
        let outcome =
            session.run(RemoteCommand { stdout: Some(&mut stdout), ..RemoteCommand::new(command) }).await.unwrap();
        assert_eq!((outcome.exit, stdout.as_slice()), (expected, command.as_bytes()));
    }
    let silent = session.run(RemoteCommand::new("silent")).await.unwrap_err();
    assert!(matches!(silent, RunError::Lost { .. }), "a missing status must not count as 0: {silent}");
    let lost = session.run(RemoteCommand::new("lost")).await.unwrap_err();
    assert!(matches!(lost, RunError::Lost { .. }), "{lost}");
    let after = session.run(RemoteCommand::new("0")).await.unwrap_err();
    assert!(matches!(after, RunError::Lost { .. }), "{after}");
}

#[tokio::test]
async fn keepalive_detects_lost_network() {
    let (server, mut target) = password_server().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    target.address = listener.local_addr().unwrap().to_string();
    target.keepalive = Duration::from_millis(50);
    let (cut, cut_signal) = tokio::sync::oneshot::channel::<()>();
    let network = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut upstream = TcpStream::connect(server.address).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
            _ = cut_signal => {}
        }
        // Both connections stay open, but nothing is forwarded.
        std::future::pending::<()>().await;
    });
    let session = log_in(&target).await.unwrap();
    let (mut reader, mut writer) = tokio::io::duplex(64);
    let run = session.run(RemoteCommand { stdout: Some(&mut writer), ..RemoteCommand::new("wait") });
    let watch = async {
        let mut output = [0; 4];
        tokio::io::AsyncReadExt::read_exact(&mut reader, &mut output).await.unwrap();
        cut.send(()).unwrap();
    };
    let (outcome, ()) = tokio::join!(run, watch);
    assert!(matches!(outcome.unwrap_err(), RunError::Lost { .. }), "the loss must be detected");
    network.abort();
}

#[tokio::test]
async fn dropping_a_command_closes_its_channel() {
    let (server, target) = password_server().await;
    let session = log_in(&target).await.unwrap();
    let (mut reader, mut writer) = tokio::io::duplex(64);
    let mut output = [0; 4];
    tokio::select! {
        _ = session.run(RemoteCommand { stdout: Some(&mut writer), ..RemoteCommand::new("wait") }) => panic!("the command must not end"),
        read = tokio::io::AsyncReadExt::read_exact(&mut reader, &mut output) => drop(read.unwrap()),
    }
    while server.events.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(*server.events.lock().unwrap(), ["close"]);
    assert_eq!(session.run(RemoteCommand::new("0")).await.unwrap().exit, Exit::Code(0), "the session must stay usable");
}

#[tokio::test]
async fn unresponsive_command_is_killed_after_cancel() {
    let (server, target) = password_server().await;
    let session = log_in(&target).await.unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let (mut reader, mut writer) = tokio::io::duplex(64);
    let run =
        session.run(RemoteCommand { stdout: Some(&mut writer), stop: stop.clone(), ..RemoteCommand::new("wait") });
    let watch = async {
        tokio::io::AsyncReadExt::read_exact(&mut reader, &mut [0; 4]).await.unwrap();
        // The paused clock skips the wait for the timeout.
        tokio::time::pause();
        stop.cancel();
    };
    let (outcome, ()) = tokio::join!(run, watch);
    let error = outcome.unwrap_err();
    assert!(matches!(&error, RunError::Lost { cause } if cause.contains("did not end within")), "{error}");
    while server.events.lock().unwrap().len() < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*server.events.lock().unwrap(), ["TERM", "KILL", "close"]);
}

#[tokio::test]
async fn command_can_be_canceled_while_its_output_is_not_read() {
    let (_server, target) = password_server().await;
    let session = log_in(&target).await.unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let (mut reader, mut writer) = tokio::io::duplex(1);
    let run =
        session.run(RemoteCommand { stdout: Some(&mut writer), stop: stop.clone(), ..RemoteCommand::new("wait") });
    let watch = async {
        // The other bytes of the output do not fit into the buffer.
        tokio::io::AsyncReadExt::read_u8(&mut reader).await.unwrap();
        tokio::time::pause();
        stop.cancel();
    };
    let both = async { tokio::join!(run, watch) };
    let (outcome, ()) =
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("the command was not canceled");
    let error = outcome.unwrap_err();
    assert!(matches!(&error, RunError::Lost { cause } if cause.contains("did not end within")), "{error}");
}

#[tokio::test]
async fn host_keys_are_pinned_or_trusted_on_first_use() {
    let (server, target) = password_server().await;
    let (other, _) = password_server().await;
    let mut impostor = target.clone();
    impostor.address = other.address.to_string();

    let first_use = KnownHosts::default();
    dial(&target, &first_use).await.unwrap();
    dial(&target, &first_use).await.unwrap();
    let error = dial(&impostor, &first_use).await.err().unwrap();
    assert!(matches!(&error, DialError::HostKey { known, .. } if *known == server.fingerprint), "{error}");
    assert_eq!(*other.tries.borrow(), 0, "no password may be sent to a machine with another host key");

    let pinned = KnownHosts::default();
    pinned.pin(&target.machine, std::slice::from_ref(&server.fingerprint));
    dial(&target, &pinned).await.unwrap();
    let error = dial(&impostor, &pinned).await.err().unwrap();
    assert!(matches!(error, DialError::HostKey { .. }), "{error}");
}

#[tokio::test]
async fn any_host_key_is_accepted_even_after_it_changes() {
    let (_server, target) = password_server().await;
    let (other, mut changed) = password_server().await;
    changed.address = other.address.to_string();
    assert_eq!(changed.machine, target.machine);
    let any = KnownHosts::any();
    dial(&target, &any).await.unwrap();
    dial(&changed, &any).await.unwrap();
    assert!(any.names().is_empty(), "no key may be learned");
}

/// GitLab's `googlecloud` plugin sends a key to the machine, which accepts it a few seconds later. The test uses a
/// password instead.
#[tokio::test]
async fn new_machine_may_reject_valid_credentials_for_a_while() {
    let server = Server::start(AcceptedCredentials::default()).await;
    let target = with_password(server.target(), "secret");
    let hosts = KnownHosts::default();
    let accept_later = async {
        server.tries.subscribe().wait_for(|tries| *tries >= 2).await.unwrap();
        server.accepted.lock().unwrap().password = Some("secret".to_owned());
    };
    let (dialed, ()) = tokio::join!(dial_new(&target, &hosts, Duration::from_secs(120)), accept_later);
    dialed.unwrap();
    // `dial_new` retries only within the grace period, and `dial` does not retry.
    let wrong = with_password(server.target(), "wrong");
    for result in [dial_new(&wrong, &hosts, Duration::ZERO).await, dial(&wrong, &hosts).await] {
        let error = result.err().unwrap();
        assert!(matches!(error, DialError::Auth { .. }), "{error}");
    }
}

/// A machine uses the host key of its image until it has generated another key.
#[tokio::test]
async fn new_machine_may_change_unpinned_host_key() {
    let (first, target) = password_server().await;
    let (second, _) = password_server().await;
    let mut later = target.clone();
    later.address = second.address.to_string();
    let (hosts, grace) = (KnownHosts::default(), Duration::from_secs(120));
    dial(&target, &hosts).await.unwrap();
    dial_new(&later, &hosts, grace).await.unwrap();
    let error = dial(&target, &hosts).await.err().unwrap();
    assert!(matches!(&error, DialError::HostKey { known, .. } if *known == second.fingerprint), "{error}");

    // Without time for a further attempt, the known key is kept.
    for _ in 0..2 {
        let error = dial_new(&target, &hosts, Duration::ZERO).await.err().unwrap();
        assert!(matches!(&error, DialError::HostKey { known, .. } if *known == second.fingerprint), "{error}");
    }

    hosts.pin(&target.machine, std::slice::from_ref(&first.fingerprint));
    let tries = *second.tries.borrow();
    let error = dial_new(&later, &hosts, grace).await.err().unwrap();
    assert!(matches!(error, DialError::HostKey { .. }), "a pinned host key must not be replaced: {error}");
    assert_eq!(*second.tries.borrow(), tries, "no password may be sent to a machine with another host key");
}
