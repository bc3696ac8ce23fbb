//! Requests and responses byte for byte, as in gitlab-runner.

use std::sync::Arc;
use std::time::Duration;

use muster_job::{JobId, JobStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::payload::JobPayload;
use crate::test_support::{Call, Fault, MemoryCoordinator, REGISTRATION_TOKEN, RUNNER_TOKEN, Served, serve};

struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

struct Server {
    coordinator: Arc<MemoryCoordinator>,
    served: Served,
}

impl Server {
    async fn start() -> Self {
        let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_millis(50)));
        let served = serve(coordinator.clone()).await.unwrap();
        Self { coordinator, served }
    }

    async fn with_job() -> Self {
        let server = Self::start().await;
        server.coordinator.enqueue(job(7));
        let request = format!("{{\"token\":\"{RUNNER_TOKEN}\"}}");
        assert_eq!(server.json("POST", "/jobs/request", &request).await.status, 201);
        server
    }

    async fn json(&self, method: &str, path: &str, body: &str) -> Reply {
        self.send(method, path, &["Content-Type: application/json"], body).await
    }

    async fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        let chunked = headers.iter().any(|header| header.starts_with("Transfer-Encoding"));
        let mut request = format!("{method} /api/v4{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        for header in headers {
            request.push_str(&format!("{header}\r\n"));
        }
        if !chunked {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        let url = &self.served.url;
        let mut stream = TcpStream::connect((url.host_str().unwrap(), url.port().unwrap())).await.unwrap();
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head: head.to_owned(), body: body.to_owned() }
    }

    async fn patch(&self, range: &str, body: &str) -> Reply {
        let headers = ["JOB-TOKEN: job-secret", "Content-Type: text/plain", &format!("Content-Range: {range}")];
        self.send("PATCH", "/jobs/7/trace?debug_trace=false", &headers, body).await
    }
}

fn job(id: i64) -> JobPayload {
    serde_json::from_value(serde_json::json!({ "id": id, "token": "job-secret" })).unwrap()
}

#[tokio::test]
async fn runner_calls_return_expected_statuses() {
    let server = Server::start().await;
    let body = format!("{{\"token\":\"{RUNNER_TOKEN}\",\"system_id\":\"s_0123456789ab\"}}");
    let registration = format!(r#"{{"token":"{REGISTRATION_TOKEN}","tag_list":["a","b"]}}"#);
    let registered = server.json("POST", "/runners", &registration).await;
    assert_eq!((registered.status, registered.header("content-type")), (201, Some("application/json")));
    let verified = server.json("POST", "/runners/verify", &body).await;
    assert_eq!((verified.status, verified.header("content-type")), (200, Some("application/json")));
    assert_eq!(verified.body, format!(r#"{{"id":1,"token":"{RUNNER_TOKEN}","token_expires_at":null}}"#));
    assert_eq!(server.json("DELETE", "/runners/managers", &body).await.status, 204);
    assert_eq!(server.json("DELETE", "/runners/managers", &body).await.status, 404, "the manager was already deleted");
    let reset = server.json("POST", "/runners/reset_authentication_token", &body).await;
    assert_eq!((reset.status, server.json("DELETE", "/runners", &body).await.status), (201, 403));
    assert_eq!(server.json("DELETE", "/runners", &reset.body).await.status, 204);
}

#[tokio::test]
async fn registration_accepts_old_or_new_names_but_not_both() {
    let server = Server::start().await;
    let register = async |fields: &str| {
        server.json("POST", "/runners", &format!("{{\"token\":\"{REGISTRATION_TOKEN}\",{fields}}}")).await
    };
    let reply = register(r#""active":false,"maintainer_note":"n""#).await;
    let runner: crate::wire::RunnerCredentials = serde_json::from_str(&reply.body).unwrap();
    let known = server.coordinator.runner(&runner.token).unwrap().registered.unwrap();
    assert_eq!((known.paused, known.maintenance_note.as_deref()), (true, Some("n")));
    let both = register(r#""paused":false,"active":true"#).await;
    assert_eq!((both.status, both.body.contains("mutually exclusive")), (400, true), "{}", both.body);
}

#[tokio::test]
async fn token_is_accepted_in_header_or_body_but_not_as_private_token() {
    let server = Server::start().await;
    let header = format!("Runner-Token: {RUNNER_TOKEN}");
    assert_eq!(server.send("POST", "/runners/verify", &[&header], "{}").await.status, 200);
    let private = format!("Private-Token: {RUNNER_TOKEN}");
    let refused = server.send("POST", "/runners/verify", &[&private], "{}").await;
    assert_eq!((refused.status, refused.body.as_str()), (403, r#"{"message":"403 Forbidden"}"#));
    assert_eq!(server.json("POST", "/jobs/request", r#"{"token":"wrong"}"#).await.status, 403);
}

#[tokio::test]
async fn job_request_always_returns_queue_version() {
    let server = Server::start().await;
    let request = format!("{{\"token\":\"{RUNNER_TOKEN}\",\"info\":{{\"features\":{{}}}},\"last_update\":\"0\"}}");
    let none = server.json("POST", "/jobs/request", &request).await;
    assert_eq!((none.status, none.header("x-gitlab-last-update")), (204, Some("1")));
    server.coordinator.enqueue(job(7));
    let some = server.json("POST", "/jobs/request", &request).await;
    assert_eq!((some.status, some.header("content-type")), (201, Some("application/json")));
    assert_eq!(some.header("x-gitlab-last-update"), Some("1"));
    assert!(!some.body.contains("\"run\""), "`run` must be absent, not null: {}", some.body);
    let large = "x".repeat(super::MAX_RUNNER_BODY_BYTES + 1);
    assert_eq!(server.json("POST", "/jobs/request", &large).await.status, 413);
    assert_eq!(server.json("POST", "/jobs/request", "not json").await.status, 400);
}

#[tokio::test]
async fn trace_piece_is_accepted_only_at_the_current_end() {
    let server = Server::with_job().await;
    let first = server.patch("0-4", "hello").await;
    assert_eq!((first.status, first.header("range")), (202, Some("0-5")));
    assert_eq!(
        (first.header("job-status"), first.header("x-gitlab-trace-update-interval")),
        (Some("running"), Some("1"))
    );
    let repeated = server.patch("0-4", "hello").await;
    assert_eq!((repeated.status, repeated.header("range")), (416, Some("0-5")));
    assert_eq!(server.patch("5-10", " world").await.header("range"), Some("0-11"));
    assert_eq!(server.coordinator.job(JobId(7)).unwrap().text(), "hello world");
    assert_eq!(server.patch("bytes 5-10/11", "x").await.status, 400);
    let no_range = server.send("PATCH", "/jobs/7/trace", &["JOB-TOKEN: job-secret"], "x").await;
    assert_eq!(no_range.status, 400);
    let large = "x".repeat(super::MAX_TRACE_BODY_BYTES + 1);
    assert_eq!(server.patch("11-12", &large).await.status, 413);
}

#[tokio::test]
async fn wrong_token_is_403_and_finished_job_is_403_with_status() {
    let server = Server::with_job().await;
    for (path, token) in [("/jobs/8/trace", "job-secret"), ("/jobs/7/trace", "other")] {
        let token = format!("JOB-TOKEN: {token}");
        let reply = server.send("PATCH", path, &[&token, "Content-Range: 0-0"], "x").await;
        assert_eq!((reply.status, reply.header("job-status")), (403, None));
    }
    server.coordinator.set_status(JobId(7), JobStatus::Canceled);
    let reply = server.patch("0-0", "x").await;
    assert_eq!((reply.status, reply.header("job-status")), (403, Some("canceled")));
}

#[tokio::test]
async fn update_returns_200_and_status() {
    let server = Server::with_job().await;
    let running =
        server.json("PUT", "/jobs/7", r#"{"info":{},"token":"job-secret","state":"running","output":{}}"#).await;
    assert_eq!((running.status, running.body.as_str(), running.header("job-status")), (200, "200", Some("running")));
    let body = r#"{"state":"failed","failure_reason":"script_failure","checksum":"crc32:00000000","exit_code":3,
        "output":{"checksum":"crc32:00000000","bytesize":0}}"#;
    let failed = server.send("PUT", "/jobs/7", &["JOB-TOKEN: job-secret"], body).await;
    assert_eq!((failed.status, failed.header("job-status")), (200, Some("failed")));
    let update = server.coordinator.job(JobId(7)).unwrap().updates.pop().unwrap();
    assert_eq!((update.exit_code, update.output.bytesize), (Some(3), Some(0)));
}

#[tokio::test]
async fn chunked_upload_can_be_downloaded() {
    let server = Server::with_job().await;
    let part = "--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"../evil/artifacts.zip\"\r\n\
        Content-Type: text/plain\r\n\r\nzip bytes\r\n--b0--\r\n";
    let chunked: String = [&part[..40], &part[40..]]
        .iter()
        .map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len()))
        .chain(["0\r\n\r\n".to_owned()])
        .collect();
    let headers =
        ["JOB-TOKEN: job-secret", "Content-Type: multipart/form-data; boundary=b0", "Transfer-Encoding: chunked"];
    let path = "/jobs/7/artifacts?artifact_format=zip&artifact_type=archive&expire_in=1+day";
    assert_eq!(server.send("POST", path, &headers, &chunked).await.status, 201);
    let down = server.send("GET", "/jobs/7/artifacts?direct_download=true", &["JOB-TOKEN: job-secret"], "").await;
    assert_eq!((down.status, down.body.as_str(), down.header("content-length")), (200, "zip bytes", Some("9")));
    assert_eq!(down.header("content-disposition"), Some("attachment; filename=\"artifacts.zip\""));
    assert_eq!(server.send("GET", "/jobs/7/artifacts", &[], "").await.status, 403);
    assert_eq!(server.send("GET", "/jobs/9/artifacts", &["JOB-TOKEN: job-secret"], "").await.status, 404);
    assert_eq!(server.send("POST", path, &["JOB-TOKEN: job-secret"], "x").await.status, 400);
}

#[tokio::test]
async fn internal_error_is_500_with_request_id() {
    let server = Server::with_job().await;
    server.coordinator.fail(Call::AppendTrace, [Fault::FailBefore]);
    let headers = ["JOB-TOKEN: job-secret", "Content-Range: 0-0", "X-Request-Id: 0af"];
    let reply = server.send("PATCH", "/jobs/7/trace", &headers, "x").await;
    assert_eq!((reply.status, reply.header("x-request-id")), (500, Some("0af")));
}
