//! Connection age, certificates and cancellation, with local servers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::any;
use http::StatusCode;
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::super::{Client, Progress};
use super::*;
use crate::wire::JobRequest;

async fn connection_count(age: ConnectionAge) -> usize {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let recorder = Arc::clone(&seen);
    let app = Router::new().fallback(any(move |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move {
        recorder.lock().insert(peer);
        StatusCode::NO_CONTENT
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let serving = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, serving).await.unwrap() });
    let client = Client::with_max_connection_age(&url, &TlsFiles::default(), age).unwrap();
    for _ in 0..3 {
        client.request_job(&JobRequest::default(), &Progress::default()).await.unwrap();
    }
    server.abort();
    seen.lock().len()
}

#[tokio::test]
async fn connections_are_reused_up_to_their_max_age() {
    assert_eq!(connection_count(ConnectionAge::Any).await, 1);
    assert_eq!(connection_count(ConnectionAge::UpTo(Duration::from_secs(900))).await, 1);
    assert_eq!(connection_count(ConnectionAge::UpTo(Duration::from_nanos(1))).await, 3);
    assert_eq!(connection_count(ConnectionAge::NoReuse).await, 3);
}

/// Starts a server with a certificate of a new authority. Also returns the authority's certificate as PEM.
async fn server_with_authority() -> (Url, String, tokio::task::JoinHandle<()>) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let (url, server) = server(leaf.der().clone(), &key).await;
    (url, authority.pem(), server)
}

fn acceptor(certificate: CertificateDer<'static>, key: &KeyPair) -> TlsAcceptor {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn server(certificate: CertificateDer<'static>, key: &KeyPair) -> (Url, tokio::task::JoinHandle<()>) {
    let acceptor = acceptor(certificate, key);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("https://{}", listener.local_addr().unwrap())).unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust the certificate ends the handshake.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
            let _ = stream.shutdown().await;
        }
    });
    (url, server)
}

/// Creates a certificate like `openssl req -x509`, with changed parameters.
fn self_signed_certificate(change: impl FnOnce(&mut CertificateParams)) -> (Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    (params.self_signed(&key).unwrap(), key)
}

/// Requests a job from a server with `certificate`. `tls-ca-file` contains `trusted`.
async fn request_job_with_ca(certificate: &Certificate, key: &KeyPair, trusted: &Certificate) -> Result<(), String> {
    let (url, server) = server(certificate.der().clone(), key).await;
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, trusted.pem()).unwrap();
    let client = Client::with_tls(&url, &TlsFiles { ca: Some(ca), ..TlsFiles::default() }).unwrap();
    let answer = client.request_job(&JobRequest::default(), &Progress::default()).await;
    server.abort();
    answer.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn server_certificate_is_accepted_only_if_configured() {
    let (authority, key) = self_signed_certificate(|_| {});
    request_job_with_ca(&authority, &key, &authority).await.unwrap();
    let (plain, plain_key) = self_signed_certificate(|params| params.is_ca = IsCa::ExplicitNoCa);
    request_job_with_ca(&plain, &plain_key, &plain).await.unwrap();
    let (other, _) = self_signed_certificate(|_| {});
    let error = request_job_with_ca(&authority, &key, &other).await.unwrap_err();
    assert!(error.contains("differs from the one in tls-ca-file") && error.contains("https://127.0.0.1:"), "{error}");
    let (other_name, key) = self_signed_certificate(|params| {
        params.subject_alt_names = vec![SanType::DnsName("g.example".try_into().unwrap())]
    });
    let error = request_job_with_ca(&other_name, &key, &other_name).await.unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
    let (expired, key) = self_signed_certificate(|params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    let error = request_job_with_ca(&expired, &key, &expired).await.unwrap_err();
    assert!(error.contains("has expired"), "{error}");
}

#[tokio::test]
async fn certificates_are_reloaded_and_invalid_files_are_ignored() {
    let (url, right, server) = server_with_authority().await;
    let (_, wrong, other) = server_with_authority().await;
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let write_ca = |text: &str| replace(&ca, text);
    write_ca(&wrong);
    let tls = TlsFiles { ca: Some(ca.clone()), ..TlsFiles::default() };
    let client = Client::with_tls(&url, &tls).unwrap();
    let request_job = async || client.request_job(&JobRequest::default(), &Progress::default()).await;
    let error = request_job().await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    write_ca(&right);
    request_job().await.unwrap();
    write_ca("no certificate");
    request_job().await.unwrap();
    std::fs::remove_file(&ca).unwrap();
    request_job().await.unwrap();
    write_ca(&wrong);
    request_job().await.unwrap_err();
    server.abort();
    other.abort();
}

#[tokio::test]
async fn deferred_tls_client_waits_for_its_certificates() {
    let (url, authority, server) = server_with_authority().await;
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let tls = TlsFiles { ca: Some(ca.clone()), ..TlsFiles::default() };
    Client::with_tls(&url, &tls).unwrap_err();
    let client = Client::with_deferred_tls(&url, &tls, ConnectionAge::Any).unwrap();
    client.request_job(&JobRequest::default(), &Progress::default()).await.unwrap_err();
    replace(&ca, &authority);
    client.request_job(&JobRequest::default(), &Progress::default()).await.unwrap();
    server.abort();
}

#[test]
fn certificates_whose_read_failed_are_read_again_although_they_did_not_change() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, "no certificate").unwrap();
    let tls = TlsFiles { ca: Some(ca.clone()), ..TlsFiles::default() };
    let url = Url::parse("https://127.0.0.1:1").unwrap();
    let transport = Transport::with_deferred_tls(url, tls.clone(), ConnectionAge::Any).unwrap();
    std::fs::write(&ca, self_signed_certificate(|_| {}).0.pem()).unwrap();
    for (age, has_failed) in [(Duration::ZERO, true), (RELOAD_RETRY_DELAY, false)] {
        let mut current = transport.current.lock();
        // As if the read of this content had failed.
        current.stamps = stamps(&tls);
        let at = Instant::now().checked_sub(age).unwrap();
        current.failure = Some(ReloadFailure { stamps: current.stamps, at });
        drop(current);
        transport.http();
        assert_eq!(transport.current.lock().failure.is_some(), has_failed);
    }
}

/// A job can write to the directory of its certificates: it could block the client with a FIFO there, or fill the
/// client's memory with a large file.
#[tokio::test]
async fn certificates_are_read_from_regular_files_only() {
    let directory = tempfile::tempdir().unwrap();
    let [fifo, large] = ["fifo", "large"].map(|name| directory.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    std::fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    let url = Url::parse("https://127.0.0.1:1").unwrap();
    for (path, expected) in [
        (fifo.as_path(), "it is a FIFO"),
        (Path::new("/dev/zero"), "it is a device"),
        (directory.path(), "it is a directory"),
        (large.as_path(), "it is larger than 1048576 bytes"),
    ] {
        let at = |path: &Path| Some(path.to_owned());
        for tls in [
            TlsFiles { ca: at(path), ..TlsFiles::default() },
            TlsFiles { certificate: at(path), key: at(path), ..TlsFiles::default() },
        ] {
            let url = url.clone();
            // The call runs in a separate thread, because it may hang.
            let created = tokio::task::spawn_blocking(move || Client::with_tls(&url, &tls).map(drop));
            let created = tokio::time::timeout(Duration::from_secs(60), created)
                .await
                .expect("creating the client must not hang")
                .unwrap();
            let error = created.unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(&path.display().to_string()), "{error}");
        }
    }
}

#[tokio::test]
async fn request_that_waits_for_connection_can_be_canceled() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("https://{}", listener.local_addr().unwrap())).unwrap();
    let (certificate, key) = self_signed_certificate(|_| {});
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, certificate.pem()).unwrap();
    let client = Client::with_tls(&url, &TlsFiles { ca: Some(ca), ..TlsFiles::default() }).unwrap();
    for cancels in [true, false] {
        let progress = Progress::default();
        let request_task = tokio::spawn({
            let (client, progress) = (client.clone(), progress.clone());
            async move {
                client.request_job(&JobRequest { token: "glrt-1".to_owned(), ..JobRequest::default() }, &progress).await
            }
        });
        let (stream, _) = listener.accept().await.unwrap();
        assert_eq!(progress.sent_at(), None);
        assert!(!cancels || progress.cancel_unsent());
        let mut stream = acceptor(certificate.der().clone(), &key).accept(stream).await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") && stream.read_buf(&mut request).await.is_ok_and(|count| count > 0) {}
        let body = String::from_utf8(request).unwrap();
        assert_eq!(body.contains("\"token\":\"glrt-1\""), !cancels, "{body}");
        assert_eq!((progress.sent_at().is_some(), progress.cancel_unsent()), (!cancels, cancels));
        drop(stream);
        assert!(request_task.await.unwrap().is_err());
    }
}

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}
