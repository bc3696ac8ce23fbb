//! Parses statuses and headers of responses (docs/spec/runner-api.md, sections 2.4, 3.1 and 4.2).

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};
use muster_job::{JobStatus, error_chain};
use reqwest::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::value::StrDeserializer;

use super::{ClientError, redirect};
use crate::payload::JobPayload;
use crate::wire::{IDEMPOTENCY_HEADER, IDEMPOTENCY_HONORED};

/// Maximum interval of trace uploads that the server can require (docs/spec/runner-api.md, section 3.2).
const MAX_INTERVAL: Duration = Duration::from_secs(15 * 60);
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;
const MAX_ERROR_BODY_BYTES: usize = 16 * 1024;

/// Response to a job request.
#[derive(Debug)]
pub struct JobOffer {
    /// Assigned job. `None` means no job.
    pub job: Option<Box<JobPayload>>,
    /// Text of the response. Empty without a job, or if the response is incomplete or not UTF-8.
    pub text: String,
    /// Version of the queue. `None` means unchanged (docs/spec/runner-api.md, section 2.3).
    pub last_update: Option<String>,
    /// Whether the coordinator returns the same job for the same idempotency key.
    pub honors_idempotency_key: bool,
}

/// Response to an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateReply {
    /// False means that the server has not processed the update (202), or needs the trace again (412). The caller must
    /// repeat the update after the interval.
    pub applied: bool,
    /// Whether the trace must be sent again from the start (412).
    pub resend_trace: bool,
    /// Header `Job-Status`.
    pub status: Option<JobStatus>,
    /// Interval of trace uploads that the server requires.
    pub interval: Option<Duration>,
}

/// Response to a trace upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceReply {
    /// Length of the trace at the server, from which to continue (docs/spec/life-of-a-job.md, rule R5).
    pub size: u64,
    /// Whether the bytes were accepted.
    pub accepted: bool,
    /// Header `Job-Status`.
    pub status: Option<JobStatus>,
    /// Interval of uploads that the server requires.
    pub interval: Option<Duration>,
}

pub(super) async fn decode<T: DeserializeOwned>(
    call: &'static str,
    response: Response,
    expected: &[StatusCode],
) -> Result<T, ClientError> {
    let body = json(call, response, expected).await?;
    serde_json::from_slice(&body).map_err(|error| ClientError::Protocol { call, message: error.to_string() })
}

/// Returns the job and the text of a 201. An incomplete payload with an ID and a token also becomes a job, because the
/// job is already assigned and must be reported as failed.
pub(super) async fn job(call: &'static str, mut response: Response) -> Result<(JobPayload, String), ClientError> {
    if response.status() != StatusCode::CREATED {
        return Err(refusal(call, response).await);
    }
    let mut body = Vec::new();
    if let Err(error) = read(call, &mut response, &mut body).await {
        return JobPayload::recover_partial(&body, error.message()).map(|job| (job, String::new())).ok_or(error);
    }
    let job = JobPayload::read(&body)
        .map_err(|message| ClientError::Protocol { call, message: content_type_error(&response).unwrap_or(message) })?;
    Ok((job, String::from_utf8(body).unwrap_or_default()))
}

/// Returns the queue's version, and whether the idempotency key is honored.
pub(super) fn queue_state(headers: &HeaderMap) -> (Option<String>, bool) {
    let honors_idempotency_key =
        text_header(headers, IDEMPOTENCY_HEADER).is_some_and(|value| value == IDEMPOTENCY_HONORED);
    (text_header(headers, "x-gitlab-last-update"), honors_idempotency_key)
}

async fn json(call: &'static str, mut response: Response, expected: &[StatusCode]) -> Result<Vec<u8>, ClientError> {
    if !expected.contains(&response.status()) {
        return Err(refusal(call, response).await);
    }
    if let Some(message) = content_type_error(&response) {
        return Err(ClientError::Protocol { call, message });
    }
    let mut body = Vec::new();
    read(call, &mut response, &mut body).await?;
    Ok(body)
}

fn content_type_error(response: &Response) -> Option<String> {
    let kind = text_header(response.headers(), header::CONTENT_TYPE.as_str()).unwrap_or_default();
    let is_json = kind.split(';').next().map(str::trim) == Some("application/json");
    (!is_json).then(|| format!("expected JSON, but the content type is `{kind}`"))
}

/// Reads the body. After an error, `body` has the part that was read.
async fn read(call: &'static str, response: &mut Response, body: &mut Vec<u8>) -> Result<(), ClientError> {
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(()),
            Ok(Some(chunk)) if body.len() + chunk.len() > MAX_BODY_BYTES => {
                let message = format!("it exceeds {} MiB", MAX_BODY_BYTES / (1024 * 1024));
                return Err(ClientError::Protocol { call, message });
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Err(error) => {
                let cause = if error.is_timeout() { "timeout".to_owned() } else { error_chain(&error.without_url()) };
                return Err(ClientError::unreachable(call, format!("the response was incomplete: {cause}")));
            }
        }
    }
}

pub(super) async fn update(response: Response) -> Result<UpdateReply, ClientError> {
    let code = response.status();
    if !matches!(code, StatusCode::OK | StatusCode::ACCEPTED | StatusCode::PRECONDITION_FAILED) {
        return Err(only_403_and_404_are_final(refusal("job update", response).await));
    }
    let headers = response.headers();
    Ok(UpdateReply {
        applied: code == StatusCode::OK,
        resend_trace: code == StatusCode::PRECONDITION_FAILED,
        status: job_status(headers),
        interval: interval(headers),
    })
}

/// Parses the response to `PATCH trace`. `end` is the length of the trace if the server accepts the piece and its
/// response has no length.
pub(super) async fn trace(response: Response, end: u64) -> Result<TraceReply, ClientError> {
    let headers = response.headers();
    let (status, interval) = (job_status(headers), interval(headers));
    // A length beyond `i64` is ignored, because callers calculate with the length.
    let reported = text_header(headers, header::RANGE.as_str())
        .and_then(|range| range.split_once('-')?.1.parse::<u64>().ok())
        .filter(|size| i64::try_from(*size).is_ok());
    match response.status() {
        // The server's count is authoritative (docs/spec/life-of-a-job.md, rule R5).
        StatusCode::ACCEPTED => Ok(TraceReply { size: reported.unwrap_or(end), accepted: true, status, interval }),
        // Without a length, the server wants the whole trace (docs/spec/runner-api.md, section 11.12).
        StatusCode::RANGE_NOT_SATISFIABLE => {
            Ok(TraceReply { size: reported.unwrap_or(0), accepted: false, status, interval })
        }
        _ => Err(only_403_is_final(refusal("trace upload", response).await)),
    }
}

/// After an update, 401 and 410 without `Job-Status` do not stop the job (docs/spec/runner-api.md, sections 2.6 and
/// 4.2).
fn only_403_and_404_are_final(error: ClientError) -> ClientError {
    match error {
        ClientError::Forbidden { call, code, status: None, message } if !matches!(code, 403 | 404) => {
            ClientError::Rejected { call, code, message }
        }
        error => error,
    }
}

/// Only 403 and `Job-Status` stop a job (docs/spec/runner-api.md, section 3.1). A 404 may be from a load balancer.
fn only_403_is_final(error: ClientError) -> ClientError {
    match error {
        ClientError::Forbidden { call, code, status, message } if code != 403 => {
            let message = format!("{code} {message}");
            ClientError::Transient { call, code: Some(code), retry_after: None, status, message }
        }
        error => error,
    }
}

pub(super) async fn refusal(call: &'static str, response: Response) -> ClientError {
    let code = response.status();
    let headers = response.headers();
    let (status, retry_after) = (job_status(headers), retry_after(headers));
    if let Some(message) = redirect::refusal_message(&response) {
        return ClientError::Rejected { call, code: code.as_u16(), message };
    }
    classify(call, code, status, retry_after, message(response).await)
}

fn classify(
    call: &'static str,
    code: StatusCode,
    status: Option<JobStatus>,
    retry_after: Option<Duration>,
    message: String,
) -> ClientError {
    match code.as_u16() {
        // A front end may answer requests with an HTML page.
        number if code.is_success() => ClientError::Protocol { call, message: format!("{number} {message}") },
        401 | 403 | 404 | 410 => ClientError::Forbidden { call, code: code.as_u16(), status, message },
        number if matches!(number, 408 | 409 | 425 | 429) || (number >= 500 && number != 501) => {
            let message = format!("{number} {message}");
            ClientError::Transient { call, code: Some(number), retry_after, status, message }
        }
        number => ClientError::Rejected { call, code: number, message },
    }
}

/// Returns `message` or `error` in the JSON body, without GitLab's leading code, or else the name of the status.
async fn message(response: Response) -> String {
    let code = response.status().as_u16().to_string();
    let name = response.status().canonical_reason().unwrap_or("unknown status");
    let text = error_text(response).await;
    let message = text.strip_prefix(&code).unwrap_or(&text).trim();
    if message.is_empty() { name.to_owned() } else { message.to_owned() }
}

async fn error_text(mut response: Response) -> String {
    let name = response.status().canonical_reason().unwrap_or("unknown status").to_owned();
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ERROR_BODY_BYTES {
            return name;
        }
    }
    match serde_json::from_slice::<serde_json::Value>(&body) {
        Ok(value) => match value.get("message").or_else(|| value.get("error")) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => name,
        },
        Err(_) => name,
    }
}

pub(super) fn text_header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned()).filter(|text| !text.is_empty())
}

fn job_status(headers: &HeaderMap) -> Option<JobStatus> {
    let name = text_header(headers, "job-status")?;
    JobStatus::deserialize(StrDeserializer::<serde::de::value::Error>::new(&name)).ok()
}

fn interval(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = text_header(headers, "x-gitlab-trace-update-interval")?.parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds).min(MAX_INTERVAL))
}

/// Returns the wait that the server requires: until `RateLimit-ResetTime`, or for `Retry-After` in seconds. Ignores
/// dates in `Retry-After` (docs/spec/runner-api.md, sections 6.1 and 11.33).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let reset = text_header(headers, "ratelimit-resettime").and_then(|date| httpdate::parse_http_date(&date).ok());
    if let Some(wait) = reset.and_then(|reset| reset.duration_since(SystemTime::now()).ok()) {
        return Some(wait);
    }
    text_header(headers, header::RETRY_AFTER.as_str())?.parse().ok().map(Duration::from_secs)
}
