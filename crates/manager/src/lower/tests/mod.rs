//! Tests of plans that are lowered from payloads of GitLab and of Muster's coordinator.

mod caches;
mod driver;
mod mirror;
mod operator;
mod replace;
mod runner;
mod same_steps;
mod secrets;
mod share;
mod size;

use muster_agent_api::builtin::{ArtifactsUploadList, ProvenanceInfo};
use muster_executor::SlotKey;
use muster_job::Secret;
use serde_json::{Value, json};

use super::*;

pub(super) fn runner() -> RunnerSettings {
    let token = Secret::new("glrt-t1_shorttokenrest");
    RunnerSettings {
        name: "manager".to_owned(),
        system_id: "s_0123456789ab".to_owned(),
        custom_build_dir: Some(true),
        ..RunnerSettings::new("http://127.0.0.1:1".parse().unwrap(), token, 0)
    }
}

pub(super) fn context() -> JobContext {
    JobContext {
        directories: Directories { builds: "/builds".into(), cache: "/cache".into(), shared: true },
        slot: Slot { id: 2, project_slot: 1, key: SlotKey { runner: "short".to_owned(), project_id: 5 } },
        runner: Arc::new(runner()),
        host_name: "host".to_owned(),
        reschedule_notes: Vec::new(),
        connection_lines: Vec::new(),
        certificates: Certificates::default(),
        docker: DockerFiles::default(),
        suspend_support: Err("suspension is not supported".to_owned()),
        share: None,
        cache_objects: BTreeMap::new(),
        cache_chunks: BTreeMap::new(),
        secrets: Vec::new(),
    }
}

/// The fields of `extra` override those of a typical payload.
pub(super) fn payload(extra: Value) -> JobPayload {
    let mut value = json!({
        "id": 42, "token": "glcbt-secret", "allow_git_fetch": true,
        "job_info": { "name": "test job", "stage": "test", "project_id": 5, "project_name": "project" },
        "git_info": {
            "repo_url": "https://gitlab.example/group/project.git", "ref": "main", "sha": "0123456789abcdef",
            "before_sha": "0", "ref_type": "branch", "refspecs": ["+refs/heads/main:refs/remotes/origin/main"], "depth": 20
        },
        "runner_info": { "timeout": 3600 },
        "variables": [],
        "steps": [{ "name": "script", "script": ["make test"], "timeout": 3600, "when": "on_success" }],
        "features": { "trace_sections": true, "failure_reasons": ["script_failure"] }
    });
    for (key, field) in extra.as_object().unwrap() {
        value[key] = field.clone();
    }
    serde_json::from_value(value).unwrap()
}

pub(super) fn variables(list: &[(&str, &str)]) -> Value {
    json!({ "variables": list.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect::<Vec<_>>() })
}

fn lowered(extra: Value) -> LoweredJob {
    lower(&payload(extra), &context()).unwrap()
}

pub(super) fn value(job: &LoweredJob, name: &str) -> Option<String> {
    job.variables.iter().find(|variable| variable.key == name).map(|variable| variable.value.clone())
}

/// Returns the plan without the version of this build.
pub(super) fn plan(job: &LoweredJob) -> Value {
    let text = serde_json::to_string(&job.plan).unwrap();
    serde_json::from_str(&text.replace(concat!("muster ", env!("CARGO_PKG_VERSION")), "muster [version]")).unwrap()
}

#[test]
fn plain_job() {
    insta::assert_json_snapshot!(plan(&lowered(json!({}))));
}

#[test]
fn variables_of_plain_job() {
    let job = lowered(variables(&[("CI_JOB_NAME", "test job")]));
    let list: Vec<_> = job
        .variables
        .iter()
        .filter(|variable| !variable.key.starts_with("FF_") && variable.key != "CI_RUNNER_EXECUTABLE_ARCH")
        .map(|variable| format!("{}={}", variable.key, variable.value))
        .collect();
    insta::assert_json_snapshot!(list, { "[]" => insta::dynamic_redaction(|value, _| {
        let text = value.as_str().unwrap_or_default().to_owned();
        if text.starts_with("CI_RUNNER_VERSION=") { "CI_RUNNER_VERSION=[version]".to_owned() } else { text }
    })});
}

#[test]
fn job_with_all_features() {
    insta::assert_json_snapshot!(plan(&lowered(json!({
        "steps": [
            { "name": "script", "script": ["make"] },
            { "name": "release", "script": ["release-cli create --name $CI_JOB_NAME"] },
            { "name": "after_script", "script": ["make clean"], "when": "always", "allow_failure": true }
        ],
        "variables": [{ "key": "CI_JOB_NAME", "value": "test job" }, { "key": "KEY", "value": "k/../dir" }],
        "cache": [
            { "key": "$KEY-1", "paths": ["node_modules/"], "policy": "pull-push", "when": "always",
              "fallback_keys": ["default"] },
            { "key": "", "untracked": true, "policy": "pull" },
            { "key": "nothing to keep" }
        ],
        "artifacts": [
            { "name": "build", "paths": ["out/"], "exclude": ["out/*.o"], "artifact_type": "archive",
              "artifact_format": "zip", "expire_in": "1 week" },
            { "name": "junit.xml", "paths": ["junit.xml"], "when": "always", "artifact_type": "junit",
              "artifact_format": "gzip" },
            { "name": "empty" }
        ],
        "dependencies": [
            { "id": 40, "token": "glcbt-secret", "name": "build", "artifacts_file": { "filename": "a.zip", "size": 9 } },
            { "id": 41, "token": "glcbt-secret", "name": "nothing" }
        ],
        "hooks": [{ "name": "pre_get_sources_script", "script": ["echo before"] }]
    }))));
}

#[test]
fn job_variables_override_defaults_of_stages() {
    let settings = variables(&[
        ("GIT_STRATEGY", "clone"),
        ("GIT_CHECKOUT", "false"),
        ("GIT_CLEAN_FLAGS", "none"),
        ("GIT_FETCH_EXTRA_FLAGS", "--prune  --no-tags"),
        ("GIT_SUBMODULE_STRATEGY", "recursive"),
        ("GET_SOURCES_ATTEMPTS", "3"),
        ("RUNNER_SCRIPT_TIMEOUT", "1m30s"),
        ("FF_TIMESTAMPS", "false"),
    ]);
    insta::assert_json_snapshot!(plan(&lowered(settings)));
}

#[test]
fn invalid_job_settings_use_defaults_with_warnings() {
    let settings = variables(&[
        ("GIT_STRATEGY", "borrow"),
        ("GIT_CHECKOUT", "maybe"),
        ("GET_SOURCES_ATTEMPTS", "99"),
        ("RUNNER_SCRIPT_TIMEOUT", "soon"),
        ("RUNNER_AFTER_SCRIPT_TIMEOUT", "-1m"),
        ("CACHE_FALLBACK_KEY", "main-protected"),
    ]);
    let mut extra = settings;
    extra["cache"] = json!([{ "key": "../up", "paths": ["x"] }]);
    insta::assert_json_snapshot!(lowered(extra).plan.warnings);
}

/// A job of an unprotected ref can set any `CACHE_FALLBACK_KEY`, but must not get a protected cache.
#[test]
fn fallback_key_cannot_name_protected_cache() {
    let fallbacks = |key: &str| {
        let mut extra = variables(&[("CACHE_FALLBACK_KEY", key)]);
        extra["cache"] = json!([{ "key": "main-non_protected", "paths": ["x"] }]);
        let job = lowered(extra);
        let plan = serde_json::to_value(&job.plan).unwrap();
        let mut found = Vec::new();
        collect("fallback_keys", &plan, &mut found);
        assert!(!found.is_empty(), "{key:?}: the plan must have caches");
        (found.into_iter().flatten().collect::<Vec<_>>(), job.plan.warnings.join("; "))
    };
    assert_eq!(fallbacks("main").0.first().map(String::as_str), Some("main"), "an allowed key is used");
    let hashed = format!("{:x}", <sha2::Sha256 as sha2::Digest>::digest("main-protected"));
    for key in [
        "main-protected",
        "main-protected. .",
        "main-protected/",
        "main-protected//./",
        "main-protected/x/..",
        "x/../main-protected/y/../",
        "/../../main-protected/",
        "main-protected\\",
        "main-protected%2f",
        "main-protected%2Fx%2f%2E%2e",
        "main-protected/%2e",
        "main-protected\t",
        "main-protected/\u{a0}",
        "main-protected./",
        "main-protected .",
        "main-PROTECTED/",
        &hashed,
        &format!("x/../{hashed}/"),
    ] {
        let (keys, warnings) = fallbacks(key);
        assert_eq!(keys, [""; 0], "{key:?}");
        assert!(warnings.contains("CACHE_FALLBACK_KEY"), "{key:?}: {warnings}");
    }
}

/// Collects the lists of strings in all members with this name, at any depth.
fn collect(name: &str, value: &Value, found: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match serde_json::from_value(value.clone()) {
                    Ok(list) if key == name => found.push(list),
                    _ => collect(name, value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(name, value, found)),
        _ => {}
    }
}

#[test]
fn calls_are_recorded_for_coordinators_that_receive_the_result_tree() {
    let records = |extra| lowered(extra).plan.record_calls;
    assert!(!records(json!({})) && !records(json!({ "muster": { "trace_interval_ms": 20 } })));
    assert!(records(json!({ "muster": { "result_tree": true } })));
}

#[test]
fn job_of_muster_ci_with_image() {
    let job = lowered(json!({
        "image": { "name": "registry.example/$NAME:1" }, "services": [{ "name": "postgres" }],
        "variables": [{ "key": "NAME", "value": "node" }],
        "muster": { "local_repository": "/state/snapshot.git", "trace_interval_ms": 20, "result_tree": true }
    }));
    insta::assert_json_snapshot!(plan(&job));
    assert_eq!(value(&job, "CI_JOB_IMAGE").as_deref(), Some("registry.example/node:1"));
}

#[test]
fn job_with_run_keyword() {
    let run = r#"[{"name":"hi","script":"echo ${{ inputs.who }}"}]"#;
    insta::assert_json_snapshot!(plan(&lowered(json!({ "steps": [], "run": run }))).get("steps"));
}

#[test]
fn payloads_that_cannot_be_lowered() {
    let errors: Vec<_> = [
        json!({ "run": "[]" }),
        json!({ "steps": [], "run": "[]", "variables": [{ "key": "STEPS", "value": "" }] }),
        json!({ "steps": [], "run": "no JSON" }),
        json!({ "cache": [{ "key": "k", "paths": ["x"], "policy": "often" }] }),
        variables(&[("GIT_SUBMODULE_STRATEGY", "deep")]),
        variables(&[("GIT_CLONE_PATH", "$CI_BUILDS_DIR/../etc")]),
    ]
    .into_iter()
    .map(|extra| lower(&payload(extra), &context()).unwrap_err())
    .map(|error| format!("{} ({}, {:?})", error.message, error.reason, error.exit_code))
    .collect();
    insta::assert_json_snapshot!(errors);
}

#[test]
fn values_are_expanded_once() {
    let job = lowered(json!({ "variables": [
        { "key": "A", "value": "a" },
        { "key": "B", "value": "$A/$C" },
        { "key": "C", "value": "$A" },
        { "key": "RAW", "value": "$A", "raw": true },
        { "key": "FILE", "value": "content of $A", "file": true },
        { "key": "SEES_FILE", "value": "$FILE" },
        { "key": "A", "value": "last" },
        { "key": "PRICE", "value": "5$$ $missing" }
    ] }));
    let temp = "/builds/shorttoke/1/group/project.tmp";
    for (name, expected) in [
        ("B", "last/$A"),
        ("C", "last"),
        ("RAW", "$A"),
        ("FILE", "content of last"),
        ("SEES_FILE", &format!("{temp}/FILE")),
        ("PRICE", "5$ "),
        ("RUNNER_TEMP_PROJECT_DIR", temp),
    ] {
        assert_eq!(value(&job, name).as_deref(), Some(expected), "{name}");
    }
    assert_eq!(job.variables.iter().filter(|variable| variable.key == "A").count(), 1);
}

#[test]
fn provenance_is_added_to_zips_if_requested() {
    let artifacts = json!([
        { "paths": ["out"], "artifact_type": "archive", "artifact_format": "zip" },
        { "paths": ["r.xml"], "artifact_type": "junit", "artifact_format": "gzip" }
    ]);
    let uploads = |requested: &[(&str, &str)]| {
        let job = lowered(json!({ "artifacts": artifacts, "variables": variables(requested)["variables"],
            "git_info": { "repo_url": "https://ci:secret@gitlab.example/a/b.git", "sha": "0123", "ref": "main" } }));
        let uploads = job.plan.steps.iter().find_map(|step| step.call.inputs::<ArtifactsUploadList>());
        (uploads.unwrap().artifacts.into_iter().map(|upload| upload.provenance).collect::<Vec<_>>(), job.plan.warnings)
    };
    assert_eq!(uploads(&[]), (vec![None, None], vec![]));
    let requested = [
        ("RUNNER_GENERATE_ARTIFACTS_METADATA", "true"),
        ("SLSA_PROVENANCE_SCHEMA_VERSION", "v7"),
        ("CI_RUNNER_ID", "12"),
    ];
    let (uploads, warnings) = uploads(&requested);
    let origin = ProvenanceInfo {
        runner_id: 12,
        repo_url: "https://gitlab.example/a/b".to_owned(),
        repo_digest: "0123".to_owned(),
        job_name: "test job".to_owned(),
        executor_name: "shell".to_owned(),
        runner_name: "manager".to_owned(),
        parameters: requested.map(|(name, _)| name.to_owned()).to_vec(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    assert_eq!(uploads, [Some(origin), None]);
    assert!(
        warnings[0].contains("SLSA_PROVENANCE_SCHEMA_VERSION: expected one of [\"v1\"], got \"v7\""),
        "{warnings:?}"
    );
}

#[test]
fn directories_follow_layout_strategy_and_clone_path() {
    let dir = |list: &[(&str, &str)]| lowered(variables(list)).plan.project_dir;
    assert_eq!(dir(&[]), "/builds/shorttoke/1/group/project");
    assert_eq!(dir(&[("GIT_STRATEGY", "empty")]), "/builds/shorttoke/1/group/project-empty");
    assert_eq!(dir(&[("GIT_CLONE_PATH", "$CI_BUILDS_DIR/./go/src")]), "/builds/go/src");
    let mut private = context();
    private.directories.shared = false;
    assert_eq!(lower(&payload(json!({})), &private).unwrap().plan.project_dir, "/builds/group/project");
}
