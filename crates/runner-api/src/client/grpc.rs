//! Job requests over gRPC (docs/spec/runner-api.md, section 7).
//!
//! Certificates, proxies and ages of connections are those of HTTP ([`super::transport`]). After any failure, the
//! caller can repeat the request over HTTP. This includes gRPC errors, because a proxy may have sent the error.

use std::error::Error;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use muster_job::error_chain;
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

use super::job_request::JobCall;
use super::observe::{EndedCall, GRPC, REQUEST_ID_HEADER, REQUEST_JOB};
use super::reply::MAX_BODY_BYTES;
use super::{Client, JobOffer, Progress, connect_error, redirect, reply};
use crate::job_router::GetJobRequest;
use crate::job_router::job_router_client::JobRouterClient;
use crate::payload::JobPayload;

/// Requests a job over gRPC. The error is a message about the cause.
pub(super) async fn request_job(client: &Client, call: &JobCall<'_>) -> Result<JobOffer, String> {
    let started = Instant::now();
    let result = get_job(client, call).await;
    let (status, request_id) = match &result {
        Ok((offer, headers)) => {
            let status = if offer.job.is_some() { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
            (Some(status), reply::text_header(headers, REQUEST_ID_HEADER))
        }
        Err(_) => (None, None),
    };
    let (endpoint, method) = REQUEST_JOB;
    let ended = EndedCall { endpoint, method, status: status.map(|status| status.as_u16()), took: started.elapsed() };
    client.report_ended(ended, GRPC, request_id.as_deref());
    result.map(|(offer, _)| offer).map_err(|error| cause(&error))
}

async fn get_job(client: &Client, call: &JobCall<'_>) -> Result<(JobOffer, HeaderMap), Status> {
    let http = client.transport.grpc().map_err(|error| Status::unknown(error.to_string()))?;
    let origin = redirect::coordinator_url(client.base.clone()).to_string();
    let origin = origin.parse::<Uri>().map_err(|error| Status::unknown(error.to_string()))?;
    let channel = Channel { http, timeout: call.time_left(), progress: call.progress.clone() };
    let mut service = JobRouterClient::with_origin(channel, origin).max_decoding_message_size(MAX_BODY_BYTES);

    let mut request = tonic::Request::new(GetJobRequest { job_request: call.body.clone() });
    // Proxies get the deadline in a header.
    request.set_timeout(call.time_left());
    add_metadata(request.metadata_mut(), call.token)?;
    let (metadata, message, _) = service.get_job(request).await?.into_parts();
    let body = message.job_response;
    let job = match body.is_empty() {
        true => None,
        false => Some(Box::new(JobPayload::read(&body).map_err(Status::data_loss)?)),
    };
    let text = String::from_utf8(body.into()).unwrap_or_default();
    let headers = metadata.into_headers();
    let (last_update, honors_idempotency_key) = reply::queue_state(&headers);
    Ok((JobOffer { job, text, last_update, honors_idempotency_key }, headers))
}

fn add_metadata(metadata: &mut MetadataMap, token: &str) -> Result<(), Status> {
    let ascii = |text: String| {
        MetadataValue::try_from(text).map_err(|_| Status::unknown("the runner token contains invalid characters"))
    };
    metadata.insert(header::AUTHORIZATION.as_str(), ascii(format!("Bearer {token}"))?);
    metadata.insert(REQUEST_ID_HEADER, ascii(uuid::Uuid::new_v4().simple().to_string())?);
    Ok(())
}

fn cause(status: &Status) -> String {
    match status.source() {
        Some(source) => error_chain(source),
        None if status.message().is_empty() => status.code().description().to_owned(),
        None => status.message().to_owned(),
    }
}

struct Channel {
    http: reqwest::Client,
    timeout: Duration,
    progress: Progress,
}

impl tower::Service<http::Request<tonic::body::Body>> for Channel {
    type Response = Response<reqwest::Body>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let (head, body) = request.into_parts();
        let call =
            self.http.post(head.uri.to_string()).version(head.version).headers(head.headers).timeout(self.timeout);
        let progress = self.progress.clone();
        async move {
            let body = body.collect().await?.to_bytes();
            let response = call.body(progress.body(body)).send().await;
            let response = response.map_err(|error| connect_error::describe(&error))?;
            if let Some(problem) = problem_of(response.status(), response.headers()) {
                return Err(problem.into());
            }
            progress.mark_answered();
            Ok(response.into())
        }
        .boxed()
    }
}

/// Returns the reason why a response is not from a gRPC server. `None` means that it is.
fn problem_of(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let kind = reply::text_header(headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
    let is_grpc = status == StatusCode::OK && kind.starts_with("application/grpc");
    (!is_grpc).then(|| format!("the response is not from a gRPC server: status {status}, content type `{kind}`"))
}

#[cfg(test)]
mod tests;
