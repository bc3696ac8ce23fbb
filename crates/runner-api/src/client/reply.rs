//! Reading answers: statuses and headers to what they mean for the caller (runner-api 2.4, 3.1, 4.2).

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};
use muster_job::JobStatus;
use reqwest::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::value::StrDeserializer;

use super::{ClientError, chain, redirect};
use crate::payload::JobPayload;

/// The longest interval between trace uploads that is obeyed (runner-api 3.2).
const INTERVAL_MAX: Duration = Duration::from_secs(15 * 60);
/// Bytes of an answer that are read: far beyond what a job's payload, with all its variables, can be.
const BODY_MAX: usize = 64 * 1024 * 1024;
/// Bytes of an error body that are read.
const ERROR_BODY_MAX: usize = 16 * 1024;

/// Answer to a job request.
#[derive(Debug)]
pub struct JobOffer {
    /// The job, if there is one.
    pub job: Option<Box<JobPayload>>,
    /// The queue's version; where it is absent, the caller keeps the one it has (runner-api 2.3).
    pub last_update: Option<String>,
    /// The coordinator gives the same job again to the same idempotency key.
    pub repeats: bool,
}

/// Answer to an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateReply {
    /// False: the server works on it (202), or wants the trace again (412); say it again after the interval.
    pub applied: bool,
    /// The server's copy of the trace is wrong: it has to be sent from the start (412).
    pub resend_trace: bool,
    /// `Job-Status`.
    pub status: Option<JobStatus>,
    /// The interval that the server wants between trace uploads.
    pub interval: Option<Duration>,
}

/// Answer to a trace upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceReply {
    /// The trace's length at the server: the truth (life-of-a-job R5). After a refusal (416) go on from here.
    pub size: u64,
    /// Whether the bytes were taken.
    pub accepted: bool,
    /// `Job-Status`.
    pub status: Option<JobStatus>,
    /// The interval that the server wants between uploads.
    pub interval: Option<Duration>,
}

/// The JSON body of an answer with one of the `expected` codes.
pub(super) async fn decode<T: DeserializeOwned>(
    call: &'static str,
    response: Response,
    expected: &[StatusCode],
) -> Result<T, ClientError> {
    let body = json(call, response, expected).await?;
    serde_json::from_slice(&body).map_err(|error| ClientError::Protocol { call, message: error.to_string() })
}

/// The job of a 201. It is assigned, so whatever can be read of it counts: whose it is, and why no more could be read.
pub(super) async fn job(call: &'static str, mut response: Response) -> Result<JobPayload, ClientError> {
    if response.status() != StatusCode::CREATED {
        return Err(refusal(call, response).await);
    }
    let mut body = Vec::new();
    if let Err(error) = read(call, &mut response, &mut body).await {
        return JobPayload::read_part(&body, error.message()).ok_or(error);
    }
    JobPayload::read(&body)
        .map_err(|message| ClientError::Protocol { call, message: other_kind(&response).unwrap_or(message) })
}

async fn json(call: &'static str, mut response: Response, expected: &[StatusCode]) -> Result<Vec<u8>, ClientError> {
    if !expected.contains(&response.status()) {
        return Err(refusal(call, response).await);
    }
    if let Some(message) = other_kind(&response) {
        return Err(ClientError::Protocol { call, message });
    }
    let mut body = Vec::new();
    read(call, &mut response, &mut body).await?;
    Ok(body)
}

/// What is wrong with the content type, if it is not JSON's.
fn other_kind(response: &Response) -> Option<String> {
    let kind = text_header(response.headers(), header::CONTENT_TYPE.as_str()).unwrap_or_default();
    let is_json = kind.split(';').next().map(str::trim) == Some("application/json");
    (!is_json).then(|| format!("content type `{kind}` instead of JSON"))
}

/// Reads the body. After an error `body` has what came before it.
async fn read(call: &'static str, response: &mut Response, body: &mut Vec<u8>) -> Result<(), ClientError> {
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(()),
            Ok(Some(chunk)) if body.len() + chunk.len() > BODY_MAX => {
                let message = format!("it is longer than {} MiB", BODY_MAX / (1024 * 1024));
                return Err(ClientError::Protocol { call, message });
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Err(error) => {
                let cause =
                    if error.is_timeout() { "it took too long".to_owned() } else { chain(&error.without_url()) };
                return Err(ClientError::unreachable(call, format!("the answer was lost before its end: {cause}")));
            }
        }
    }
}

/// Reads the answer to `PUT /jobs/:id`.
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

/// Reads the answer to `PATCH trace`; `end` is the length if all bytes were taken and the answer does not say another.
pub(super) async fn trace(response: Response, end: u64) -> Result<TraceReply, ClientError> {
    let headers = response.headers();
    let (status, interval) = (job_status(headers), interval(headers));
    // A length that no log has is ignored: callers add to it.
    let told = text_header(headers, header::RANGE.as_str())
        .and_then(|range| range.split_once('-')?.1.parse::<u64>().ok())
        .filter(|size| i64::try_from(*size).is_ok());
    match response.status() {
        // What is on the way may be cut: the server counts what it got (R5).
        StatusCode::ACCEPTED => Ok(TraceReply { size: told.unwrap_or(end), accepted: true, status, interval }),
        // Without a length the server wants everything again (runner-api 11.12).
        StatusCode::RANGE_NOT_SATISFIABLE => {
            Ok(TraceReply { size: told.unwrap_or(0), accepted: false, status, interval })
        }
        _ => Err(only_403_is_final(refusal("trace upload", response).await)),
    }
}

/// On an update 404 is final too, and nothing else is (runner-api 2.6, 4.2).
fn only_403_and_404_are_final(error: ClientError) -> ClientError {
    match error {
        ClientError::Forbidden { call, code, status: None, message } if !matches!(code, 403 | 404) => {
            ClientError::Rejected { call, code, message }
        }
        error => error,
    }
}

/// Whether a job goes on is told by 403 and by `Job-Status` only (runner-api 3.1): a 404 may be that of a load balancer, and
/// nothing but a repetition tells them apart.
fn only_403_is_final(error: ClientError) -> ClientError {
    match error {
        ClientError::Forbidden { call, code, status, message } if code != 403 => {
            let message = format!("{code} {message}");
            ClientError::Transient { call, code: Some(code), retry_after: None, status, message }
        }
        error => error,
    }
}

/// Any other status as an error.
pub(super) async fn refusal(call: &'static str, response: Response) -> ClientError {
    let code = response.status();
    let headers = response.headers();
    let (status, retry_after) = (job_status(headers), retry_after(headers));
    if let Some(message) = redirect::refused(&response) {
        return ClientError::Rejected { call, code: code.as_u16(), message };
    }
    let message = message(response).await;
    match code.as_u16() {
        // A page for people, as a front end shows it in the place of everything, has a status of success.
        number if code.is_success() => ClientError::Protocol { call, message: format!("{number} {message}") },
        401 | 403 | 404 | 410 => ClientError::Forbidden { call, code: code.as_u16(), status, message },
        number if matches!(number, 408 | 409 | 425 | 429) || (number >= 500 && number != 501) => {
            let message = format!("{number} {message}");
            ClientError::Transient { call, code: Some(number), retry_after, status, message }
        }
        number => ClientError::Rejected { call, code: number, message },
    }
}

/// The coordinator's words without the code that GitLab puts first: `{"message": ...}`, or the name of the status.
async fn message(response: Response) -> String {
    let code = response.status().as_u16().to_string();
    let name = response.status().canonical_reason().unwrap_or("unknown status");
    let words = words(response).await;
    let own = words.strip_prefix(&code).unwrap_or(&words).trim();
    if own.is_empty() { name.to_owned() } else { own.to_owned() }
}

async fn words(mut response: Response) -> String {
    let name = response.status().canonical_reason().unwrap_or("unknown status").to_owned();
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > ERROR_BODY_MAX {
            return name;
        }
    }
    match serde_json::from_slice::<serde_json::Value>(&body) {
        Ok(value) => match value.get("message").or_else(|| value.get("error")) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(fields) => fields.to_string(),
            None => name,
        },
        Err(_) => name,
    }
}

pub(super) fn text_header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned()).filter(|text| !text.is_empty())
}

/// `Job-Status`; a state that is not known here changes nothing.
fn job_status(headers: &HeaderMap) -> Option<JobStatus> {
    let name = text_header(headers, "job-status")?;
    JobStatus::deserialize(StrDeserializer::<serde::de::value::Error>::new(&name)).ok()
}

fn interval(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = text_header(headers, "x-gitlab-trace-update-interval")?.parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds).min(INTERVAL_MAX))
}

/// The least wait that the server asks for: until `RateLimit-ResetTime`, else for `Retry-After` in whole seconds; a date
/// there is ignored (runner-api 6.1, 11.33).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let reset = text_header(headers, "ratelimit-resettime").and_then(|date| httpdate::parse_http_date(&date).ok());
    if let Some(wait) = reset.and_then(|reset| reset.duration_since(SystemTime::now()).ok()) {
        return Some(wait);
    }
    text_header(headers, header::RETRY_AFTER.as_str())?.parse().ok().map(Duration::from_secs)
}
