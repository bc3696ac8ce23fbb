//! Artifact calls: uploads as one multipart part, and downloads of archives (docs/spec/runner-api.md, section 5).

use std::time::Duration;

use futures::StreamExt;
use http::{Method, StatusCode, header};
use muster_job::JobId;
use reqwest::multipart::{Form, Part};
use reqwest::{Body, Response};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::redirect::{MAX_REDIRECTS, coordinator_url, may_follow, target};
use super::{Client, ClientError, reply, send, with_request_id};
use crate::service::{ArtifactDownload, ArtifactQuery, ByteStream};

const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3600);
const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(180);

/// Timeouts of an upload (`[runners.artifact]`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadTimeouts {
    /// Maximum duration of the call.
    pub total: Duration,
    /// Maximum time from the end of the body to the response.
    pub response: Duration,
}

impl Default for UploadTimeouts {
    fn default() -> Self {
        Self { total: Duration::from_secs(3600), response: Duration::from_secs(600) }
    }
}

impl Client {
    /// Uploads a file (`POST /jobs/:id/artifacts`). Without `length`, the body is sent in chunks. A retry needs a new
    /// body.
    ///
    /// # Errors
    /// [`ClientError`]. 413 is [`ClientError::Rejected`]. A 307 or 308 to a URL that may receive the token is
    /// [`ClientError::Redirected`].
    #[expect(clippy::too_many_arguments, reason = "each is a part of the request")]
    pub async fn upload_artifact(
        &self,
        job: JobId,
        token: &str,
        query: &ArtifactQuery,
        filename: &str,
        body: ByteStream,
        length: Option<u64>,
        timeouts: UploadTimeouts,
    ) -> Result<(), ClientError> {
        const CALL: &str = "artifact upload";
        // `sent` is canceled after the whole body was sent, because the guard is dropped with the body.
        let sent = CancellationToken::new();
        let guard = sent.clone().drop_guard();
        let body = Body::wrap_stream(body.inspect(move |_| {
            let _ = &guard;
        }));
        let part = match length {
            Some(length) => Part::stream_with_length(body, length),
            None => Part::stream(body),
        };
        let part = part
            .file_name(filename.to_owned())
            .mime_str("application/octet-stream")
            .map_err(|error| ClientError::Request { call: CALL, message: error.to_string() })?;
        let parameters = [
            ("artifact_format", &query.artifact_format),
            ("artifact_type", &query.artifact_type),
            ("expire_in", &query.expire_in),
        ];
        let parameters: Vec<_> = parameters
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_deref().filter(|value| !value.is_empty())?)))
            .collect();
        let call = self
            .call(Method::POST, &format!("jobs/{job}/artifacts"))
            .query(&parameters)
            .header("JOB-TOKEN", token)
            .timeout(timeouts.total)
            .multipart(Form::new().part("file", part));
        let response_timeout = async {
            sent.cancelled().await;
            tokio::time::sleep(timeouts.response).await;
        };
        let response = tokio::select! {
            response = send(CALL, call) => response?,
            () = response_timeout => {
                let message = format!("no response within {} s after the file was sent", timeouts.response.as_secs());
                return Err(ClientError::unreachable(CALL, message));
            }
        };
        if response.status() == StatusCode::CREATED {
            return Ok(());
        }
        match self.redirect_base(&response) {
            Some(to) => Err(ClientError::Redirected { call: CALL, to: Box::new(to) }),
            None => Err(reply::refusal(CALL, response).await),
        }
    }

    /// Returns the URL of the coordinator to which the response redirects, if that URL may receive the token. Only the
    /// caller can follow the redirect, because that requires a new body.
    fn redirect_base(&self, response: &Response) -> Option<Url> {
        let to = target(response).filter(|to| may_follow(response.status(), &self.base, to))?;
        Some(coordinator_url(to))
    }

    /// Downloads the archive of `job` with the token of a dependent job (`GET /jobs/:id/artifacts`).
    ///
    /// With `direct`, the coordinator may redirect to its object storage (docs/spec/runner-api.md, section 5.2), which
    /// does not get the token (section 11.45). Other origins get the token only if the coordinator redirects the same
    /// call there, for example from HTTP to HTTPS.
    ///
    /// # Errors
    /// [`ClientError`]. [`ClientError::Forbidden`] also means that there is no archive (404).
    pub async fn download_artifact(
        &self,
        job: JobId,
        token: &str,
        direct: bool,
    ) -> Result<ArtifactDownload, ClientError> {
        const CALL: &str = "artifact download";
        // The redirect policy of the other calls sends the token to all ports of the host, such as an object storage.
        let http = self.transport.http_without_redirects()?;
        let url = self.url(&format!("jobs/{job}/artifacts"));
        let mut call = with_request_id(http.get(url)).header("JOB-TOKEN", token).timeout(DOWNLOAD_TIMEOUT);
        if direct {
            call = call.query(&[("direct_download", true)]);
        }
        let api_path = format!("/api/v4/jobs/{job}/artifacts");
        let mut sent_token = true;
        let mut response = send(CALL, call).await?;
        for _ in 0..MAX_REDIRECTS {
            if !response.status().is_redirection() {
                break;
            }
            let target = target(&response).ok_or_else(|| ClientError::Protocol {
                call: CALL,
                message: "redirect without a valid Location header".to_owned(),
            })?;
            // Only a server that has the token may redirect it to another origin.
            let is_same_call = may_follow(response.status(), &self.base, &target) && target.path().ends_with(&api_path);
            sent_token = target.origin() == self.base.origin() || sent_token && is_same_call;
            let mut call = http.get(target).timeout(DOWNLOAD_TIMEOUT);
            if sent_token {
                call = call.header("JOB-TOKEN", token);
            }
            response = send(CALL, call).await?;
        }
        if response.status() != StatusCode::OK {
            return Err(reply::refusal(CALL, response).await);
        }
        Ok(ArtifactDownload {
            filename: filename(&response).unwrap_or_else(|| "artifacts.zip".to_owned()),
            size: response.content_length().unwrap_or(0),
            body: with_idle_timeout(
                response
                    .bytes_stream()
                    .map(|chunk| chunk.map_err(|error| std::io::Error::other(error.without_url())))
                    .boxed(),
            ),
        })
    }
}

fn with_idle_timeout(body: ByteStream) -> ByteStream {
    futures::stream::unfold(Some(body), |body| async move {
        let mut body = body?;
        match tokio::time::timeout(BODY_IDLE_TIMEOUT, body.next()).await {
            Ok(chunk) => chunk.map(|chunk| (chunk, Some(body))),
            Err(_) => Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
        }
    })
    .boxed()
}

fn filename(response: &Response) -> Option<String> {
    let text = reply::text_header(response.headers(), header::CONTENT_DISPOSITION.as_str())?;
    let name = text.split_once("filename=\"")?.1.split('"').next()?;
    Some(name.to_owned()).filter(|name| !name.is_empty() && !name.contains('/'))
}
