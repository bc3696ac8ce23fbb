//! Payloads: C024, C201 to C215, and the mistakes that docs/spec/runner-api.md, section 11, lists for payloads.

use muster_coordinator::payload::{Archive, PayloadError, missing_feature};
use muster_job::{FailureReason, JobId, Secret, Variable};
use muster_pipeline::context::{PipelineSource, RefKind};
use muster_pipeline::model::{AllowFailure, Artifacts, Bridge, BridgeTarget, Cache, Image, Strategy, Work};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::wire::VersionInfo;
use proptest::prelude::*;
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use serde_json::{Value, json};

use crate::assignments::{JobFixture, SHA, TOKEN};

fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

fn artifacts(fixture: &mut JobFixture) -> &mut Artifacts {
    fixture.work.artifacts.get_or_insert_with(|| Artifacts { when: "on_success".to_owned(), ..Artifacts::default() })
}

#[test]
fn c024_before_script_and_script_are_one_step() {
    let mut fixture = JobFixture::new();
    fixture.work.before_script = texts(&["p"]);
    fixture.work.after_script = texts(&["q"]);
    let steps = fixture.payload().steps;
    assert_eq!(steps.len(), 2);
    assert_eq!((steps[0].name.as_str(), &steps[0].script), ("script", &texts(&["p", "x"])));
    assert_eq!((steps[0].when.as_str(), steps[0].allow_failure, steps[0].timeout), ("on_success", false, 3600));
    assert_eq!((steps[1].name.as_str(), &steps[1].script), ("after_script", &texts(&["q"])));
    assert_eq!((steps[1].when.as_str(), steps[1].allow_failure), ("always", true));
}

#[test]
fn c201_archive_and_reports_are_separate_artifacts() {
    let mut fixture = JobFixture::new();
    artifacts(&mut fixture).paths = texts(&["o"]);
    artifacts(&mut fixture).reports =
        vec![("junit".to_owned(), texts(&["r.xml"])), ("dotenv".to_owned(), texts(&["e"]))];
    let sent: Vec<_> = fixture
        .payload()
        .artifacts
        .into_iter()
        .map(|entry| (entry.artifact_type, entry.artifact_format, entry.when, entry.name, entry.paths))
        .collect();
    let entry = |kind: &str, format: &str, when: &str, name: &str, path: &str| {
        (kind.to_owned(), format.to_owned(), when.to_owned(), name.to_owned(), texts(&[path]))
    };
    assert_eq!(
        sent,
        [
            entry("archive", "zip", "on_success", "artifacts", "o"),
            entry("junit", "gzip", "always", "junit.xml", "r.xml"),
            entry("dotenv", "gzip", "always", ".env", "e"),
        ]
    );
}

#[test]
fn c202_job_without_paths_has_no_archive() {
    let mut fixture = JobFixture::new();
    artifacts(&mut fixture).expire_in = Some("1 day".to_owned());
    assert!(fixture.payload().artifacts.is_empty());
    artifacts(&mut fixture).untracked = true;
    let sent = fixture.payload().artifacts;
    assert_eq!((sent.len(), sent[0].expire_in.as_str(), sent[0].untracked), (1, "1 day", true));
}

#[test]
fn c203_coverage_report_is_sent_with_its_format() {
    let mut fixture = JobFixture::new();
    artifacts(&mut fixture).reports = vec![("cobertura".to_owned(), texts(&["c.xml"]))];
    let sent = fixture.payload().artifacts;
    assert_eq!((sent[0].artifact_type.as_str(), &sent[0].paths), ("cobertura", &texts(&["c.xml"])));
    assert_eq!(sent[0].name, "cobertura-coverage.xml");
}

#[test]
fn c204_cache_key_suffix_depends_on_ref_protection() {
    for (protected, unprotect, separate, key) in [
        (false, false, true, "p-default-non_protected"),
        (true, false, true, "p-default-protected"),
        (true, true, true, "p-default-non_protected"),
        (true, false, false, "p-default"),
    ] {
        let mut fixture = JobFixture::new();
        fixture.context.ref_protected = protected;
        fixture.project.separate_caches = separate;
        fixture.work.cache = vec![Cache {
            key: "p-default".to_owned(),
            paths: texts(&["v"]),
            unprotect,
            fallback_keys: texts(&["f"]),
            ..Cache::default()
        }];
        let sent = fixture.payload().cache;
        assert_eq!(sent[0].key, key);
        assert_eq!(sent[0].fallback_keys, [key.replace("p-default", "f")]);
    }
}

#[test]
fn c205_cache_has_default_key_policy_and_condition() {
    let mut fixture = JobFixture::new();
    fixture.work.cache = vec![Cache { paths: texts(&["v"]), ..Cache::default() }, Cache::default()];
    let sent = fixture.payload().cache;
    assert_eq!(sent.len(), 1, "a cache without paths must be omitted");
    let cache = &sent[0];
    assert_eq!(
        (cache.key.as_str(), cache.policy.as_str(), cache.when.as_str()),
        ("default-non_protected", "pull-push", "on_success")
    );
}

#[test]
fn c206_branch_pipeline_has_depth_and_refspecs() {
    let mut fixture = JobFixture::new();
    let git = fixture.payload().git_info;
    assert_eq!((git.depth, git.ref_type.as_str(), git.protected), (20, "branch", Some(false)));
    let pipeline = "+refs/pipelines/5:refs/pipelines/5";
    assert_eq!(git.refspecs, [pipeline, "+refs/heads/main:refs/remotes/origin/main"]);
    assert_eq!((git.sha.as_str(), git.ref_name.as_str()), (SHA, "main"));
    assert_eq!(git.repo_url, format!("http://gitlab-ci-token:{TOKEN}@127.0.0.1:1234/grp/app.git"));

    fixture.job.variables = vec![Variable::public("GIT_DEPTH", "0")];
    let git = fixture.payload().git_info;
    assert_eq!(git.depth, 0);
    assert_eq!(git.refspecs, [pipeline, "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]);

    fixture.job.variables = vec![Variable::public("GIT_DEPTH", "many")];
    assert_eq!(fixture.payload().git_info.depth, 0);
}

#[test]
fn c207_tag_pipeline_fetches_the_tag() {
    let mut fixture = JobFixture::new();
    fixture.context.ref_kind = RefKind::Tag;
    fixture.context.ref_name = "v1".to_owned();
    let git = fixture.payload().git_info;
    assert_eq!(git.ref_type, "tag");
    assert_eq!(git.refspecs[1], "+refs/tags/v1:refs/tags/v1");
}

#[test]
fn merge_request_fetches_only_the_pipeline_ref() {
    let mut fixture = JobFixture::new();
    fixture.context.source = PipelineSource::MergeRequestEvent;
    fixture.context.ref_name = "refs/merge-requests/1/head".to_owned();
    let git = fixture.payload().git_info;
    assert_eq!(git.refspecs, ["+refs/pipelines/5:refs/pipelines/5"]);
    assert_eq!(git.ref_type, "branch");
}

#[test]
fn c208_services_have_aliases_and_variables() {
    let mut fixture = JobFixture::new();
    fixture.work.services = vec![Image {
        name: "pg".to_owned(),
        alias: Some("db,sql".to_owned()),
        variables: vec![Variable::public("P", "x")],
        ..Image::default()
    }];
    let sent = as_json(&fixture.payload());
    assert_eq!(sent["services"][0]["alias"], "db,sql");
    assert_eq!(sent["services"][0]["variables"][0]["key"], "P");
    assert_eq!(sent["services"][0].get("executor_opts"), None);
}

#[test]
fn c209_image_has_executor_options() {
    let mut fixture = JobFixture::new();
    fixture.work.image = Some(Image {
        name: "i".to_owned(),
        pull_policy: texts(&["always"]),
        docker_user: Some("u".to_owned()),
        ..Image::default()
    });
    let sent = as_json(&fixture.payload());
    assert_eq!(sent["image"]["pull_policy"], json!(["always"]));
    assert_eq!(sent["image"]["executor_opts"], json!({"docker": {"user": "u"}}));
    assert_eq!(as_json(&JobFixture::new().payload())["image"], Value::Null);
}

#[test]
fn c210_run_is_text_and_replaces_the_script() {
    let mut fixture = JobFixture::new();
    fixture.work.script.clear();
    fixture.work.run = Some(json!([{"name": "s", "script": "y"}]));
    let sent = as_json(&fixture.payload());
    assert_eq!(sent["run"], r#"[{"name":"s","script":"y"}]"#);
    assert_eq!(sent.get("steps"), None);
    let script = as_json(&JobFixture::new().payload());
    assert_eq!(script.get("run"), None, "`run` must be absent, not null");
}

#[test]
fn c211_pre_get_sources_script_is_a_hook() {
    let mut fixture = JobFixture::new();
    fixture.work.pre_get_sources_script = texts(&["h"]);
    let hooks = fixture.payload().hooks;
    assert_eq!(hooks.len(), 1);
    assert_eq!((hooks[0].name.as_str(), &hooks[0].script), ("pre_get_sources_script", &texts(&["h"])));
}

#[test]
fn c212_id_token_is_a_masked_signed_variable() {
    let mut fixture = JobFixture::new();
    fixture.work.id_tokens = vec![
        ("T".to_owned(), texts(&["https://x"])),
        ("U".to_owned(), texts(&["https://$CI_COMMIT_BRANCH.test", "b"])),
    ];
    let payload = fixture.payload();
    let token = payload.variables.iter().find(|variable| variable.key == "T").expect("no variable `T`");
    assert!(token.masked && !token.public);
    let claims = verified_claims(&fixture, &token.value);
    for (claim, expected) in [
        ("aud", json!("https://x")),
        ("iss", json!("http://127.0.0.1:1234")),
        ("sub", json!("project_path:grp/app:ref_type:branch:ref:main")),
        ("job_id", json!("42")),
        ("namespace_path", json!("grp")),
        ("pipeline_source", json!("push")),
        ("user_login", json!("ann")),
    ] {
        assert_eq!(claims[claim], expected, "{claim}");
    }
    assert!(claims["exp"].as_i64() > claims["iat"].as_i64());
    let several = payload.variables.iter().find(|variable| variable.key == "U").expect("no variable `U`");
    assert_eq!(verified_claims(&fixture, &several.value)["aud"], json!(["https://main.test", "b"]));
    // The token is not among the variables that rules and other variables see.
    assert_eq!(fixture.value("T"), None);
}

#[test]
fn c213_raw_variables_are_marked_and_missing_features_are_found() {
    let mut fixture = JobFixture::new();
    fixture.job.variables = vec![Variable { raw: true, ..Variable::public("C", "$A") }];
    assert!(fixture.payload().variables.iter().any(|variable| variable.key == "C" && variable.raw));

    let missing = |fixture: &JobFixture, features: &[&str]| {
        let mut job = fixture.job.clone();
        job.work = Work::Script(Box::new(fixture.work.clone()));
        let features = features.iter().map(|feature| ((*feature).to_owned(), true)).collect();
        missing_feature(&job, fixture.context.source, &VersionInfo { features, ..VersionInfo::default() })
    };
    assert_eq!(missing(&fixture, &[]), None);
    fixture.job.allow_failure = AllowFailure::ExitCodes(vec![42]);
    assert_eq!(missing(&fixture, &["artifacts"]), Some("return_exit_code"));
    assert_eq!(missing(&fixture, &["return_exit_code"]), None);
    fixture.job.allow_failure = AllowFailure::No;
    artifacts(&mut fixture).exclude = texts(&["x"]);
    assert_eq!(missing(&fixture, &[]), Some("artifacts_exclude"));
    artifacts(&mut fixture).exclude.clear();
    artifacts(&mut fixture).reports = vec![("junit".to_owned(), texts(&["j"]))];
    assert_eq!(missing(&fixture, &[]), Some("upload_multiple_artifacts"));
    fixture.work.artifacts = None;
    fixture.work.release = Some(json!({"tag_name": "v1"}));
    assert_eq!(missing(&fixture, &[]), Some("multi_build_steps"));
    fixture.work.release = None;
    fixture.context.source = PipelineSource::MergeRequestEvent;
    assert_eq!(missing(&fixture, &[]), Some("refspecs"));
}

#[test]
fn c214_empty_after_script_has_no_step() {
    let steps = JobFixture::new().payload().steps;
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].name, "script");
}

#[test]
fn c215_runner_owned_variables_are_not_sent() {
    let payload = JobFixture::new().payload();
    for name in ["CI_PROJECT_DIR", "CI_BUILDS_DIR", "CI_SERVER", "CI_JOB_STATUS", "CI_CONCURRENT_ID"] {
        assert!(payload.variables.iter().all(|variable| variable.key != name), "{name}");
    }
}

#[test]
fn release_runs_between_script_and_after_script() {
    let mut fixture = JobFixture::new();
    fixture.work.after_script = texts(&["q"]);
    fixture.work.release = Some(json!({"tag_name": "$CI_COMMIT_TAG", "description": "d"}));
    let steps = fixture.payload().steps;
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["script", "release", "after_script"]);
    assert!(steps[1].script.iter().any(|line| line.contains("glab") && line.contains("release create")));
}

#[test]
fn secrets_are_masked_variables_and_a_missing_one_is_an_error_with_a_remedy() {
    let mut fixture = JobFixture::new();
    fixture.work.secrets =
        vec![("PASSWORD".to_owned(), json!({"vault": "a/b"})), ("PLAIN".to_owned(), json!({"file": false}))];
    let error = fixture.try_payload().expect_err("a missing secret must be an error");
    assert!(matches!(&error, PayloadError::MissingSecret { secret, .. } if secret == "PASSWORD"));
    let text = error.to_string();
    assert!(text.contains("PASSWORD") && text.contains("[[secrets]]") && text.contains("ci.toml"), "{text}");

    fixture.secrets.insert("PASSWORD".to_owned(), Secret::new("pa$$word"));
    fixture.secrets.insert("PLAIN".to_owned(), Secret::new("p"));
    let payload = fixture.payload();
    let find = |name: &str| payload.variables.iter().find(|variable| variable.key == name).expect("no sent variable");
    let password = find("PASSWORD");
    assert!(password.masked && password.file && password.raw && !password.public);
    assert_eq!(password.value, "pa$$word");
    assert!(!find("PLAIN").file);
}

#[test]
fn archives_are_downloaded_with_the_token_of_the_job() {
    let mut fixture = JobFixture::new();
    fixture.archives =
        vec![Archive { job: JobId(9), name: "p".to_owned(), filename: "artifacts.zip".to_owned(), size: 12 }];
    let sent = as_json(&fixture.payload());
    let expected = json!([{
        "id": 9, "token": TOKEN, "name": "p", "artifacts_file": {"filename": "artifacts.zip", "size": 12},
    }]);
    assert_eq!(sent["dependencies"], expected);
}

#[test]
fn job_inputs_are_inserted_into_the_script() {
    let mut fixture = JobFixture::new();
    fixture.work.script = texts(&["echo ${{ job.inputs.who }} ${{job.inputs.times}} ${{ job.inputs.other }}"]);
    fixture.work.inputs =
        vec![("who".to_owned(), json!({"default": "you"})), ("times".to_owned(), json!({"default": 3}))];
    assert_eq!(fixture.payload().steps[0].script, ["echo you 3 ${{ job.inputs.other }}"]);
}

#[test]
fn bridges_have_no_payload() {
    let mut fixture = JobFixture::new();
    fixture.job.work = Work::Bridge(Box::new(Bridge {
        target: BridgeTarget::Mirror { project: "g/p".to_owned() },
        strategy: Strategy::None,
        forward_yaml_variables: true,
        forward_pipeline_variables: false,
    }));
    assert!(matches!(fixture.try_payload(), Err(PayloadError::Bridge { .. })));
}

#[test]
fn payload_is_decodable_by_gitlab_runner() {
    let mut fixture = JobFixture::new();
    fixture.job.variables = vec![Variable::public("N", "12")];
    let payload = fixture.payload();
    let sent = as_json(&payload);
    assert!(sent["id"].is_i64() && sent["git_info"]["depth"].is_i64());
    assert!(sent["variables"].as_array().is_some_and(|all| all.iter().all(|entry| entry["value"].is_string())));
    assert_eq!(sent["job_info"]["project_jobs_running_on_instance_runners_count"], "+Inf");
    assert_eq!(sent["features"]["failure_reasons"].as_array().map(Vec::len), Some(FailureReason::ALL.len()));
    assert_eq!(sent["runner_info"]["timeout"], 3600);
    assert_eq!(sent["muster"]["local_repository"], "/state/repo.git");
    let decoded: JobPayload = serde_json::from_value(sent).expect("failed to decode");
    assert_eq!(decoded, payload);
}

fn as_json(payload: &JobPayload) -> Value {
    serde_json::to_value(payload).unwrap_or_default()
}

fn verified_claims(fixture: &JobFixture, token: &str) -> Value {
    use base64::Engine as _;
    let decode = |part: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap_or_default();
    let signer = muster_coordinator::jwt::Signer::from_pkcs8(&fixture.key).unwrap_or_else(|error| panic!("{error}"));
    let key = signer.public_key();
    let coordinate = |name: &str| decode(key[name].as_str().unwrap_or_default());
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    let (text, signature) = token.rsplit_once('.').unwrap_or_default();
    let result = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(text.as_bytes(), &decode(signature));
    assert!(result.is_ok(), "invalid signature of {token}");
    let (header, claims) = text.split_once('.').unwrap_or_default();
    let header: Value = serde_json::from_slice(&decode(header)).unwrap_or_default();
    assert_eq!((&header["alg"], &header["kid"]), (&json!("ES256"), &key["kid"]));
    serde_json::from_slice(&decode(claims)).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn payload_round_trips_any_text(
        script in prop::collection::vec("\\PC{0,30}", 1..4),
        values in prop::collection::vec(("[A-Z_]{1,6}", "\\PC{0,20}", any::<bool>(), any::<bool>()), 0..6),
        image in "\\PC{0,12}",
        key in "\\PC{0,12}",
        audience in "\\PC{0,12}",
        depth in "[0-9a-z-]{0,22}",
    ) {
        let mut fixture = JobFixture::new();
        fixture.work.script = script.clone();
        fixture.job.variables = values
            .into_iter()
            .map(|(key, value, raw, file)| Variable { raw, file, ..Variable::public(key, value) })
            .chain([Variable::public("GIT_DEPTH", depth)])
            .collect();
        fixture.work.image = Some(Image { name: image, ..Image::default() });
        fixture.work.cache = vec![Cache { key, paths: texts(&["v"]), ..Cache::default() }];
        fixture.work.id_tokens = vec![("T".to_owned(), vec![audience])];
        fixture.work.release = Some(json!({"tag_name": script[0], "assets": {"links": [{"name": script[0]}]}}));
        let payload = fixture.payload();
        prop_assert_eq!(&payload.steps[0].script, &script);
        prop_assert!(payload.git_info.depth >= 0);
        let mut names: Vec<&str> = payload.variables.iter().map(|variable| variable.key.as_str()).collect();
        let sent = names.len();
        names.sort_unstable();
        names.dedup();
        prop_assert_eq!(names.len(), sent, "each name must be sent once");
        let text = serde_json::to_string(&payload).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let decoded: JobPayload = serde_json::from_str(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(decoded, payload);
    }
}
