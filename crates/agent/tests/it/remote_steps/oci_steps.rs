//! Bundled steps that build, fetch, publish and promote steps.

use muster_oci::{Index, TagList};
use muster_test_prerequisites::DockerRegistry;

use super::registry::{client, login_variable};
use super::*;

fn write_step(fixture: &Fixture) {
    let dir = fixture.agent.project().join("src");
    fs::create_dir_all(dir.join("bin")).unwrap();
    let step = "spec: {inputs: {word: {type: string}}}\n---\n\
                exec: {command: ['${{step_dir}}/bin/print', '${{inputs.word}}']}\n";
    fs::write(dir.join("step.yml"), step).unwrap();
    create_program(dir.join("bin/print"), "#!/bin/sh\necho \"<built $1>\"\n");
}

/// Returns inputs of the step `oci/build`: a generic image, and an image for Plan 9 with one more file.
fn build_inputs(registry: &DockerRegistry, path: &str, tag: &str) -> Value {
    json!({
        "registry": registry.host(),
        "repository": path,
        "tag": tag,
        "common": {"files": {"src/step.yml": "step.yml", "src/bin": "bin"}},
        "platforms": {"generic/generic": {}, "plan9/amd64": {"files": {"src/step.yml": "doc/only-here.yml"}, "os.version": "4"}},
    })
}

async fn tags(registry: &DockerRegistry, path: &str) -> Vec<String> {
    match client(registry, path).tags().await.unwrap() {
        TagList::Tags(mut tags) => {
            tags.sort();
            tags
        }
        TagList::Unlisted => panic!("the registry does not list its tags"),
    }
}

async fn index(registry: &DockerRegistry, path: &str, tag: &str) -> Index {
    client(registry, path).index(tag).await.unwrap()
}

#[tokio::test]
async fn c097_step_is_built_fetched_and_run_in_one_job() {
    let Some(registry) = DockerRegistry::start(true) else { return };
    let mut fixture = Fixture::new().await;
    write_step(&fixture);
    let fetch = json!({
        "registry": "${{ steps.build.outputs.registry }}",
        "repository": "${{ steps.build.outputs.repository }}",
        "tag": "${{ steps.build.outputs.tag }}",
    });
    let list = json!([
        {"name": "build", "step": "dist://step/oci/build", "inputs": build_inputs(&registry, "g/built", "1.0.0")},
        {"name": "fetch", "step": "dist://step/oci/fetch", "inputs": fetch},
        {"name": "run", "step": "${{ steps.fetch.outputs.fetched_step_path }}", "inputs": {"word": "${{ steps.build.outputs.ref }}"}},
        {"name": "show", "script": "echo '${{ steps.build.outputs.digest.value }} ${{ steps.build.outputs.digest.hash }}' \
            '${{ steps.build.outputs.digest.algorithm }} ${{ steps.fetch.outputs.ref }}'"},
        {"name": "direct", "step": format!("{}/g/built:1.0.0", registry.host()), "inputs": {"word": "direct"}},
    ]);
    for dialect in ["legacy", "current"] {
        let mut list = list.clone();
        list[0]["inputs"]["repository"] = json!(format!("g/built-{dialect}"));
        list[4]["step"] =
            json!({"oci": {"registry": registry.host(), "repository": format!("g/built-{dialect}"), "tag": "1.0.0"}});
        let variables = [login_variable(&registry), variable("CI_STEPS_DIALECT", dialect)];
        let (log, result) = fixture.run_list(list, &variables).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        let image = format!("{}/g/built-{dialect}:1.0.0", registry.host());
        assert!(log.contains(&format!("published step image={image}")), "{log}");
        assert!(log.contains(&format!("<built {image}>\n")) && log.contains("<built direct>\n"), "{log}");
        let (digest, _) = client(&registry, &format!("g/built-{dialect}")).resolve("1.0.0").await.unwrap();
        let hash = digest.to_string().replace("sha256:", "");
        assert!(log.contains(&format!("\n{digest} {hash} sha256 {image}\n")), "{log}");
    }
    let platforms = index(&registry, "g/built-current", "1.0.0").await.manifests;
    let platforms: Vec<_> = platforms.into_iter().filter_map(|entry| entry.platform).collect();
    assert_eq!(platforms.iter().map(ToString::to_string).collect::<Vec<_>>(), ["generic/generic", "plan9/amd64"]);
    assert_eq!(platforms[1].os_version, "4");
}

#[tokio::test]
async fn existing_tag_and_invalid_inputs_are_refused() {
    let Some(registry) = DockerRegistry::start(true) else { return };
    let mut fixture = Fixture::new().await;
    write_step(&fixture);
    let build = |inputs: Value| {
        json!([
            {"name": "build", "step": "dist://step/oci/build", "inputs": inputs},
        ])
    };
    let valid = build_inputs(&registry, "g/once", "1.0.0");
    let (log, result) = fixture.run_list(build(valid.clone()), &[login_variable(&registry)]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let changed = |key: &str, value: Value| {
        let mut inputs = valid.clone();
        inputs[key] = value;
        inputs
    };
    for (inputs, variables, message) in [
        (valid.clone(), vec![login_variable(&registry)], "image already published: "),
        (valid.clone(), vec![], "set DOCKER_AUTH_CONFIG to credentials for this registry"),
        (changed("platforms", json!({})), vec![], "platforms input: must have at least one platform"),
        (changed("platforms", json!({"linux": {}})), vec![], "invalid platform os/arch: linux"),
        (changed("common", json!({"file": {}})), vec![], "common input: unknown field `file`"),
        (changed("common", json!({"files": {"src": "../x"}})), vec![], "is outside of the image"),
        (changed("common", json!({"files": {"missing": "x"}})), vec![login_variable(&registry)], "failed to read "),
        (changed("tag", json!(" ")), vec![], "tag is required"),
    ] {
        let mut inputs = inputs;
        if message == "failed to read " {
            inputs["tag"] = json!("2.0.0");
        }
        let (log, result) = fixture.run_list(build(inputs), &variables).await;
        assert_eq!(failure(&result).0, "script_failure", "{log}");
        assert!(result.message.contains(message) || log.contains(message), "{message}: {} {log}", result.message);
    }
}

#[tokio::test]
async fn promoted_image_keeps_its_digest_and_moves_the_tags_of_its_series() {
    let Some(registry) = DockerRegistry::start(true) else { return };
    let mut fixture = Fixture::new().await;
    write_step(&fixture);
    let promote = |name: &str, version: &str| {
        let inputs = json!({
            "from_image": format!("{}/g/from:snapshot", registry.host()),
            "to_registry": registry.host(),
            "to_repository": "g/to",
            "to_version": version,
        });
        json!({"name": name, "step": "dist://step/oci/promote", "inputs": inputs})
    };
    let list = json!([
        {"name": "build", "step": "dist://step/oci/build", "inputs": build_inputs(&registry, "g/from", "snapshot")},
        promote("first", "1.2.3"),
        promote("older", "1.1.0"),
        promote("candidate", "2.0.0-rc1"),
    ]);
    let (log, result) = fixture.run_list(list, &[login_variable(&registry)]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert_eq!(tags(&registry, "g/to").await, ["1", "1.1", "1.1.0", "1.2", "1.2.3", "2.0.0-rc1", "latest"]);
    let digest = |path: &'static str, tag: &'static str| {
        let client = client(&registry, path);
        async move { client.resolve(tag).await.unwrap().0 }
    };
    assert_eq!(digest("g/to", "latest").await, digest("g/from", "snapshot").await);
    let (log, result) = fixture.run_list(json!([promote("bad", "1.2")]), &[login_variable(&registry)]).await;
    assert!(result.message.contains("\"1.2\" is not a valid version"), "{} {log}", result.message);
}

#[tokio::test]
async fn function_is_built_into_an_archive_and_published_later() {
    let Some(registry) = DockerRegistry::start(true) else { return };
    let mut fixture = Fixture::new().await;
    write_step(&fixture);
    let build = json!({
        "version": "0.3.0",
        "common": {"files": {"func.yml": "src/step.yml", "bin": "src/bin"}},
        "platforms": {"generic/generic": {"files": {}}},
    });
    let publish = json!({"archive": "function-image.tar", "to_repository": format!("{}/g/function", registry.host())});
    let list = json!([
        {"name": "build", "func": "builtin://function/oci/build", "inputs": build},
        {"name": "publish", "func": "builtin://function/oci/publish", "inputs": publish},
        {"name": "run", "func": format!("{}/g/function:0", registry.host()), "inputs": {"word": "function"}},
    ]);
    let (log, result) = fixture.run_list(list, &[login_variable(&registry)]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("<built function>\n"), "{log}");
    assert_eq!(tags(&registry, "g/function").await, ["0", "0.3", "0.3.0", "latest"]);
    let broken = json!([
        {"name": "write", "script": "echo text >text"},
        {"name": "publish", "func": "builtin://function/oci/publish", "inputs": {"archive": "text", "to_repository": format!("{}/g/x", registry.host())}},
    ]);
    let (log, result) = fixture.run_list(broken, &[login_variable(&registry)]).await;
    assert!(result.message.contains("text is not a valid archive of a function"), "{} {log}", result.message);
}

#[tokio::test]
async fn policy_applies_to_the_image_that_a_step_fetches() {
    let mut fixture = Fixture::new().await;
    let inputs = json!({"registry": "registry.example.com", "repository": "g/denied", "tag": "1"});
    let list = json!([{"name": "fetch", "step": "dist://step/oci/fetch", "inputs": inputs}]);
    let mut plan = fixture.agent.plan(vec![step("step_script", When::OnSuccess, Call::Run(list))]);
    let rule = muster_job::PolicyRule { line: 3, pattern: "oci:**/denied:*".to_owned(), ..Default::default() };
    plan.step_policy = Some(muster_job::StepPolicy { rules: vec![rule], ..Default::default() });
    let (log, result) = fixture.agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "runner_configuration_error", "{log}");
    assert!(log.contains("does not allow `oci:registry.example.com/g/denied:1`"), "{log}");
}
