//! Servers whose response to a job request is endless, slow, incomplete, or not a job.

use std::time::Duration;

use muster_job::JobId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use url::Url;

use super::job_request::JOB_REQUEST_TIMEOUT;
use super::{Client, ClientError, JobOffer, Progress};
use crate::payload::JobPayload;
use crate::wire::JobRequest;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const CREATED: &str = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n";

/// Starts a server that passes the connection of one request to `answer`.
async fn server<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    answer: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> (Client, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let server = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        // The request ends with the brace of its JSON object.
        let mut request = Vec::new();
        while !request.ends_with(b"}") && connection.read_buf(&mut request).await.unwrap() > 0 {}
        answer(connection).await
    });
    (Client::new(&url).unwrap(), server)
}

/// Requests a job from a server that sends `text` and closes the connection.
async fn request_with_response(text: String) -> Result<JobOffer, ClientError> {
    let (client, _server) = server(|mut call| async move {
        call.write_all(text.as_bytes()).await.unwrap();
        call.shutdown().await.unwrap();
    })
    .await;
    tokio::time::timeout(TEST_TIMEOUT, client.request_job(&JobRequest::default(), &Progress::default())).await.unwrap()
}

fn decode_failure(offer: Result<JobOffer, ClientError>) -> (JobId, String) {
    let job = offer.unwrap().job.unwrap();
    (job.id, job.decode_error().unwrap().to_owned())
}

#[tokio::test]
async fn endless_response_head_is_not_read() {
    let (client, server) = server(|mut call| async move {
        let (mut sent, line) = (0, format!("X-Filler: {}\r\n", "f".repeat(8000)));
        call.write_all(CREATED.as_bytes()).await.unwrap();
        while call.write_all(line.as_bytes()).await.is_ok() {
            sent += line.len();
        }
        sent
    })
    .await;
    let result =
        tokio::time::timeout(TEST_TIMEOUT, client.request_job(&JobRequest::default(), &Progress::default())).await;
    assert!(result.unwrap().unwrap_err().transient().is_some());
    // The limit includes the operating system's buffers at both ends.
    assert!(server.await.unwrap() < 32 * 1024 * 1024);
}

/// Requests a job from a server that sends `text`, and then nothing until the timeout. `has_response_head` tells
/// whether `text` has the complete head of the response.
async fn request_with_stalled_response(text: &'static str, has_response_head: bool) -> Result<JobOffer, ClientError> {
    let (send, sent) = oneshot::channel();
    let (client, server) = server(move |mut call| async move {
        call.write_all(text.as_bytes()).await.unwrap();
        send.send(()).unwrap();
        // Reads until the client closes the connection.
        call.read_to_end(&mut Vec::new()).await
    })
    .await;
    let progress = Progress::default();
    let request = tokio::spawn({
        let progress = progress.clone();
        async move { client.request_job(&JobRequest::default(), &progress).await }
    });
    tokio::time::timeout(TEST_TIMEOUT, sent).await.unwrap().unwrap();
    while progress.is_answered() != has_response_head {
        assert!(!request.is_finished());
        tokio::task::yield_now().await;
    }
    tokio::time::pause();
    tokio::time::advance(JOB_REQUEST_TIMEOUT).await;
    tokio::time::resume();
    let result = tokio::time::timeout(TEST_TIMEOUT, request).await.unwrap().unwrap();
    let _ = tokio::time::timeout(TEST_TIMEOUT, server).await.unwrap();
    result
}

#[tokio::test]
async fn slow_response_ends_with_timeout() {
    let error = request_with_stalled_response("HTTP/1.1 201 Cre", false).await.unwrap_err();
    assert!(error.transient().is_some() && error.to_string().contains("timeout"), "{error}");
    let body = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n\r\n{\"id\":7,";
    let error = request_with_stalled_response(body, true).await.unwrap_err();
    assert!(error.transient().is_some() && error.to_string().contains("timeout"), "{error}");
}

#[tokio::test]
async fn incomplete_payload_yields_id_and_token() {
    let partial = r#"{"id":7,"token":"t","job_info":{"name":"build"},"variables":[{"key":"A"#;
    for head in
        ["Content-Length: 1000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n46\r\n", "Connection: close\r\n\r\n"]
    {
        let (id, why) = decode_failure(request_with_response(format!("{CREATED}{head}{partial}")).await);
        assert_eq!(id, JobId(7), "{head}");
        let is_explained = why.contains("the response was incomplete") || why.contains("invalid JSON at line 1");
        assert!(is_explained, "{head}: {why}");
    }
    let (_, why) = decode_failure(
        request_with_stalled_response(
            "HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{\"id\":7,\"token\":\"t\",",
            true,
        )
        .await,
    );
    assert!(why.contains("timeout"), "{why}");
    for incomplete in ["", "{", r#"{"id":7,"token":"gl"#, r#"{"token":"t","steps":["#] {
        let error =
            request_with_response(format!("{CREATED}Content-Length: 1000\r\n\r\n{incomplete}")).await.unwrap_err();
        assert!(error.transient().is_some(), "{incomplete}: {error}");
    }
}

#[tokio::test]
async fn endless_payload_is_reported_as_too_long() {
    let (client, server) = server(|mut call| async move {
        let partial = format!("{CREATED}Connection: close\r\n\r\n{{\"id\":7,\"token\":\"t\",\"run\":\"");
        call.write_all(partial.as_bytes()).await.unwrap();
        let chunk = vec![b'x'; 1024 * 1024];
        let mut sent = 0;
        while sent < 1000 && call.write_all(&chunk).await.is_ok() {
            sent += 1;
        }
        sent
    })
    .await;
    let result =
        tokio::time::timeout(TEST_TIMEOUT, client.request_job(&JobRequest::default(), &Progress::default())).await;
    let (id, why) = decode_failure(result.unwrap());
    assert!(id == JobId(7) && why.contains("exceeds 64 MiB"), "{id} {why}");
    assert!(server.await.unwrap() < 128, "the client must stop reading soon after 64 MiB");
}

#[tokio::test]
async fn job_is_accepted_with_any_content_type() {
    let answer = |kind: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 201 Created\r\n{kind}Content-Length: {length}\r\n\r\n{body}")
    };
    for kind in ["", "Content-Type: text/json\r\n", "Content-Type: text/html\r\n"] {
        let offer = request_with_response(answer(kind, r#"{"id":7,"token":"t"}"#)).await.unwrap();
        assert_eq!(offer.job.unwrap().decode_error(), None, "{kind}");
    }
    let page = request_with_response(answer("Content-Type: text/html\r\n", "<html>Welcome</html>")).await.unwrap_err();
    assert!(page.to_string().contains("content type is `text/html`"), "{page}");
    let empty = request_with_response(answer("Content-Type: application/json\r\n", "")).await.unwrap_err();
    assert!(matches!(empty, ClientError::Protocol { .. }), "{empty}");
}

#[test]
fn payload_with_unusable_id_or_token_is_an_error() {
    for (id, token) in [
        ("-7", r#""t""#),
        ("0", r#""t""#),
        ("-9223372036854775808", r#""t""#),
        ("18446744073709551616", r#""t""#),
        ("1e400", r#""t""#),
        ("7.5", r#""t""#),
        ("7", r#""""#),
        ("7", r#""a\r\nX-Header: b""#),
        ("7", r#""\u0000""#),
    ] {
        for more in ["", r#","steps":"none""#] {
            let error = JobPayload::read(format!(r#"{{"id":{id},"token":{token}{more}}}"#).as_bytes()).unwrap_err();
            assert!(!error.contains("X-Header"), "{error}");
        }
    }
}

#[test]
fn list_with_a_million_entries_is_rejected() {
    let list = |item: &str| format!("[{}{item}]", format!("{item},").repeat(999_999));
    for (member, item) in [("variables", r#"{"key":"K","value":"v"}"#), ("services", "{}"), ("cache", "null")] {
        let body = format!(r#"{{"id":7,"token":"t","{member}":{}}}"#, list(item));
        let read = JobPayload::read(body.as_bytes()).unwrap();
        // Null entries are dropped.
        if item == "null" {
            assert_eq!((read.decode_error(), read.cache.len()), (None, 0));
        } else {
            assert!(read.decode_error().unwrap().contains("more than 100000 entries"), "{:?}", read.decode_error());
            assert!(read.variables.is_empty() && read.services.is_empty());
        }
    }
    let deep = format!(r#"{{"id":7,"token":"t","image":{}}}"#, "[".repeat(1_000_000));
    assert!(JobPayload::read(deep.as_bytes()).unwrap().decode_error().is_some());
}

#[tokio::test]
async fn impossible_trace_length_is_ignored() {
    for (range, size) in [("0-3", 3), ("0-9223372036854775808", 5), ("0-18446744073709551615", 5)] {
        let answer = http::Response::builder().status(202).header("Range", range).body("").unwrap();
        assert_eq!(super::reply::trace(answer.into(), 5).await.unwrap().size, size, "{range}");
    }
}
