//! gRPC servers with large, invalid, incomplete, or missing responses.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{any, post};
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use url::Url;

use super::{JOB, Setup, TEST_TIMEOUT, job_request, payload, request};
use crate::client::job_request::JOB_REQUEST_TIMEOUT;
use crate::client::{Client, ClientError, JobOffer, Progress};
use crate::job_router::{GRPC, TRANSPORT_HEADER};
use crate::test_support::Http2;
use crate::wire::{IDEMPOTENCY_HEADER, IDEMPOTENCY_HONORED};

const PAYLOAD: &str = r#"{"id":7,"token":"secret"}"#;

/// Key that [`server`] never answers over HTTP.
const UNANSWERED_KEY: &str = "unanswered";

/// Starts a server that announces gRPC and sends job 7 over HTTP. `answer` responds to gRPC calls.
async fn server<F>(answer: impl Fn() -> F + Clone + Send + Sync + 'static) -> (Client, JoinHandle<()>)
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let http = |request: String| async move {
        if request.contains(UNANSWERED_KEY) {
            std::future::pending::<()>().await;
        }
        let headers = [(TRANSPORT_HEADER, GRPC), (IDEMPOTENCY_HEADER, IDEMPOTENCY_HONORED)];
        (StatusCode::CREATED, headers, PAYLOAD)
    };
    let app = Router::new()
        .route("/api/v4/jobs/request", post(http))
        .route("/gitlab.agent.job_router.rpc.JobRouter/GetJob", any(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (Client::new(&url).unwrap(), task)
}

fn grpc(body: impl Into<Body>) -> Response<Body> {
    Response::builder().header("content-type", "application/grpc").body(body.into()).unwrap()
}

/// Error without a message, like that of a proxy that does not forward the call.
fn grpc_error(code: &'static str) -> Response<Body> {
    let response = Response::builder().header("content-type", "application/grpc").header("grpc-status", code);
    response.body(Body::empty()).unwrap()
}

fn message(length: u32, body: &[u8]) -> Vec<u8> {
    [&[0], &length.to_be_bytes()[..], body].concat()
}

/// Checks that a gRPC call with this response is repeated over HTTP, and that the next request uses only HTTP.
async fn check_fallback(case: &str, answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static) {
    let (called, mut calls) = mpsc::unbounded_channel();
    let (client, server) = server(move || {
        called.send(()).unwrap();
        std::future::ready(answer())
    })
    .await;
    for key in ["a", "b"] {
        let offer = request(&client, key, &Progress::default()).await.unwrap();
        assert_eq!(offer.job.unwrap().id, JOB, "{case}");
    }
    assert_eq!(calls.try_recv(), Ok(()), "{case}: gRPC must be used");
    request(&client, "c", &Progress::default()).await.unwrap();
    assert!(calls.try_recv().is_err(), "{case}: gRPC must be paused");
    server.abort();
}

#[tokio::test]
async fn unusable_responses_lead_to_http() {
    type Answer = fn() -> Response<Body>;
    let cases: [(&str, Answer); 14] = [
        ("the length exceeds the limit", || grpc(message(64 * 1024 * 1024 + 1, b"x"))),
        ("the message is incomplete", || grpc(message(100, b"\x0a\x02{}"))),
        ("the message is invalid", || grpc(message(3, b"\xff\xff\xff"))),
        ("no frame", || grpc("no frame at all")),
        ("no message", || grpc("")),
        ("the message is compressed", || grpc([&[1], &message(4, b"\x0a\x02{}")[1..]].concat())),
        ("the payload is not JSON", || grpc(message(6, b"\x0a\x04<ht>"))),
        ("the payload has no ID", || grpc(message(4, b"\x0a\x02{}"))),
        ("a page", || Response::builder().header("content-type", "text/html").body("<html>".into()).unwrap()),
        ("an error of a proxy", || Response::builder().status(502).body(Body::empty()).unwrap()),
        ("invalid argument", || grpc_error("3")),
        ("a proxy denies unknown paths", || grpc_error("7")),
        ("not implemented", || grpc_error("12")),
        ("not authenticated", || grpc_error("16")),
    ];
    for (case, answer) in cases {
        check_fallback(case, answer).await;
    }
}

#[tokio::test]
async fn response_that_breaks_off_leads_to_http() {
    check_fallback("the stream is reset", || {
        let part = Ok(Bytes::from(message(100, b"\x0a\x5f{\"id\":7")));
        grpc(Body::from_stream(stream::iter([part, Err(std::io::Error::other("broken"))])))
    })
    .await;
}

#[tokio::test]
async fn request_whose_grpc_response_breaks_off_is_held_again_over_http() {
    let failure = Arc::new(Notify::new());
    let (client, server) = server({
        let failure = Arc::clone(&failure);
        move || {
            let failure = Arc::clone(&failure);
            let broken = stream::once(async move {
                failure.notified().await;
                Err::<Bytes, _>(std::io::Error::other("broken"))
            });
            let part = stream::iter([Ok(Bytes::from(message(100, b"\x0a\x5f{\"id\":7")))]);
            std::future::ready(grpc(Body::from_stream(part.chain(broken))))
        }
    })
    .await;
    request(&client, "a", &Progress::default()).await.unwrap();
    let progress = Progress::default();
    let task = tokio::spawn({
        let (client, progress) = (client.clone(), progress.clone());
        async move { client.request_job(&job_request(UNANSWERED_KEY), &progress).await }
    });
    while !progress.is_answered() {
        assert!(!task.is_finished());
        tokio::task::yield_now().await;
    }
    let mut held = pin!(progress.wait_held(Duration::ZERO));
    assert!(futures::poll!(&mut held).is_pending(), "while the response is read, the request must not count as held");
    failure.notify_one();
    tokio::time::timeout(TEST_TIMEOUT, held).await.expect("the request over HTTP must count as held");
    assert!(!task.is_finished() && progress.sent_at().is_some());
    task.abort();
    server.abort();
}

#[tokio::test]
async fn response_without_idempotency_header_ends_the_use_of_grpc() {
    let (called, mut calls) = mpsc::unbounded_channel();
    let (client, server) = server(move || {
        called.send(()).unwrap();
        let length = u8::try_from(PAYLOAD.len()).unwrap();
        let body = [&[0x0a, length], PAYLOAD.as_bytes()].concat();
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
        let body =
            Full::from(message(u32::from(length) + 2, &body)).with_trailers(std::future::ready(Some(Ok(trailers))));
        std::future::ready(grpc(Body::new(body)))
    })
    .await;
    request(&client, "a", &Progress::default()).await.unwrap();
    let offer = request(&client, "b", &Progress::default()).await.unwrap();
    assert!(offer.job.unwrap().id == JOB && !offer.honors_idempotency_key);
    assert_eq!(calls.try_recv(), Ok(()), "the second request must use gRPC");
    request(&client, "c", &Progress::default()).await.unwrap();
    assert!(calls.try_recv().is_err(), "the third request must not use gRPC");
    server.abort();
}

#[tokio::test]
async fn message_that_exceeds_the_limit_is_not_read() {
    let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
    check_fallback("the message is endless", move || {
        let head = stream::iter([Ok::<_, std::io::Error>(Bytes::from(message(u32::MAX, b"")))]);
        let chunk = chunk.clone();
        grpc(Body::from_stream(head.chain(stream::repeat_with(move || Ok(chunk.clone())))))
    })
    .await;
}

/// Sends a request and advances the time until the request ends. Also returns the passed time.
async fn request_with_advanced_time(client: &Client) -> (Result<JobOffer, ClientError>, Duration) {
    let client = client.clone();
    let task = tokio::spawn(async move { client.request_job(&job_request("k"), &Progress::default()).await });
    let started = tokio::time::Instant::now();
    while !task.is_finished() && started.elapsed() < JOB_REQUEST_TIMEOUT * 2 {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
        // For each second by which the clock was advanced, the connections get 10 ms of real time.
        let real = std::time::Instant::now();
        while !task.is_finished() && real.elapsed() < Duration::from_millis(10) {
            tokio::task::yield_now().await;
        }
    }
    let waited = started.elapsed();
    (tokio::time::timeout(TEST_TIMEOUT, task).await.expect("no result in time").unwrap(), waited)
}

#[tokio::test]
async fn silent_peer_is_detected_by_pings() {
    let setup = Setup::over_grpc(JOB_REQUEST_TIMEOUT).await;
    setup.relay.set_http2(Http2::Ignore);
    setup.coordinator.enqueue(payload(7));
    let (offer, waited) = request_with_advanced_time(&setup.client).await;
    assert_eq!(offer.unwrap().job.unwrap().id, JOB);
    assert!(waited < Duration::from_secs(60), "silence must be detected within 60 s, not after {waited:?}");
    assert_eq!(setup.relay.http2_connections(), 1);
}

#[tokio::test]
async fn request_without_response_ends_at_the_deadline() {
    let (client, server) = server(std::future::pending).await;
    request(&client, "a", &Progress::default()).await.unwrap();
    let (result, waited) = request_with_advanced_time(&client).await;
    let error = result.unwrap_err();
    assert!(error.transient().is_some() && error.to_string().contains("timeout"), "{error}");
    assert!(waited + Duration::from_secs(2) > JOB_REQUEST_TIMEOUT, "the request must not end after {waited:?}");
    let next = request(&client, "b", &Progress::default()).await.unwrap();
    assert_eq!(next.job.unwrap().id, JOB, "gRPC must be paused");
    server.abort();
}
