//! The client with the real routes, and with responses of other servers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, StatusCode};
use muster_job::{JobId, JobStatus};
use url::Url;

use super::{Client, ClientError, Progress, TlsFiles, TraceReply, UploadTimeouts, base_url};
use crate::payload::JobPayload;
use crate::retry::{Backoff, Policy, retry};
use crate::service::ArtifactQuery;
use crate::test_support::{
    Call, Fault, MemoryCoordinator, PERSONAL_TOKEN, REGISTRATION_TOKEN, RUNNER_TOKEN, Served, serve,
};
use crate::wire::{JobRequest, RegisterRequest, TokenRequest, UpdateRequest};

const JOB: JobId = JobId(7);

async fn coordinator() -> (Arc<MemoryCoordinator>, Served, Client) {
    let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_millis(50)));
    let served = serve(coordinator.clone()).await.unwrap();
    let client = Client::new(&served.url).unwrap();
    (coordinator, served, client)
}

fn request() -> JobRequest {
    JobRequest { token: RUNNER_TOKEN.to_owned(), ..JobRequest::default() }
}

async fn with_running_job() -> (Arc<MemoryCoordinator>, Served, Client) {
    let (coordinator, served, client) = coordinator().await;
    let payload: JobPayload = serde_json::from_value(serde_json::json!({ "id": 7, "token": "secret" })).unwrap();
    coordinator.enqueue(payload);
    assert_eq!(client.request_job(&request(), &Progress::default()).await.unwrap().job.unwrap().id, JOB);
    (coordinator, served, client)
}

async fn server_with_response(
    status: u16,
    headers: &[(&str, &str)],
    body: &'static str,
) -> (Client, tokio::task::JoinHandle<()>) {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    let status = StatusCode::from_u16(status).unwrap();
    let app = Router::new().fallback(any(move || async move { (status, map.clone(), body) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (Client::new(&url).unwrap(), task)
}

#[test]
fn base_url_omits_known_suffixes() {
    for (given, base) in [
        ("https://gitlab.example", "https://gitlab.example/api/v4/"),
        ("https://gitlab.example/ci/", "https://gitlab.example/api/v4/"),
        ("http://host:81/gitlab/", "http://host:81/gitlab/api/v4/"),
    ] {
        assert_eq!(base_url(&Url::parse(given).unwrap()).unwrap().as_str(), base);
    }
    base_url(&Url::parse("ftp://host").unwrap()).unwrap_err();
}

#[tokio::test]
async fn runner_calls_reach_the_coordinator() {
    let (_coordinator, _served, client) = coordinator().await;
    let mut request = TokenRequest { token: RUNNER_TOKEN.to_owned(), ..TokenRequest::default() };
    assert_eq!(client.verify(&request).await.unwrap().id, 1);
    client.unregister_manager(&request).await.unwrap();
    request.token = "wrong".to_owned();
    let error = client.verify(&request).await.unwrap_err();
    assert_eq!(error.to_string(), "verify: the coordinator denied the request: 403 Forbidden");
    assert!(client.request_job(&self::request(), &Progress::default()).await.unwrap().job.is_none());
}

#[tokio::test]
async fn runner_can_be_registered_reset_and_deleted() {
    let (coordinator, _served, client) = coordinator().await;
    let request = RegisterRequest { token: REGISTRATION_TOKEN.to_owned(), ..RegisterRequest::default() };
    let first = client.register(&request).await.unwrap();
    let second = client.reset_token(&first.token).await.unwrap();
    assert!(client.reset_token(&first.token).await.unwrap_err().is_unknown_token(), "the old token must be invalid");
    let third = client.reset_token_with_pat(first.id, PERSONAL_TOKEN).await.unwrap();
    assert!(second.token != third.token && coordinator.runner(&third.token).unwrap().id == first.id);
    assert!(client.reset_token_with_pat(first.id, "glpat-wrong").await.is_err());
    client.unregister(&third.token).await.unwrap();
    assert!(coordinator.runner(&third.token).is_none());
    assert!(client.unregister(&third.token).await.unwrap_err().is_unknown_token());
}

#[test]
fn error_names_invalid_certificate_file_with_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("host.crt"), "no PEM").unwrap();
    let refused = |tls: &TlsFiles| {
        let url = Url::parse("https://host.example").unwrap();
        Client::with_tls(&url, tls).unwrap_err().to_string()
    };
    let found = TlsFiles::default().or_from(directory.path(), "host");
    assert_eq!((found.ca.clone(), found.certificate.clone()), (Some(path("host.crt")), None));
    assert!(refused(&found).contains("host.crt: it contains no certificate"), "{}", refused(&found));
    let absent = TlsFiles { ca: Some(path("absent")), ..TlsFiles::default() };
    assert!(refused(&absent).contains("absent: No such file"), "{}", refused(&absent));
    let without_key = TlsFiles { certificate: Some(path("host.crt")), ..TlsFiles::default() };
    assert!(refused(&without_key).contains("missing key for this certificate"), "{}", refused(&without_key));
    assert_eq!(without_key.clone().or_from(directory.path(), "host").certificate, without_key.certificate);
}

#[tokio::test]
async fn trace_continues_from_length_of_the_coordinator() {
    let (coordinator, _served, client) = with_running_job().await;
    let patch = async |start, text: &'static str| {
        client.patch_trace(JOB, "secret", start, Bytes::from_static(text.as_bytes()), false).await.unwrap()
    };
    assert!(matches!(patch(0, "hello").await, TraceReply { size: 5, accepted: true, .. }));
    assert!(
        matches!(patch(0, "").await, TraceReply { size: 5, accepted: false, .. }),
        "an empty piece at a wrong position must return the length"
    );
    assert!(matches!(patch(5, "").await, TraceReply { size: 5, accepted: true, .. }));
    coordinator.set_status(JOB, JobStatus::Canceling);
    assert_eq!(patch(5, "!").await.status, Some(JobStatus::Canceling));
    coordinator.set_status(JOB, JobStatus::Canceled);
    let error = client.patch_trace(JOB, "secret", 6, Bytes::new(), false).await.unwrap_err();
    assert!(error.is_job_closed() && error.job_status() == Some(JobStatus::Canceled), "{error}");
}

#[tokio::test]
async fn failed_update_is_retried_until_it_succeeds() {
    let (coordinator, _served, client) = with_running_job().await;
    coordinator.fail(Call::UpdateJob, [Fault::FailBefore, Fault::FailBefore]);
    let policy = Policy { first: Duration::from_millis(1), ..Policy::SHORT };
    let update = UpdateRequest { token: "secret".into(), state: "success".into(), ..UpdateRequest::default() };
    let reply = retry(Backoff::seeded(policy, 3), "job update", async || client.update_job(JOB, &update).await).await;
    assert_eq!(reply.unwrap().status, Some(JobStatus::Success));
}

#[tokio::test]
async fn uploaded_artifacts_can_be_downloaded() {
    let (coordinator, _served, client) = with_running_job().await;
    let query = ArtifactQuery { expire_in: Some("1 day".to_owned()), ..ArtifactQuery::default() };
    for length in [None, Some(8)] {
        let body = futures::stream::iter([Ok(Bytes::from_static(b"four")), Ok(Bytes::from_static(b"more"))]).boxed();
        client
            .upload_artifact(JOB, "secret", &query, "artifacts.zip", body, length, UploadTimeouts::default())
            .await
            .unwrap();
    }
    assert_eq!(coordinator.job(JOB).unwrap().artifacts["artifacts.zip"], "fourmore");
    let down = client.download_artifact(JOB, "secret", true).await.unwrap();
    assert_eq!((down.filename.as_str(), down.size), ("artifacts.zip", 8));
    let chunks: Vec<Bytes> = down.body.try_collect().await.unwrap();
    assert_eq!(chunks.concat(), b"fourmore");
    assert!(client.download_artifact(JobId(9), "secret", true).await.is_err());
}

#[tokio::test]
async fn responses_that_only_other_servers_send_are_interpreted() {
    let (client, server) = server_with_response(429, &[("Retry-After", "60")], r#"{"message":"slow down"}"#).await;
    let error = client.request_job(&request(), &Progress::default()).await.unwrap_err();
    assert_eq!(error.transient(), Some(Some(Duration::from_secs(60))), "{error}");
    server.abort();

    let reset = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(100));
    let headers = [("RateLimit-ResetTime", reset.as_str()), ("Retry-After", "60")];
    let (client, server) = server_with_response(429, &headers, "").await;
    let wait = client.request_job(&request(), &Progress::default()).await.unwrap_err().transient().flatten().unwrap();
    assert!((90..=100).contains(&wait.as_secs()), "the date must take precedence: {wait:?}");
    server.abort();

    let (client, server) = server_with_response(201, &[("Content-Type", "text/html")], "<html>").await;
    let error = client.request_job(&request(), &Progress::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
    server.abort();

    let (client, server) = server_with_response(416, &[], "").await;
    let reply = client.patch_trace(JOB, "secret", 9, Bytes::new(), false).await.unwrap();
    assert_eq!((reply.size, reply.accepted), (0, false), "without a length, the whole trace must be sent again");
    server.abort();

    let headers = [("Job-Status", "success"), ("X-GitLab-Trace-Update-Interval", "100000")];
    let (client, server) = server_with_response(202, &headers, "").await;
    let reply = client.update_job(JOB, &UpdateRequest::default()).await.unwrap();
    assert!(!reply.applied && !reply.resend_trace);
    assert_eq!(reply.interval, Some(Duration::from_secs(900)));
    server.abort();

    let (client, server) = server_with_response(307, &[("Location", "http://127.0.0.1:1/storage")], "").await;
    let error = client.download_artifact(JOB, "secret", true).await.err().unwrap();
    assert!(error.transient().is_some() && !error.to_string().contains("storage"), "{error}");
    server.abort();
}

#[tokio::test]
async fn invalid_job_is_kept_and_endless_response_is_rejected() {
    let headers = [("Content-Type", "application/json")];
    let (client, server) = server_with_response(201, &headers, r#"{"id":7,"token":"t","steps":"none"}"#).await;
    let job = client.request_job(&request(), &Progress::default()).await.unwrap().job.unwrap();
    assert_eq!(job.id, JOB);
    assert!(job.decode_error().unwrap().contains("`steps`"), "{job:?}");
    server.abort();

    let endless = any(|| async {
        let spaces = Bytes::from(vec![b' '; 1024 * 1024]);
        let body = axum::body::Body::from_stream(futures::stream::repeat(spaces).map(Ok::<_, std::io::Error>));
        (StatusCode::CREATED, [("Content-Type", "application/json")], body)
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, Router::new().fallback(endless)).await.unwrap() });
    let error = Client::new(&url).unwrap().request_job(&request(), &Progress::default()).await.unwrap_err();
    assert!(error.to_string().contains("exceeds 64 MiB"), "{error}");
    server.abort();
}

#[tokio::test]
async fn connection_failure_is_transient_and_hides_token() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let error = Client::new(&url).unwrap().request_job(&request(), &Progress::default()).await.unwrap_err();
    assert!(error.transient().is_some() && !error.to_string().contains(RUNNER_TOKEN), "{error}");
}

#[tokio::test]
async fn unanswered_upload_ends_with_timeout() {
    let silent = any(|body: axum::body::Body| async {
        let _ = axum::body::to_bytes(body, usize::MAX).await;
        std::future::pending::<()>().await;
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, Router::new().fallback(silent)).await.unwrap() });
    let timeouts = UploadTimeouts { response: Duration::from_millis(20), ..UploadTimeouts::default() };
    let body = futures::stream::iter([Ok(Bytes::from_static(b"file"))]).boxed();
    let (client, query) = (Client::new(&url).unwrap(), ArtifactQuery::default());
    let upload = client.upload_artifact(JOB, "secret", &query, "a.zip", body, Some(4), timeouts);
    let error = upload.await.unwrap_err();
    assert!(error.transient().is_some() && error.to_string().contains("no response within"), "{error}");
    server.abort();
}

async fn redirecting_server(status: u16, to: &str) -> (Client, tokio::task::JoinHandle<()>) {
    let (status, to) = (StatusCode::from_u16(status).unwrap(), to.trim_end_matches('/').to_owned());
    let app = Router::new().fallback(any(move |uri: http::Uri| async move {
        (status, [(http::header::LOCATION, format!("{to}{}", uri.path_and_query().unwrap()))])
    }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (Client::new(&url).unwrap(), task)
}

#[tokio::test]
async fn follows_redirect_on_same_host_with_method_and_body() {
    let (coordinator, served, _) = coordinator().await;
    for (id, status) in [(7, 307), (8, 308)] {
        let (client, front) = redirecting_server(status, served.url.as_str()).await;
        let payload: JobPayload = serde_json::from_value(serde_json::json!({ "id": id, "token": "secret" })).unwrap();
        coordinator.enqueue(payload);
        assert_eq!(client.request_job(&request(), &Progress::default()).await.unwrap().job.unwrap().id, JobId(id));
        let size = client.patch_trace(JobId(id), "secret", 0, Bytes::from_static(b"hello"), false).await.unwrap().size;
        assert_eq!(size, 5);
        front.abort();
    }
}

/// Starts a server that answers with the token of the request. Returns its URL.
async fn token_echo() -> (Url, tokio::task::JoinHandle<()>) {
    let app = Router::new().fallback(any(async |headers: HeaderMap| {
        headers.get("job-token").map_or_else(|| "none".to_owned(), |token| token.to_str().unwrap().to_owned())
    }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    (url, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}

#[tokio::test]
async fn artifact_download_sends_token_only_to_the_coordinator() {
    let (other_port, echo) = token_echo().await;
    let other_port = other_port.as_str().trim_end_matches('/');
    for (status, path, token) in [
        (302, "/bucket/artifacts.zip", "none"),
        (307, "/bucket/artifacts.zip", "none"),
        (308, "/bucket/artifacts.zip", "none"),
        (302, "/api/v4/jobs/7/artifacts", "none"),
        // The coordinator redirects to its other port.
        (308, "/api/v4/jobs/7/artifacts", "secret"),
        (307, "/gitlab/api/v4/jobs/7/artifacts?direct_download=true", "secret"),
        (307, "/api/v4/jobs/8/artifacts", "none"),
    ] {
        let (client, front) = server_with_response(status, &[("Location", &format!("{other_port}{path}"))], "").await;
        let download = client.download_artifact(JOB, "secret", true).await.unwrap();
        let seen: Vec<Bytes> = download.body.try_collect().await.unwrap();
        assert_eq!(seen.concat(), token.as_bytes(), "{status} to {path}");
        front.abort();
    }
    echo.abort();
}

#[test]
fn redirect_error_hides_password() {
    let to = Box::new(Url::parse("https://ci:pw@g.example/gitlab").unwrap());
    let error = ClientError::Redirected { call: "artifact upload", to };
    assert_eq!(error.to_string(), "artifact upload: the coordinator redirects to https://g.example/gitlab");
}

#[tokio::test]
async fn rejects_redirect_to_other_host_and_names_it() {
    let (_coordinator, served, _) = coordinator().await;
    let other_host = served.url.as_str().replace("127.0.0.1", "localhost");
    for (status, to) in [(307, other_host.as_str()), (308, "https://g.example/gitlab"), (302, served.url.as_str())] {
        let (client, front) = redirecting_server(status, to).await;
        let error = client.request_job(&request(), &Progress::default()).await.unwrap_err();
        assert!(matches!(error, ClientError::Rejected { code, .. } if code == status), "{error}");
        let expected = format!("redirects to `{}`", to.trim_end_matches('/'));
        assert!(
            error.to_string().contains(&expected) && error.to_string().contains("configure it as the URL"),
            "{error}"
        );
        front.abort();
    }
}

#[tokio::test]
async fn redirect_loop_ends_with_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let app = Router::new()
        .fallback(any(async || (StatusCode::TEMPORARY_REDIRECT, [(http::header::LOCATION, "/api/v4/jobs/request")])));
    let front = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let error = Client::new(&url).unwrap().request_job(&request(), &Progress::default()).await.unwrap_err();
    assert!(error.to_string().contains("307 the server redirects to"), "{error}");
    front.abort();
}

#[tokio::test]
async fn html_page_and_empty_error_have_readable_messages() {
    let (client, server) = server_with_response(200, &[("content-type", "text/html")], "<html>Welcome</html>").await;
    let error = client.request_job(&request(), &Progress::default()).await.unwrap_err().to_string();
    assert!(error.contains("200 OK; check that the URL"), "{error}");
    server.abort();
    for body in ["", "{\"message\":\"\"}", "{\"message\":\"401 \"}"] {
        let (client, server) = server_with_response(401, &[("content-type", "application/json")], body).await;
        let error = client.request_job(&request(), &Progress::default()).await.unwrap_err().to_string();
        assert_eq!(error, "job request: the coordinator denied the request: 401 Unauthorized");
        server.abort();
    }
}

#[tokio::test]
async fn connection_errors_have_readable_messages() {
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = unused.local_addr().unwrap().port();
    let plain = serve(Arc::new(MemoryCoordinator::new(Duration::from_millis(50)))).await.unwrap();
    let tls = plain.url.as_str().replace("http:", "https:");
    drop(unused);
    for (url, expected) in [
        (format!("http://127.0.0.1:{port}"), "Connection refused"),
        (tls, "the server does not use TLS: should the URL start with http://?"),
    ] {
        let client = Client::new(&Url::parse(&url).unwrap()).unwrap();
        let error = client.request_job(&request(), &Progress::default()).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(url.trim_end_matches('/')), "{error}");
    }
}
