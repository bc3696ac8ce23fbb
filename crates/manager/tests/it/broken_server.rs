use muster_agent_api::result::Outcome;
use muster_job::JobId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use url::Url;

use crate::harness::{Harness, JOB};

/// Answers each call with this body and content type.
async fn serve_answer(content_type: &str, body: &str) -> (Url, JoinSet<()>) {
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 201 Created\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move {
        loop {
            let (mut call, _) = listener.accept().await.unwrap();
            let _ = call.read(&mut [0]).await;
            let _ = call.write_all(answer.as_bytes()).await;
            // Wait until the caller has the answer.
            let _ = tokio::io::copy(&mut call, &mut tokio::io::sink()).await;
        }
    });
    (url, server)
}

#[tokio::test]
async fn manager_backs_off_after_unusable_job_answers() {
    for (content_type, body) in [
        ("application/json", ""),
        ("application/json", "null"),
        ("application/json", "[]"),
        ("application/json", r#"{"id":"#),
        ("application/json", r#"{"id":7}"#),
        ("application/json", r#"{"id":18446744073709551616,"token":"secret"}"#),
        ("application/json", r#"{"id":-7,"token":"secret"}"#),
        ("application/json", r#"{"id":7,"token":"se\ncret"}"#),
        ("text/html", "<html>Welcome</html>"),
    ] {
        let harness = Harness::start().await;
        let (url, _server) = serve_answer(content_type, body).await;
        let manager = harness.manager_with_settings(harness.settings(|runner| runner.url = url)).await;
        manager.wait_for(|stats| stats.runners[0].wait.is_some()).await;
        let stats = manager.control.stats().await.unwrap();
        assert_eq!((stats.jobs, stats.runners[0].requests), (0, 0), "{body}");
        manager.drain().await;
        manager.ended().await.unwrap();
        harness.assert_no_jobs_stored().await;
    }
}

fn replace_numbers(value: &mut Value, number: i64) {
    match value {
        Value::Number(_) => *value = json!(number),
        Value::Array(items) => items.iter_mut().for_each(|item| replace_numbers(item, number)),
        Value::Object(members) => members.values_mut().for_each(|member| replace_numbers(member, number)),
        _ => {}
    }
}

#[tokio::test]
async fn jobs_with_absurd_numbers_end() {
    let harness = Harness::start().await;
    let manager = harness.manager().await;
    for (id, number) in [(1, i64::MIN), (2, -1), (3, 0), (4, i64::MAX)] {
        let mut more = json!({
            "job_info": { "id": 7, "pipeline_id": 1, "project_id": 2, "namespace_id": 3, "root_namespace_id": 3,
                "time_in_queue_seconds": 5, "queue_size": 1, "queue_depth": 1 },
            "git_info": { "repo_url": "https://g.example/g/p.git", "ref": "main", "sha": "ab", "depth": 20 },
            "runner_info": { "timeout": 3600 },
            "steps": [{ "name": "script", "script": ["true"], "timeout": 9 }],
            "dependencies": [{ "id": 1, "token": "t", "name": "n", "artifacts_file": { "filename": "f", "size": 1 } }],
        });
        replace_numbers(&mut more, number);
        more["id"] = json!(id);
        more["token"] = json!(format!("secret-{id}"));
        harness.push(&more);
        harness.agent.wait_for(|spool| spool.started.contains(&format!("{id}-1"))).await;
        harness.agent.finish(&format!("{id}-1"), Outcome::Success);
        harness.coordinator.wait_for_end(JobId(id)).await;
    }
    harness.push(&json!({}));
    harness.agent.wait_for(|spool| spool.started.contains(&format!("{JOB}-1"))).await;
    drop(manager);
}

#[tokio::test]
async fn job_larger_than_agent_limit_ends() {
    let harness = Harness::start().await;
    let manager = harness.manager().await;
    // The agent of these tests accepts 4 MiB.
    harness.push(&json!({ "variables": [{ "key": "LARGE", "value": "x".repeat(5 * 1024 * 1024) }] }));
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("runner_system_failure"));
    assert!(harness.agent.spool().started.is_empty());
    drop(manager);
}
