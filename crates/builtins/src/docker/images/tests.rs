//! Tests with a Docker Engine and a registry.

use bollard::body_full;
use bollard::query_parameters::{PushImageOptions, RemoveImageOptions, TagImageOptionsBuilder};
use muster_agent_api::builtin::DockerEngine as EngineSettings;
use muster_job::{FailureReason, TerminationCause};
use muster_test_prerequisites::{DockerEngine, DockerRegistry, REGISTRY_PASSWORD, REGISTRY_USER, busybox_root};

use super::*;
use crate::docker::engine::connect;

/// Path of the image in the registry, without the registry's host.
const APP: &str = "group/app";

struct Fixture {
    engine: Docker,
    registry: DockerRegistry,
    lines: Arc<Mutex<String>>,
    stop: StopToken,
    _process: DockerEngine,
}

fn credentials(registry: &str, password: &str) -> RegistryCredentials {
    RegistryCredentials {
        registry: registry.to_owned(),
        username: REGISTRY_USER.to_owned(),
        password: password.to_owned(),
        source: "$DOCKER_AUTH_CONFIG".to_owned(),
        ..RegistryCredentials::default()
    }
}

impl Fixture {
    /// Starts an engine and a registry with the image. The engine does not keep the image.
    async fn start(needs_login: bool) -> Option<Self> {
        Self::with(DockerEngine::start(&[])?, needs_login).await
    }

    async fn with(process: DockerEngine, needs_login: bool) -> Option<Self> {
        let (registry, root) = (DockerRegistry::start(needs_login)?, busybox_root()?);
        let host = process.url();
        let engine = connect(&EngineSettings { host, ..EngineSettings::default() }).await.unwrap();
        let name = format!("{}/{APP}", registry.host());
        let import = CreateImageOptionsBuilder::new().from_src("-").repo(&format!("{name}:1")).build();
        let imported = engine.create_image(Some(import), Some(body_full(root.into())), None);
        imported.try_collect::<Vec<_>>().await.unwrap();
        engine
            .tag_image(&format!("{name}:1"), Some(TagImageOptionsBuilder::new().repo(&name).tag("latest").build()))
            .await
            .unwrap();
        let fixture = Self { engine, registry, lines: Arc::default(), stop: StopToken::new(), _process: process };
        for tag in ["1", "latest"] {
            let login = bollard::auth::DockerCredentials {
                username: Some(REGISTRY_USER.to_owned()),
                password: Some(REGISTRY_PASSWORD.to_owned()),
                ..Default::default()
            };
            let options = PushImageOptions { tag: Some(tag.to_owned()), ..PushImageOptions::default() };
            fixture.engine.push_image(&name, Some(options), Some(login)).try_collect::<Vec<_>>().await.unwrap();
        }
        fixture.remove("1").await;
        fixture.remove("latest").await;
        Some(fixture)
    }

    fn name(&self, suffix: &str) -> String {
        format!("{}/{APP}{suffix}", self.registry.host())
    }

    async fn remove(&self, tag: &str) {
        let name = self.name(&format!(":{tag}"));
        self.engine.remove_image(&name, None::<RemoveImageOptions>, None).await.unwrap();
    }

    /// Calls [`Images::ensure`] for each image, as one job does. Returns the last result.
    async fn ensure(
        &self,
        credentials: &[RegistryCredentials],
        helper_path: Option<OsString>,
        specs: &[ImageSpec],
    ) -> Result<ResolvedImage, Failure> {
        self.lines.lock().clear();
        let images = Images::new(&self.engine, credentials, print_to(&self.lines), &self.stop);
        let images = Images { helper_path, retry_delay: || Duration::from_millis(1), ..images };
        let mut result = Err(Failure::System("no image".to_owned()));
        for spec in specs {
            result = images.ensure(spec).await;
        }
        result
    }

    async fn ensure_one(&self, suffix: &str, policies: &[&str]) -> Result<ResolvedImage, Failure> {
        self.ensure(&[], None, &[spec(&self.name(suffix), policies)]).await
    }

    /// Returns the log without ports and digests.
    fn log(&self) -> String {
        let log = self.lines.lock().replace(self.registry.host(), "REGISTRY");
        let mut parts = log.split("sha256:");
        let first = parts.next().unwrap_or_default().to_owned();
        let digests = parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
        digests.fold(first, |log, part| format!("{log}DIGEST{part}"))
    }

    #[track_caller]
    fn assert_log(&self, lines: &[&str]) {
        let log = self.log();
        for line in lines {
            assert!(log.contains(line), "{line:?} is not in:\n{log}");
        }
    }
}

fn spec(name: &str, policies: &[&str]) -> ImageSpec {
    ImageSpec {
        name: name.to_owned(),
        pull_policies: policies.iter().map(|policy| (*policy).to_owned()).collect(),
        platform: String::new(),
    }
}

#[track_caller]
fn assert_failure(result: Result<ResolvedImage, Failure>, reason: FailureReason, text: &str) {
    let failure = result.unwrap_err();
    assert!(failure.to_string().contains(text), "{failure}");
    assert_eq!(failure.reason(), reason, "{failure}");
}

#[tokio::test]
async fn pull_policies_decide_when_the_registry_is_used() {
    let Some(fixture) = Fixture::start(false).await else { return };
    let never = fixture.ensure_one(":1", &["never"]).await;
    assert_failure(never, FailureReason::RunnerConfigurationError, "with specified policies [never]: ");
    fixture.assert_log(&["WARNING: Failed to pull image with policy \"never\"", "allow a pull policy that pulls it"]);

    let pulled = fixture.ensure_one(":1", &["if-not-present"]).await.unwrap();
    fixture.assert_log(&[
        "\x1b[0KUsing effective pull policy of [if-not-present] for container REGISTRY/group/app:1\x1b[0;m\n",
        "\x1b[0KPulling docker image REGISTRY/group/app:1 ...\x1b[0;m\n",
        "\x1b[0KUsing docker image DIGEST for REGISTRY/group/app:1 with digest REGISTRY/group/app@DIGEST ...\x1b[0;m\n",
    ]);

    let present = fixture.ensure_one(":1", &["if-not-present"]).await.unwrap();
    assert_eq!(present, pulled);
    assert!(!fixture.log().contains("Pulling docker image"));
    fixture.assert_log(&["Using locally found image version due to \"if-not-present\" pull policy"]);

    fixture.ensure_one(":1", &["always"]).await.unwrap();
    fixture.assert_log(&["Pulling docker image REGISTRY/group/app:1 ..."]);
    assert_eq!(fixture.ensure_one(":1", &["never"]).await.unwrap(), pulled);
    fixture.ensure(&[], None, &[spec(&pulled.id, &["always"])]).await.unwrap();
    assert!(!fixture.log().contains("Using docker image"), "{}", fixture.log());
}

#[tokio::test]
async fn policies_are_tried_in_order_and_the_last_error_is_reported() {
    let Some(fixture) = Fixture::start(false).await else { return };
    let missing = fixture.ensure_one(":9", &["always", "never"]).await;
    assert_failure(missing, FailureReason::RunnerConfigurationError, "with specified policies [always never]: ");
    fixture.assert_log(&[
        "WARNING: Failed to pull image with policy \"always\": Error response from daemon: manifest for REGISTRY/group/app:9 not found",
        "\x1b[32;1mAttempt #2: Trying \"never\" pull policy\x1b[0;m\n",
        "Check the spelling of the image's name and tag",
    ]);
}

#[tokio::test]
async fn image_is_pulled_once_per_job_and_can_be_named_by_its_digest() {
    let Some(fixture) = Fixture::start(false).await else { return };
    let latest = spec(&fixture.name(""), &["always"]);
    let image = fixture.ensure(&[], None, &[latest.clone(), latest]).await.unwrap();
    assert_eq!(fixture.log().matches("Pulling docker image").count(), 1, "{}", fixture.log());
    assert_eq!(image.inspect.repo_tags.as_deref(), Some([fixture.name(":latest")].as_slice()));

    let digest = image.inspect.repo_digests.as_deref().and_then(|digests| digests.first()).unwrap();
    fixture.remove("latest").await;
    let by_digest = fixture.ensure(&[], None, &[spec(digest, &["always"])]).await.unwrap();
    assert_eq!(by_digest.id, image.id);
}

#[tokio::test]
async fn registry_with_a_login_needs_the_right_credentials() {
    let Some(fixture) = Fixture::start(true).await else { return };
    let image = spec(&fixture.name(":1"), &["always"]);
    let anonymous = fixture.ensure(&[], None, std::slice::from_ref(&image)).await;
    assert_failure(anonymous, FailureReason::RunnerConfigurationError, "no basic auth credentials");
    fixture.assert_log(&["DOCKER_AUTH_CONFIG"]);

    let host = fixture.registry.host();
    let wrong = [credentials(host, "wrong"), credentials(host, REGISTRY_PASSWORD)];
    let rejected = fixture.ensure(&wrong, None, std::slice::from_ref(&image)).await;
    assert_failure(rejected, FailureReason::RunnerConfigurationError, "unauthorized");
    assert!(!fixture.log().contains("wrong"));

    let right = [credentials(host, "wrong"), credentials(&format!("{host}/group"), REGISTRY_PASSWORD)];
    fixture.ensure(&right, None, &[image]).await.unwrap();
    fixture.assert_log(&["\x1b[0KAuthenticating with credentials from $DOCKER_AUTH_CONFIG\x1b[0;m\n"]);
}

#[tokio::test]
async fn credential_helpers_are_used_and_a_broken_helper_is_skipped() {
    let Some(fixture) = Fixture::start(true).await else { return };
    let dir = tempfile::tempdir().unwrap();
    let answer = format!(r#"{{"Username":"{REGISTRY_USER}","Secret":"{REGISTRY_PASSWORD}"}}"#);
    for (name, script) in [("good", format!("echo '{answer}'")), ("broken", "echo locked; exit 1".to_owned())] {
        let file = dir.path().join(format!("docker-credential-{name}"));
        muster_test_prerequisites::create_program(&file, format!("#!/bin/sh\n{script}\n"));
    }
    let helper = |registry: &str, name: &str| RegistryCredentials {
        registry: registry.to_owned(),
        helper: name.to_owned(),
        source: "/home/runner/.docker/config.json".to_owned(),
        ..RegistryCredentials::default()
    };
    let path = OsString::from(format!("{}:/usr/bin:/bin", dir.path().display()));
    let image = spec(&fixture.name(":1"), &["always"]);
    let entries = [helper(fixture.registry.host(), "broken"), helper("", "good")];
    fixture.ensure(&entries, Some(path.clone()), std::slice::from_ref(&image)).await.unwrap();
    fixture.assert_log(&[
        "WARNING: Failed to get credentials from /home/runner/.docker/config.json: docker-credential-broken for REGISTRY",
        "locked",
        "Authenticating with credentials from /home/runner/.docker/config.json",
    ]);

    let unsafe_name = fixture.ensure(&[helper("", "../good")], Some(path), &[image]).await;
    assert_failure(unsafe_name, FailureReason::RunnerConfigurationError, "invalid name of a credential helper");
}

#[tokio::test]
async fn unreachable_registry_is_tried_three_times() {
    let Some(fixture) = Fixture::start(false).await else { return };
    let name = fixture.name(":1");
    let Fixture { engine, registry, lines, stop, _process } = fixture;
    let host = registry.host().to_owned();
    drop(registry);
    let images = Images::new(&engine, &[], print_to(&lines), &stop);
    let images = Images { retry_delay: || Duration::from_millis(1), ..images };
    let result = images.ensure(&spec(&name, &["always"])).await;
    assert_failure(result, FailureReason::RunnerExternalDependencyFailure, "connection refused");
    let log = lines.lock().replace(&host, "REGISTRY");
    assert!(log.contains("WARNING: Failed to pull image \"REGISTRY/group/app:1\" (attempt #1), retrying: "), "{log}");
    assert!(log.contains("(attempt #2), retrying: ") && !log.contains("(attempt #3)"), "{log}");
    assert!(log.contains("can reach it"), "{log}");
}

#[tokio::test]
async fn image_of_another_platform_does_not_count_as_present() {
    let Some(fixture) = Fixture::start(false).await else { return };
    fixture.ensure_one(":1", &["always"]).await.unwrap();
    let other = |policy: &str| ImageSpec { platform: "s390x".to_owned(), ..spec(&fixture.name(":1"), &[policy]) };
    let text = "is for linux/amd64, not for linux/s390x";
    let never = fixture.ensure(&[], None, &[other("never")]).await;
    assert_failure(never, FailureReason::RunnerConfigurationError, text);
    let pulled = fixture.ensure(&[], None, &[other("if-not-present")]).await;
    assert_failure(pulled, FailureReason::RunnerConfigurationError, text);
    fixture.assert_log(&[
        "Pulling docker image REGISTRY/group/app:1 for platform linux/s390x ...",
        "image:docker:platform",
    ]);
}

#[tokio::test]
async fn stopped_job_does_not_wait_for_a_registry() {
    let Some(fixture) = Fixture::start(false).await else { return };
    // A registry that never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("{}/app", listener.local_addr().unwrap());
    let accepted = tokio::task::spawn_blocking(move || listener.accept());
    let stop = async {
        let connection = accepted.await.unwrap().unwrap();
        fixture.stop.stop(TerminationCause::CanceledByUser);
        connection
    };
    let images = [spec(&name, &["always", "never"])];
    let (result, _connection) = tokio::join!(fixture.ensure(&[], None, &images), stop);
    assert_eq!(result.unwrap_err(), Failure::Stopped(TerminationCause::CanceledByUser));
}

#[tokio::test]
async fn podman_reports_the_same_failures() {
    let Some(engine) = DockerEngine::podman() else { return };
    let Some(fixture) = Fixture::with(engine, true).await else { return };
    let login = [credentials(fixture.registry.host(), REGISTRY_PASSWORD)];
    let image = |suffix: &str, policy: &str| spec(&fixture.name(suffix), &[policy]);
    let never = fixture.ensure(&login, None, &[image(":1", "never")]).await;
    assert_failure(never, FailureReason::RunnerConfigurationError, "No such image");
    let missing = fixture.ensure(&login, None, &[image(":9", "always")]).await;
    assert_failure(missing, FailureReason::RunnerConfigurationError, "manifest unknown");
    let anonymous = fixture.ensure(&[], None, &[image(":1", "always")]).await;
    assert_failure(anonymous, FailureReason::RunnerConfigurationError, "authentication required");
    fixture.ensure(&login, None, &[image(":1", "always"), image(":1", "if-not-present")]).await.unwrap();
    fixture.assert_log(&[
        "Pulling docker image REGISTRY/group/app:1 ...",
        "Using docker image DIGEST for REGISTRY/group/app:1 with digest REGISTRY/group/app@DIGEST ...",
    ]);
}

#[tokio::test]
async fn invalid_names_policies_and_platforms_are_rejected_without_the_engine() {
    let engine = connect_nowhere();
    let stop = StopToken::new();
    let images = Images::new(&engine, &[], Arc::new(|_| ()), &stop);
    for (spec, text) in [
        (spec("../containers/json", &[]), "is not a valid name of an image"),
        (spec("app", &["sometimes"]), "is not a valid pull policy"),
        (ImageSpec { platform: "a/b/c/d".to_owned(), ..spec("app", &[]) }, "is not a valid platform"),
    ] {
        assert_failure(images.ensure(&spec).await, FailureReason::RunnerConfigurationError, text);
    }
    let unreachable = images.ensure(&spec("app", &["if-not-present"])).await;
    assert_failure(unreachable, FailureReason::RunnerSystemFailure, "no valid answer from the container engine");
}

fn print_to(lines: &Arc<Mutex<String>>) -> Print {
    let lines = Arc::clone(lines);
    Arc::new(move |line| lines.lock().push_str(line))
}

fn connect_nowhere() -> Docker {
    let refuse = |_: bollard::BollardRequest| async {
        Err(bollard::errors::Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)))
    };
    Docker::connect_with_custom_transport(refuse, Some("http://nowhere"), 5, bollard::API_DEFAULT_VERSION).unwrap()
}
