//! Secrets of jobs from HashiCorp Vault (`secrets:`). The server is OpenBao, which has the same API.

use muster_job::{JobId, JobStatus};
use muster_test_prerequisites::OpenBao;
use muster_tests::harness::Harness;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const JOB: JobId = JobId(1);
const PASSWORD: &str = "pa55-of-the-database";
const KEY: &str = "line one of the key\nline two of the key";
const POLICY: &str = r#"path "kv/data/app" { capabilities = ["read"] }
path "old/deploy" { capabilities = ["read"] }"#;

fn start_server() -> Option<OpenBao> {
    let server = OpenBao::start()?;
    server.allow_login("", "jwt", POLICY);
    server.run(&["secrets", "enable", "-path=kv", "-version=2", "kv"], "");
    server.run(&["secrets", "enable", "-path=old", "-version=1", "kv"], "");
    server.run(&["kv", "put", "-mount=kv", "app", &format!("password={PASSWORD}")], "");
    server.run(&["kv", "put", "-mount=old", "deploy", &format!("key={KEY}")], "");
    Some(server)
}

/// Returns the payload members of a job with two secrets. `token` is the job's ID token.
fn members(url: &str, token: &str, path: &str) -> Value {
    let vault = |engine: Value, path: &str, field: &str| {
        json!({
            "server": { "url": url, "namespace": "", "auth": {
                "name": "jwt", "path": "jwt", "data": { "jwt": "$VAULT_ID_TOKEN", "role": "ci" }
            } },
            "engine": engine, "path": path, "field": field
        })
    };
    json!({
        "secrets": {
            "DATABASE_PASSWORD": { "vault": vault(json!({ "name": "kv-v2", "path": "kv" }), path, "password"), "file": false },
            "DEPLOY_KEY": { "vault": vault(json!({ "name": "kv-v1", "path": "old" }), "deploy", "key") }
        },
        "variables": [
            { "key": "GIT_STRATEGY", "value": "none" },
            { "key": "VAULT_ID_TOKEN", "value": token, "masked": true },
            { "key": "WITH_REFERENCE", "value": "postgres://app:$DATABASE_PASSWORD@db" }
        ],
        "features": { "failure_reasons": [
            "job_canceled", "runner_configuration_error", "runner_external_dependency_failure"
        ] }
    })
}

/// Runs a job that prints and stores its secrets. No one else may see them.
async fn check_job_with_secrets(harness: &Harness, server: &OpenBao) {
    let token = server.id_token("group/project");
    let home = harness.home.path().display();
    let script = [
        "echo \"password=$DATABASE_PASSWORD\"".to_owned(),
        "cat \"$DEPLOY_KEY\"; echo".to_owned(),
        "echo \"url=$WITH_REFERENCE\"".to_owned(),
        format!("printf %s \"$DATABASE_PASSWORD\" > {home}/password; cp \"$DEPLOY_KEY\" {home}/key"),
    ];
    let script: Vec<&str> = script.iter().map(String::as_str).collect();
    harness.push(JOB.0, &script, &members(&server.url, &token, "app"));
    let job = harness.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
    for line in [
        "Resolving secrets",
        "Resolving secret \"DATABASE_PASSWORD\"...",
        "Using \"vault\" secret resolver...",
        "password=[MASKED]",
        "url=postgres://app:[MASKED]@db",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let stored = |name: &str| {
        let content = std::fs::read_to_string(harness.path(name)).unwrap();
        std::fs::remove_file(harness.path(name)).unwrap();
        content
    };
    assert_eq!((stored("password").as_str(), stored("key").as_str()), (PASSWORD, KEY));
    for secret in [PASSWORD, KEY, "line one of the key", token.as_str()] {
        assert!(!text.contains(secret), "{secret}: {text}");
        let found = harness
            .readable_by_others()
            .into_iter()
            .find(|(_, content)| content.windows(secret.len()).any(|part| part == secret.as_bytes()));
        assert!(found.is_none(), "{secret} is in {:?}", found.map(|(name, _)| name));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_on_this_host_gets_its_secrets_and_its_log_masks_them() {
    let Some(server) = start_server() else { return };
    check_job_with_secrets(&Harness::start(1).await, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_on_an_instance_gets_its_secrets_and_its_log_masks_them() {
    let Some(server) = start_server() else { return };
    let harness = Harness::with_instances(1, "max_instances = 1", "").await;
    check_job_with_secrets(&harness, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_without_its_secrets_does_not_start_and_its_log_has_the_reason() {
    let Some(server) = start_server() else { return };
    let harness = Harness::start(1).await;
    let cases = [
        (server.url.clone(), server.id_token("group/other"), "app", "runner_configuration_error", "refused the login"),
        (
            server.url.clone(),
            server.id_token("group/project"),
            "hidden",
            "runner_configuration_error",
            "refused to read kv/data/hidden",
        ),
        (
            "http://127.0.0.1:1".to_owned(),
            server.id_token("group/project"),
            "app",
            "runner_external_dependency_failure",
            "failed to reach",
        ),
    ];
    for (id, (url, token, path, reason, message)) in (1..).zip(cases) {
        harness.push(id, &["echo $$ >> \"$MARKS/started\""], &members(&url, &token, path));
        let job = harness.coordinator.wait_for_end(JobId(id)).await;
        let text = job.text();
        assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some(reason), "{text}");
        assert!(text.contains("failed to resolve the secret `DATABASE_PASSWORD`") && text.contains(message), "{text}");
        assert!(!text.contains(&token) && !harness.log().contains(&token), "{text}");
    }
    assert!(!harness.path("started").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn canceled_job_does_not_wait_for_a_silent_vault() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let harness = Harness::start(1).await;
    let url = format!("http://{}", silent.local_addr().unwrap());
    harness.push(JOB.0, &["echo never"], &members(&url, "the.id.token", "app"));
    let (_connection, _) = silent.accept().await.unwrap();
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = harness.coordinator.wait_for(JOB, |job| job.reports().count() == 1).await;
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("job_canceled"), "{}", job.text());
}
