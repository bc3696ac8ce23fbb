//! Valid and invalid payloads.

use serde_json::{Value, json};

use super::*;

/// Returns a job with all members except `run`, `suspend_options` and `muster`.
fn full_payload() -> Value {
    json!({
        "id": 7, "token": "glcbt-1", "allow_git_fetch": true,
        "job_info": {
            "id": 7, "name": "test", "stage": "test", "pipeline_id": 1, "project_id": 2, "project_name": "p",
            "project_full_path": "g/p", "namespace_id": 3, "root_namespace_id": 3, "time_in_queue_seconds": 0.5,
            "project_jobs_running_on_instance_runners_count": "0", "queue_size": 1, "queue_depth": 1
        },
        "git_info": {
            "repo_url": "https://g.example/g/p.git", "repo_object_format": "sha1", "ref": "main", "sha": "ab",
            "before_sha": "00", "ref_type": "branch", "refspecs": ["+refs/heads/main:refs/heads/main"], "depth": 20,
            "protected": true
        },
        "runner_info": { "timeout": 3600 },
        "variables": [{ "key": "K", "value": "v", "public": true, "masked": true, "file": true, "raw": true }],
        "steps": [{ "name": "script", "script": ["true"], "timeout": 9, "when": "always", "allow_failure": true }],
        "image": {
            "name": "busybox", "alias": "a", "command": ["c"], "entrypoint": ["e"], "pull_policy": ["always"],
            "variables": [{ "key": "K", "value": "v" }], "executor_opts": { "docker": { "user": "u" } }
        },
        "services": [{ "name": "redis" }],
        "artifacts": [{
            "name": "n", "untracked": true, "paths": ["out"], "exclude": ["x"], "when": "always",
            "artifact_type": "archive", "artifact_format": "zip", "expire_in": "1 day"
        }],
        "cache": [{
            "key": "k", "untracked": true, "policy": "pull", "paths": ["p"], "when": "always", "fallback_keys": ["f"]
        }],
        "credentials": [{ "type": "registry", "url": "r.example", "username": "u", "password": "p" }],
        "dependencies": [{ "id": 1, "token": "t", "name": "n", "artifacts_file": { "filename": "f", "size": 1 } }],
        "features": {
            "trace_sections": true, "token_mask_prefixes": ["acme-"], "failure_reasons": ["unknown_failure"],
            "tracing": { "trace_id": "t", "span_parent_id": "s", "otel_endpoints": [{ "url": "u", "auth": {} }] }
        },
        "hooks": [{ "name": "pre_get_sources_script", "script": ["true"] }],
        "inputs": [{ "key": "i", "value": { "type": "string", "content": "c", "sensitive": true } }],
        "secrets": { "S": { "vault": {} } },
        "policy_options": {
            "execution_policy_job": true, "policy_name": "p", "policy_variables_override_allowed": true,
            "policy_variables_override_exceptions": ["E"]
        }
    })
}

fn paths(value: &Value, at: &str, all: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, member)| (format!("{at}/{name}"), member)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (format!("{at}/{index}"), item)).collect(),
        _ => Vec::new(),
    };
    for (path, value) in children {
        paths(value, &path, all);
        all.push(path);
    }
}

#[test]
fn accepts_null_everywhere_except_in_id_and_token() {
    let mut all = Vec::new();
    paths(&full_payload(), "", &mut all);
    assert!(all.len() > 90, "the payload must have a value in every member: {all:?}");
    for path in all.iter().filter(|path| !matches!(path.as_str(), "/id" | "/token")) {
        let mut payload = full_payload();
        *payload.pointer_mut(path).unwrap() = Value::Null;
        let read = JobPayload::read(payload.to_string().as_bytes()).unwrap();
        assert_eq!((read.id.0, read.decode_error()), (7, None), "{path}");
    }
}

#[test]
fn unset_keywords_are_decoded_as_defaults() {
    let body = json!({
        "id": 7, "token": "glcbt-1", "services": null, "cache": null,
        "image": { "name": "busybox", "entrypoint": null, "pull_policy": null, "executor_opts": null, "ports": null },
        "artifacts": [{ "name": null, "untracked": null, "paths": ["out"], "when": null, "expire_in": null }]
    });
    let read = JobPayload::read(body.to_string().as_bytes()).unwrap();
    let plain = Artifact { paths: vec!["out".to_owned()], ..Artifact::default() };
    assert_eq!((read.decode_error(), read.artifacts.as_slice()), (None, &[plain][..]));
    assert_eq!(read.image, Some(Image { name: "busybox".to_owned(), ..Image::default() }));
}

#[test]
fn decode_error_names_position_and_hides_values() {
    let mut body = full_payload();
    body["variables"][0]["value"] = json!({ "glpat-secret": "glpat-secret" });
    let read = JobPayload::read(body.to_string().as_bytes()).unwrap();
    assert_eq!((read.id.0, read.token.as_str(), read.job_info.name.as_str()), (7, "glcbt-1", "test"));
    assert_eq!(read.features.failure_reasons, ["unknown_failure"], "the report of the error needs the failure reasons");
    let reason = read.decode_error().unwrap();
    assert!(reason.contains("`variables[0].value`") && !reason.contains("glpat"), "{reason}");
    // The manager stores such a job.
    let stored: JobPayload = serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
    assert_eq!(stored, read);

    body["features"] = json!("none");
    assert!(JobPayload::read(body.to_string().as_bytes()).unwrap().decode_error().is_some());
    body["id"] = json!("seven");
    assert!(JobPayload::read(body.to_string().as_bytes()).unwrap_err().contains("`id`"));
    assert!(JobPayload::read(b"{\"id\": 7").unwrap_err().contains("line 1"));
}
