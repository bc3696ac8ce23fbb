//! Tests plugins from a real registry: the cases O of docs/spec/fleeting.md, and known defects of the Go implementation
//! that Muster must not have.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use muster_fleeting::install::{
    DEFAULTS, InstallError, InstallOptions, InstallOutcome, InstallResult, Store, VerifyOutcome, available,
};
use muster_oci::{Credentials, Digest, DockerConfig, HostPlatform, Reference, RegistryError, Repository};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::registry::{PASSWORD, Registry, USER, archive, archive_of};

/// A directory of plugins, and a registry without a login.
pub(crate) struct Fixture {
    pub(crate) registry: Registry,
    directory: TempDir,
    pub(crate) store: Store,
}

impl Fixture {
    pub(crate) fn new() -> Option<Self> {
        let registry = Registry::start(false)?;
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("plugins"));
        Some(Self { registry, directory, store })
    }

    pub(crate) async fn install(&self, name: &str) -> Result<InstallResult, InstallError> {
        self.install_with(name, InstallOptions::default()).await
    }

    pub(crate) async fn install_with(
        &self,
        name: &str,
        options: InstallOptions,
    ) -> Result<InstallResult, InstallError> {
        self.store.install(&self.registry.reference(name), options, None).await
    }

    /// Returns the names in the directory of the plugin `name`, including hidden ones.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let directory = self.store.directory().join(self.registry.host.replace(':', "!")).join(name);
        let Ok(entries) = directory.read_dir() else { return Vec::new() };
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

const UPGRADE: InstallOptions = InstallOptions { upgrade: true, accept_new_digest: false };

pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn o02_constraint_selects_from_list_of_tags() {
    let Some(fixture) = Fixture::new() else { return };
    for version in ["1.2.3", "1.10.0", "2.0.0-rc.1"] {
        // The Go implementation finds no version without alias tags.
        fixture.registry.push("g/p", version, &[version], &archive(version.as_bytes())).await;
    }
    for (constraint, expected) in
        [("1", "1.10.0"), ("latest", "1.10.0"), ("1.2", "1.2.3"), ("2.0.0-rc.1", "2.0.0-rc.1"), ("~1.2.0", "1.2.3")]
    {
        let result = fixture.install(&format!("g/p:{constraint}")).await.unwrap();
        assert_eq!(result.installed.version.to_string(), expected, "{constraint}");
        assert_eq!(std::fs::read(&result.installed.executable).unwrap(), expected.as_bytes());
    }
    assert_eq!(
        fixture.names("g/p"),
        ["1.10.0", "1.2.3", "2.0.0-rc.1"],
        "the directory must contain all versions and no other files"
    );
    let error = text(&fixture.install("g/p:2").await.unwrap_err());
    assert!(error.contains("no version matches; the registry has 2.0.0-rc.1, 1.10.0, 1.2.3"), "{error}");
    let available = available(&fixture.registry.reference("g/p:1"), None).await.unwrap();
    assert_eq!(available.iter().map(ToString::to_string).collect::<Vec<_>>(), ["1.2.3", "1.10.0"]);
}

/// In the Go implementation, the alias tag `latest` includes pre-releases, but the resolution of `latest` ignores them.
/// The installed version is then not found.
#[tokio::test]
async fn latest_is_the_same_for_install_and_resolution() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"release")).await;
    fixture.registry.push("g/p", "1.1.0-rc.1", &["1.1.0-rc.1", "latest", "1", "1.1"], &archive(b"candidate")).await;
    let result = fixture.install("g/p").await.unwrap();
    assert_eq!(result.installed.version.to_string(), "1.0.0");
    let found = fixture.store.find(&fixture.registry.reference("g/p:latest"));
    assert_eq!(found.as_ref(), Some(&result.installed));
}

#[tokio::test]
async fn o03_entry_for_this_platform_is_installed() {
    let Some(fixture) = Fixture::new() else { return };
    let this = HostPlatform::this();
    let other = json!({"os": "plan9", "architecture": "vax"});
    let own = json!({"os": this.os, "architecture": this.architecture});
    fixture.registry.push_for("g/p", "1.0.0", &["1.0.0"], &archive(b"x"), &[other.clone(), own]).await;
    assert_eq!(fixture.install("g/p").await.unwrap().outcome, InstallOutcome::Installed);

    fixture.registry.push_for("g/q", "1.0.0", &["1.0.0"], &archive(b"x"), &[other]).await;
    let error = text(&fixture.install("g/q").await.unwrap_err());
    assert!(error.contains(&format!("not available for {this}, only for plan9/vax")), "{error}");

    fixture.registry.push_plain_image("g/r", "1.0.0").await;
    let error = text(&fixture.install("g/r:1.0.0").await.unwrap_err());
    assert!(error.contains("publish an index with an image for each platform"), "{error}");
}

#[tokio::test]
async fn o04_content_with_wrong_digest_is_discarded() {
    let Some(fixture) = Fixture::new() else { return };
    let packed = archive(b"good");
    let digest = fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &packed).await;
    let mut changed = packed.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(fixture.registry.blob_path(&digest), &changed).unwrap();

    let error = fixture.install("g/p").await.unwrap_err();
    assert!(matches!(&error, InstallError::Registry { source: RegistryError::Digest { .. }, .. }), "{error:?}");
    assert!(text(&error).contains("was discarded"), "{error}");
    assert_eq!(fixture.names("g/p"), [""; 0], "no directory of the plugin must remain");
    assert_eq!(fixture.store.directory().join(".partial").read_dir().unwrap().count(), 0);

    std::fs::write(fixture.registry.blob_path(&digest), &packed).unwrap();
    assert_eq!(fixture.install("g/p").await.unwrap().outcome, InstallOutcome::Installed);
}

#[tokio::test]
async fn o05_second_install_changes_nothing() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    let first = fixture.install("g/p").await.unwrap();
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
    let before = inode(&first.installed.executable);
    assert_eq!(fixture.install("g/p").await.unwrap().outcome, InstallOutcome::Present);
    assert_eq!(fixture.install_with("g/p", UPGRADE).await.unwrap().outcome, InstallOutcome::Unchanged);
    assert_eq!(inode(&first.installed.executable), before);

    fixture.registry.push("g/p", "1.1.0", &["1.1.0"], &archive(b"two")).await;
    assert_eq!(
        fixture.install("g/p").await.unwrap().installed.version.to_string(),
        "1.0.0",
        "an install without upgrade must not query the registry"
    );
    assert_eq!(fixture.install_with("g/p", UPGRADE).await.unwrap().installed.version.to_string(), "1.1.0");
}

#[tokio::test]
async fn o06_archive_with_outside_entry_is_rejected() {
    let Some(fixture) = Fixture::new() else { return };
    let packed = archive_of(&[("plugin/plugin", b"x"), ("plugin/../../x", b"y")]);
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &packed).await;
    let error = text(&fixture.install("g/p").await.unwrap_err());
    assert!(error.contains("\"plugin/../../x\" is outside of the directories that may be unpacked"), "{error}");
    assert_eq!(fixture.names("g/p"), [""; 0], "no files of the plugin must remain");
    assert_eq!(fixture.directory.path().read_dir().unwrap().count(), 1);
}

#[tokio::test]
async fn new_digest_of_known_version_is_refused_unless_accepted() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    let result = fixture.install("g/p").await.unwrap();
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"other")).await;

    let error = fixture.install_with("g/p", UPGRADE).await.unwrap_err();
    assert!(
        text(&error).contains("published under the same version") && text(&error).contains("--accept-new-digest"),
        "{error}"
    );
    assert_eq!(std::fs::read(&result.installed.executable).unwrap(), b"one");
    // The digest of a removed version stays in the lock file.
    fixture.store.remove(&fixture.registry.reference("g/p"), false).await.unwrap();
    assert!(matches!(fixture.install("g/p").await.unwrap_err(), InstallError::Changed { .. }));

    let accept = InstallOptions { upgrade: false, accept_new_digest: true };
    assert_eq!(fixture.install_with("g/p", accept).await.unwrap().outcome, InstallOutcome::Installed);
    assert_eq!(std::fs::read(&result.installed.executable).unwrap(), b"other");

    fixture.store.remove(&fixture.registry.reference("g/p:1.0.0"), true).await.unwrap();
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"third")).await;
    assert_eq!(
        fixture.install("g/p").await.unwrap().outcome,
        InstallOutcome::Installed,
        "a version with a forgotten digest counts as new"
    );
    let error = fixture.store.remove(&fixture.registry.reference("g/p:2"), false).await.unwrap_err();
    assert!(matches!(error, InstallError::NotInstalled { .. }), "{error}");
}

#[tokio::test]
async fn changed_file_is_detected_and_repaired() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    let installed = fixture.install("g/p").await.unwrap().installed;
    let outcome = || fixture.store.verify(fixture.store.list()).unwrap().remove(0).outcome;
    assert_eq!(outcome(), VerifyOutcome::Intact);
    assert_eq!(installed.executable.metadata().unwrap().permissions().mode() & 0o777, 0o755);

    std::fs::write(&installed.executable, b"two").unwrap();
    std::fs::write(installed.executable.with_file_name("more"), b"").unwrap();
    let VerifyOutcome::Changed(changes) = outcome() else { panic!("the change was not detected") };
    assert!(changes[0].starts_with("plugin has the digest") && changes[1] == "more was added", "{changes:?}");

    assert_eq!(fixture.install_with("g/p", UPGRADE).await.unwrap().outcome, InstallOutcome::Repaired);
    assert_eq!(outcome(), VerifyOutcome::Intact);
}

#[tokio::test]
async fn interrupted_download_is_continued() {
    let Some(fixture) = Fixture::new() else { return };
    let content: Vec<u8> = (0..300_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[1]).collect();
    let packed = archive(&content);
    let digest = fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &packed).await;
    // The first half of the blob at the registry is overwritten, so that only a continued download gets the right content.
    let half = packed.len() / 2;
    let mut changed = packed.clone();
    changed[..half].fill(0);
    std::fs::write(fixture.registry.blob_path(&digest), &changed).unwrap();
    let partial = fixture.store.directory().join(".partial");
    std::fs::create_dir_all(&partial).unwrap();
    std::fs::write(partial.join(digest.replace(':', "-")), &packed[..half]).unwrap();

    let installed = fixture.install("g/p").await.unwrap().installed;
    assert_eq!(Digest::of_file(&installed.executable).unwrap(), Digest::of(&content));
    assert_eq!(partial.read_dir().unwrap().count(), 0);
}

/// Forwards connections to `upstream` and closes each one after `bytes` bytes of responses.
async fn disconnecting_proxy(upstream: String, bytes: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&upstream).await.unwrap();
            tokio::spawn(async move {
                let ((mut client_read, mut client_write), (upstream_read, mut upstream_write)) =
                    (client.into_split(), server.into_split());
                let requests =
                    tokio::spawn(async move { tokio::io::copy(&mut client_read, &mut upstream_write).await });
                let _ = tokio::io::copy(&mut upstream_read.take(bytes), &mut client_write).await;
                let _ = client_write.shutdown().await;
                requests.abort();
            });
        }
    });
    host
}

#[tokio::test]
async fn broken_connections_are_retried() {
    let Some(fixture) = Fixture::new() else { return };
    let content: Vec<u8> = (0..400_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[1]).collect();
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(&content)).await;
    let host = disconnecting_proxy(fixture.registry.host.clone(), 100_000).await;
    let result =
        fixture.store.install(&reference(&format!("{host}/g/p")), InstallOptions::default(), None).await.unwrap();
    assert_eq!(Digest::of_file(&result.installed.executable).unwrap(), Digest::of(&content));
}

#[tokio::test]
async fn docker_credentials_are_sent_to_the_registry() {
    let Some(registry) = Registry::start(true) else { return };
    registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(directory.path());
    let (reference, docker) = (registry.reference("g/p:1.0.0"), registry.docker_config());
    let install = || store.install(&reference, InstallOptions::default(), Some(&docker));

    let error = text(&install().await.unwrap_err());
    assert!(
        error.contains("a login is required") && error.contains(&format!("muster plugin login {}", registry.host)),
        "{error}"
    );
    docker.put(&registry.host, &Credentials::new(USER, "wrong")).await.unwrap();
    let error = text(&install().await.unwrap_err());
    assert!(error.contains("denies access (401 Unauthorized, as \"tester\")") && !error.contains("wrong"), "{error}");
    docker.put(&registry.host, &Credentials::new(USER, PASSWORD)).await.unwrap();
    assert_eq!(install().await.unwrap().outcome, InstallOutcome::Installed);
    assert_eq!(docker.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn storing_credentials_keeps_docker_settings() {
    let directory = tempfile::tempdir().unwrap();
    let docker = DockerConfig::in_directory(directory.path());
    let old = r#"{"psFormat": "x", "auths": {"https://r.example/v1/": {"auth": "YTpi"}, "other.example": {"identitytoken": "t"}}}"#;
    std::fs::write(docker.path(), old).unwrap();
    std::fs::set_permissions(docker.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        docker.get("r.example").await.unwrap(),
        Some(Credentials::new("a", "b")),
        "an entry with the old form of the name must be found"
    );
    assert!(docker.get("other.example").await.unwrap().unwrap().is_identity_token);
    assert_eq!(docker.get("unknown.example").await.unwrap(), None);

    docker.put("r.example", &Credentials::new("new", "pass:word")).await.unwrap();
    assert_eq!(docker.get("r.example").await.unwrap(), Some(Credentials::new("new", "pass:word")));
    let stored = std::fs::read_to_string(docker.path()).unwrap();
    assert!(stored.contains("psFormat") && stored.contains("other.example") && !stored.contains("/v1/"), "{stored}");
    assert_eq!(docker.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);

    std::fs::write(docker.path(), "{").unwrap();
    let error = docker.get("r.example").await.unwrap_err().to_string();
    assert!(error.contains("failed to parse") && error.contains("config.json"), "{error}");
    std::fs::write(docker.path(), r#"{"credsStore": "muster-test-none"}"#).unwrap();
    let error = text(&docker.get("r.example").await.unwrap_err());
    assert!(
        error.contains("docker-credential-muster-test-none, which") && error.contains("failed to run the helper"),
        "{error}"
    );
    std::fs::write(docker.path(), r#"{"credHelpers": {"r.example": "../evil"}}"#).unwrap();
    assert!(text(&docker.get("r.example").await.unwrap_err()).contains("invalid name of a credential helper"));
}

#[tokio::test]
async fn missing_content_is_named_in_the_error() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    for (name, expected) in [("g/missing", "spelling of 127.0.0.1:"), ("g/p:1.0.1", "g/p:1.0.1")] {
        let error = text(&fixture.install(name).await.unwrap_err());
        assert!(error.contains("not found at the registry") && error.contains(expected), "{name}: {error}");
    }
    // No process listens at this port.
    let closed_port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = fixture
        .store
        .install(&reference(&format!("{closed_port}/g/p")), InstallOptions::default(), None)
        .await
        .unwrap_err();
    assert!(text(&error).contains("no response") && text(&error).contains("check the name of the registry"), "{error}");
}

#[tokio::test]
async fn concurrent_installs_install_once() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(&vec![7; 200_000])).await;
    let results = futures::future::join_all((0..4).map(|_| fixture.install_with("g/p", UPGRADE))).await;
    let installed =
        results.iter().filter(|result| result.as_ref().unwrap().outcome == InstallOutcome::Installed).count();
    assert_eq!(installed, 1, "{results:?}");
    assert_eq!(fixture.names("g/p"), ["1.0.0"]);
}

/// Starts a registry that is also its token server.
/// `answer` gets the address, the request's first line and its `authorization` header.
pub(crate) async fn token_registry(answer: fn(&str, &str, &str) -> String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let name = host.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { break };
                request.push(byte);
            }
            let request = String::from_utf8(request).unwrap();
            let line = request.lines().next().unwrap_or_default();
            let authorization =
                request.lines().find_map(|line| line.strip_prefix("authorization: ")).unwrap_or_default();
            let answer = answer(&name, line, authorization);
            let _ = stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await;
        }
    });
    host
}

pub(crate) fn response(status: &str, headers: &str, body: &str) -> String {
    format!("{status}\r\n{headers}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

pub(crate) fn reference(text: &str) -> Reference {
    Reference::parse(text, &DEFAULTS).unwrap()
}

fn repository(host: &str) -> Repository {
    Repository::parse(&format!("{host}/g/p"), &DEFAULTS).unwrap()
}

async fn check_login(host: &str, credentials: Option<Credentials>) -> Result<(), String> {
    let registry = muster_oci::Registry::new(repository(host), credentials).unwrap();
    registry.check_login().await.map_err(|error| text(&error))
}

#[tokio::test]
async fn token_is_fetched_from_the_registrys_token_server() {
    let host = token_registry(|host, line, authorization| {
        let challenge = format!("www-authenticate: Bearer realm=\"http://{host}/token\",service=\"r\"\r\n");
        match (line.split(' ').nth(1).unwrap_or_default(), authorization) {
            // The base64 encoding of `tester:secret word`.
            (
                "/token?service=r" | "/token?scope=repository%3Ag%2Fp%3Apull&service=r",
                "Basic dGVzdGVyOnNlY3JldCB3b3Jk",
            ) => response("200 OK", "", r#"{"token": "t0ken"}"#),
            ("/v2/", "Bearer t0ken") => response("200 OK", "", "{}"),
            ("/v2/g/p/tags/list?n=1000", "Bearer t0ken") => response("200 OK", "", r#"{"tags": ["1.0.0"]}"#),
            ("/v2/" | "/v2/g/p/tags/list?n=1000", _) => response("401 Unauthorized", &challenge, ""),
            _ => response("403 Forbidden", "", ""),
        }
    })
    .await;
    let credentials = Credentials::new(USER, PASSWORD);
    check_login(&host, Some(credentials.clone())).await.unwrap();
    let registry = muster_oci::Registry::new(repository(&host), Some(credentials)).unwrap();
    assert_eq!(registry.tags().await.unwrap(), muster_oci::TagList::Tags(vec!["1.0.0".to_owned()]));
    let error = check_login(&host, Some(Credentials::new(USER, "wrong"))).await.unwrap_err();
    assert!(
        error.contains("did not issue a token: 403 Forbidden, as \"tester\"") && error.contains("denies access"),
        "{error}"
    );
    let error = check_login(&host, None).await.unwrap_err();
    assert!(error.contains("anonymously"), "{error}");
}

#[tokio::test]
async fn password_requires_https_and_responses_are_limited() {
    let host = token_registry(|_, line, _| {
        assert!(!line.contains("/token"), "the insecure token server must not get a request");
        response("401 Unauthorized", "www-authenticate: Bearer realm=\"ftp://r.example/token\"\r\n", "")
    })
    .await;
    let error = check_login(&host, Some(Credentials::new(USER, PASSWORD))).await.unwrap_err();
    assert!(error.contains("https is required"), "{error}");

    let host =
        token_registry(|_, _, _| "200 OK\r\ncontent-length: 9999999999\r\n\r\n".to_owned() + &" ".repeat(5 << 20))
            .await;
    let registry = muster_oci::Registry::new(repository(&host), None).unwrap();
    let error = registry.tags().await.unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { .. }), "{error}");
}
