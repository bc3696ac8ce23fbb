//! Steps in images.

use std::collections::BTreeMap;
use std::io::Read as _;

use muster_oci::{
    Credentials, Digest, HostPlatform, Image, PackOptions, Platform, Registry, Repository, pack, publish,
};
use muster_test_prerequisites::{DockerRegistry, REGISTRY_PASSWORD, REGISTRY_USER};

use super::*;

const LAYER_TYPE: &str = "application/vnd.gitlab.step.layer.v1.tar+zstd";
const ECHO: &str = "spec: {inputs: {word: {type: string, default: none}}}\n---\n\
     exec: {command: ['${{step_dir}}/print', '${{inputs.word}}']}\n";

pub(super) fn generic() -> Platform {
    Platform { os: "generic".to_owned(), architecture: "generic".to_owned(), ..Platform::default() }
}

fn local() -> Platform {
    let HostPlatform { os, architecture, .. } = HostPlatform::this();
    Platform { os, architecture, ..Platform::default() }
}

fn other() -> Platform {
    Platform { os: "plan9".to_owned(), ..local() }
}

/// Returns a layer with the step `ECHO` in each of `dirs`. The program of the step prints `word` and its argument.
pub(super) fn layer(word: &str, dirs: &[&str]) -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    for dir in dirs {
        let dir = root.path().join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("step.yml"), ECHO).unwrap();
        create_program(dir.join("print"), format!("#!/bin/sh\necho \"<{word} $1>\"\n"));
    }
    let options = PackOptions { temp_dir: root.path(), limit: 1 << 20, is_stopped: &|| false };
    let packed = pack(&[(PathBuf::from("."), root.path().to_owned())], options).unwrap();
    let mut layer = Vec::new();
    packed.reader().read_to_end(&mut layer).unwrap();
    layer
}

pub(super) fn client(registry: &DockerRegistry, path: &str) -> Registry {
    let repository = Repository { registry: registry.host().to_owned(), path: path.to_owned() };
    Registry::new(repository, Some(Credentials::new(REGISTRY_USER, REGISTRY_PASSWORD))).unwrap()
}

pub(super) async fn push(registry: &DockerRegistry, tag: &str, images: &[(Platform, Vec<u8>)]) -> Digest {
    let images =
        images.iter().map(|(platform, layer)| Image { platform: platform.clone(), layers: vec![layer.clone().into()] });
    publish(&client(registry, "g/echo"), tag, LAYER_TYPE, images.collect(), &BTreeMap::new()).await.unwrap()
}

pub(super) fn login_variable(registry: &DockerRegistry) -> Variable {
    let auth = json!({"username": REGISTRY_USER, "password": REGISTRY_PASSWORD});
    variable("DOCKER_AUTH_CONFIG", &json!({"auths": {registry.host(): auth}}).to_string())
}

/// Returns a reference to the step in the image with this tag, for the key `step` in a list of steps. `more` has
/// further keys of `oci`.
fn oci(registry: &DockerRegistry, tag: &str, more: Value) -> Value {
    let mut location = json!({"registry": registry.host(), "repository": "g/echo", "tag": tag});
    location.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"oci": location})
}

#[tokio::test]
async fn c095_image_of_the_platform_is_preferred_to_the_generic_one() {
    let Some(registry) = DockerRegistry::start(false) else { return };
    let mut fixture = Fixture::new().await;
    push(&registry, "1", &[(generic(), layer("generic", &["."])), (local(), layer("local", &["."]))]).await;
    push(&registry, "2", &[(other(), layer("other", &["."])), (generic(), layer("generic", &["."]))]).await;
    push(&registry, "3", &[(other(), layer("other", &["."]))]).await;
    assert!(fixture.pass(oci(&registry, "1", json!({}))).await.contains("<local none>"));
    assert!(fixture.pass(oci(&registry, "2", json!({}))).await.contains("<generic none>"));
    let log = fixture.fail(oci(&registry, "3", json!({}))).await;
    let this = HostPlatform::this();
    assert!(log.contains(&format!("didn't find an image matching platform {this} or generic")), "{log}");
    assert!(log.contains("It exists for: plan9/"), "{log}");
}

#[tokio::test]
async fn c095_directory_file_tag_and_digest_select_the_step() {
    let Some(registry) = DockerRegistry::start(false) else { return };
    let mut fixture = Fixture::new().await;
    let host = registry.host().to_owned();
    let digest = push(&registry, "latest", &[(generic(), layer("new", &[".", "a/b"]))]).await;
    push(&registry, "1", &[(generic(), layer("old", &[".", "a/b"]))]).await;
    for (reference, word) in [
        (oci(&registry, "1", json!({"dir": "a/b"})), "<old none>"),
        (oci(&registry, "1", json!({"dir": "a/b", "file": "step.yml"})), "<old none>"),
        (oci(&registry, "", json!({})), "<new none>"),
        (oci(&registry, &digest.to_string(), json!({})), "<new none>"),
        (json!(format!("{host}/g/echo:1")), "<old none>"),
        (json!(format!("{host}/g/echo:1 a/b/step.yml")), "<old none>"),
        (json!(format!("{host}/g/echo@{digest} a/b")), "<new none>"),
    ] {
        let log = fixture.pass(reference.clone()).await;
        assert!(log.contains(word), "{reference}: {log}");
    }
    let log = fixture.fail(oci(&registry, "9", json!({}))).await;
    assert!(log.contains(&format!("{host}/g/echo:9: ")) && log.contains("not found at the registry"), "{log}");
}

#[tokio::test]
async fn c095_unreachable_registry_is_named() {
    let mut fixture = Fixture::new().await;
    let location = json!({"oci": {"registry": "127.0.0.1:1", "repository": "g/echo", "tag": "1"}});
    let log = fixture.fail(location.clone()).await;
    assert!(log.contains("127.0.0.1:1/g/echo:1: ") && log.contains("check the name of the registry"), "{log}");
    let legacy = [variable("CI_STEPS_DIALECT", "legacy")];
    let (log, result) = fixture.run_list(json!([{"name": "a", "step": location}]), &legacy).await;
    assert!(log.contains("check the name of the registry"), "{log}");
    assert!(result.message.ends_with("exit status 1"), "{}", result.message);
    let list = format!("{{}}\n---\n{}", json!({"run": [{"name": "a", "step": location}]}));
    let mut request = request("2-1", &fixture.agent.plan(vec![]), &legacy);
    request.steps = list;
    fixture.agent.steps.run(request).await.unwrap();
    let result = fixture.agent.wait("2-1").await;
    assert_eq!(result.message, "step \"a\": step \"fetch_step_a\": exec: exit status 1");
}

#[tokio::test]
async fn c096_inputs_of_a_step_in_an_image_can_use_outputs_of_earlier_steps() {
    let Some(registry) = DockerRegistry::start(false) else { return };
    let mut fixture = Fixture::new().await;
    push(&registry, "1", &[(generic(), layer("image", &["."]))]).await;
    let produce = "spec: {outputs: {x: {type: string}}}\n---\n\
         exec: {command: [sh, -c, 'echo \"{\\\"name\\\":\\\"x\\\",\\\"value\\\":\\\"v\\\"}\" >\"$1\"', p, '${{output_file}}']}\n";
    fs::create_dir_all(fixture.agent.project().join("produce")).unwrap();
    fs::write(fixture.agent.project().join("produce/step.yml"), produce).unwrap();
    let list = json!([
        {"name": "prev", "step": "./produce"},
        {"name": "a", "step": oci(&registry, "1", json!({})), "inputs": {"word": "${{steps.prev.outputs.x}}"}},
    ]);
    let (log, _) = fixture.run_list(list.clone(), &[]).await;
    assert!(log.contains("<image v>"), "{log}");
    let (log, result) = fixture.run_list(list, &[variable("CI_STEPS_DIALECT", "legacy")]).await;
    assert!(matches!(result.outcome, Outcome::Failed { .. }) && log.contains("the \"prev\" was not found"), "{log}");
}

#[tokio::test]
async fn credentials_of_the_job_are_used_for_their_registry() {
    let Some(registry) = DockerRegistry::start(true) else { return };
    let mut fixture = Fixture::new().await;
    push(&registry, "1", &[(generic(), layer("private", &["."]))]).await;
    let list = json!([{"name": "a", "step": oci(&registry, "1", json!({}))}]);
    let (log, _) = fixture.run_list(list.clone(), &[login_variable(&registry)]).await;
    assert!(log.contains("<private none>"), "{log}");
    let (log, _) = fixture.run_list(list.clone(), &[]).await;
    assert!(
        log.contains("denies access") && log.contains("; set DOCKER_AUTH_CONFIG"),
        "the cache must not replace the login: {log}"
    );
    let other =
        variable("DOCKER_AUTH_CONFIG", &login_variable(&registry).value.replace(registry.host(), "127.0.0.1:9"));
    let (log, _) = fixture.run_list(list.clone(), &[other]).await;
    assert!(log.contains("denies access") && !log.contains(REGISTRY_PASSWORD), "{log}");
    let (log, _) = fixture.run_list(list.clone(), &[variable("DOCKER_AUTH_CONFIG", "{")]).await;
    assert!(log.contains("DOCKER_AUTH_CONFIG: not valid JSON") && log.contains("; correct the variable"), "{log}");
    let own = [
        variable("CI_REGISTRY", registry.host()),
        variable("CI_REGISTRY_USER", REGISTRY_USER),
        variable("CI_REGISTRY_PASSWORD", REGISTRY_PASSWORD),
    ];
    let (log, _) = fixture.run_list(list, &own).await;
    assert!(log.contains("<private none>"), "{log}");
}

#[tokio::test]
async fn layer_that_a_job_changed_in_the_cache_is_fetched_again() {
    let Some(registry) = DockerRegistry::start(false) else { return };
    let mut fixture = Fixture::new().await;
    push(&registry, "1", &[(generic(), layer("good", &["."]))]).await;
    fixture.pass(oci(&registry, "1", json!({}))).await;
    let cache = fixture.agent.dir.path().join("spool/.steps");
    let layers = || fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let [cached] = layers().collect::<Vec<_>>().try_into().unwrap();
    fs::write(&cached, layer("evil", &["."])).unwrap();
    let log = fixture.pass(oci(&registry, "1", json!({}))).await;
    assert!(log.contains("<good none>"), "{log}");
    assert_eq!(fs::read(&cached).unwrap(), layer("good", &["."]));
}
