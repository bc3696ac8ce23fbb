use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use git2::{Repository, Signature};
use muster_runner_api::client::TlsFiles;
use muster_steps::stop::StopToken;
use rcgen::{CertificateParams, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{self, ServerConfig};

use super::{PART_FILES, check_out_commit};
use crate::git_http::{Credentials, Session};

/// Creates a repository with a commit of many files and an empty work tree.
fn repository(directory: &std::path::Path, files: usize) -> (Repository, git2::Oid) {
    let repository = Repository::init(directory).unwrap();
    let mut builder = repository.treebuilder(None).unwrap();
    for number in 0..files {
        let blob = repository.blob(format!("{number}").as_bytes()).unwrap();
        builder.insert(format!("f{number:05}"), blob, 0o100_644).unwrap();
    }
    let tree = builder.write().unwrap();
    let author = Signature::new("a", "a@example.com", &git2::Time::new(0, 0)).unwrap();
    let sha = repository.commit(None, &author, &author, "many", &repository.find_tree(tree).unwrap(), &[]).unwrap();
    drop(builder);
    (repository, sha)
}

#[test]
fn stopped_checkout_does_not_write_the_remaining_files() {
    let directory = tempfile::tempdir().unwrap();
    let files = 3 * PART_FILES;
    let (repository, sha) = repository(directory.path(), files);
    let path = |number: usize| directory.path().join(format!("f{number:05}"));
    let in_second_part = path(PART_FILES + 10);
    let error = check_out_commit(&repository, sha, &|| in_second_part.exists()).unwrap_err();
    assert!(in_second_part.exists(), "{error}");
    assert!(!path(2 * PART_FILES).exists(), "the third part must not be written");
    assert!(repository.head().is_err(), "HEAD must not name the commit yet");
    // A later checkout continues.
    fs::write(path(files), "an untracked file").unwrap();
    check_out_commit(&repository, sha, &|| false).unwrap();
    assert_eq!(fs::read_to_string(path(files - 1)).unwrap(), (files - 1).to_string());
    assert_eq!(repository.head().unwrap().target(), Some(sha));
    let changes = repository.statuses(None).unwrap();
    assert_eq!(changes.iter().filter(|change| !change.status().is_wt_new()).count(), 0);
}

/// Accepts clients with any certificate, or with none.
#[derive(Debug)]
struct AnyClient(Arc<rustls::crypto::CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &rustls::pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &rustls::pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A TLS server that counts the connections with and without a client certificate.
struct Server {
    url: String,
    with_certificate: Arc<AtomicUsize>,
    without_certificate: Arc<AtomicUsize>,
}

impl Server {
    /// Starts the server. With `redirect`, all requests are redirected to this URL.
    async fn start(redirect: Option<String>) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let config = config.unwrap().with_client_cert_verifier(Arc::new(AnyClient(provider)));
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (with_certificate, without_certificate) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counters = (Arc::clone(&with_certificate), Arc::clone(&without_certificate));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let has_certificate = stream.get_ref().1.peer_certificates().is_some();
                if has_certificate { &counters.0 } else { &counters.1 }.fetch_add(1, Ordering::Relaxed);
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap() > 0 {}
                let answer = match &redirect {
                    Some(url) => format!("302 Found\r\nLocation: {url}/b.git/info/refs?service=git-upload-pack"),
                    None => "200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement".to_owned(),
                };
                let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        Self { url, with_certificate, without_certificate }
    }

    fn connections(&self) -> (usize, usize) {
        (self.with_certificate.load(Ordering::Relaxed), self.without_certificate.load(Ordering::Relaxed))
    }
}

/// Requests the refs at `url` with a client certificate for `coordinator`, as a job with `GIT_SSL_NO_VERIFY` does.
async fn list_refs(coordinator: &Server, url: String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["job".to_owned()]).unwrap().self_signed(&key).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let files = [("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem())].map(|(name, pem)| {
        let path = dir.path().join(name);
        fs::write(&path, pem).unwrap();
        Some(path)
    });
    let [certificate, key] = files;
    let clients = super::clients(&coordinator.url, &TlsFiles { ca: None, certificate, key }, true).unwrap();
    let credentials = Credentials::new(Vec::new());
    let (runtime, stop) = (Handle::current(), StopToken::new());
    let session = Arc::new(Session { clients, credentials, runtime, stop, access_hint: "" });
    tokio::task::spawn_blocking(move || session.list_refs(&url).map(drop)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_coordinator_gets_the_client_certificate() {
    let other = Server::start(None).await;
    let coordinator = Server::start(None).await;
    list_refs(&coordinator, format!("{}/a.git", coordinator.url)).await;
    assert_eq!(coordinator.connections(), (1, 0));
    // A submodule of another server.
    list_refs(&coordinator, format!("{}/b.git", other.url)).await;
    assert_eq!(other.connections(), (0, 1));
    // The coordinator redirects to another server.
    let redirecting = Server::start(Some(other.url.clone())).await;
    list_refs(&redirecting, format!("{}/a.git", redirecting.url)).await;
    assert_eq!((redirecting.connections(), other.connections()), ((1, 0), (0, 2)));
}
