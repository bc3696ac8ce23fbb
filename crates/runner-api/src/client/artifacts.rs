//! Artifacts: streaming up as one multipart part, streaming down as an archive (runner-api 5).

use std::time::Duration;

use futures::StreamExt;
use http::{Method, StatusCode, header};
use muster_job::JobId;
use reqwest::multipart::{Form, Part};
use reqwest::{Body, Response};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::redirect::{may_follow, target};
use super::{Client, ClientError, reply, send};
use crate::service::{ArtifactDownload, ArtifactQuery, ByteStream};

/// One download, whatever its size.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(3600);
/// A download that stands still for so long is dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);
const REDIRECTS_MAX: usize = 5;

/// How long an upload may take (`[runners.artifact]`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadLimits {
    /// All of it.
    pub whole: Duration,
    /// From the last byte of the body to the answer: a coordinator may have to store it elsewhere first.
    pub answer: Duration,
}

impl Default for UploadLimits {
    fn default() -> Self {
        Self { whole: Duration::from_secs(3600), answer: Duration::from_secs(600) }
    }
}

impl Client {
    /// `POST /jobs/:id/artifacts`: one file, streamed. With a `length` the request has a length, else it is chunked.
    ///
    /// The body is used up by one call; to repeat a call, make it again.
    ///
    /// # Errors
    /// [`ClientError`]; 413 is [`ClientError::Rejected`], and 307 or 308 to where a token may go is [`ClientError::Moved`].
    #[expect(clippy::too_many_arguments, reason = "each is a part of the one request")]
    pub async fn upload_artifact(
        &self,
        job: JobId,
        token: &str,
        query: &ArtifactQuery,
        filename: &str,
        body: ByteStream,
        length: Option<u64>,
        limits: UploadLimits,
    ) -> Result<(), ClientError> {
        const CALL: &str = "artifact upload";
        // Dropped with the body, once that is sent.
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
            .map_err(|error| ClientError::Setup(error.to_string()))?;
        let wanted = [
            ("artifact_format", &query.artifact_format),
            ("artifact_type", &query.artifact_type),
            ("expire_in", &query.expire_in),
        ];
        let wanted: Vec<_> = wanted
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_deref().filter(|value| !value.is_empty())?)))
            .collect();
        let call = self
            .call(Method::POST, &format!("jobs/{job}/artifacts"))
            .query(&wanted)
            .header("JOB-TOKEN", token)
            .timeout(limits.whole)
            .multipart(Form::new().part("file", part));
        let silent = async {
            sent.cancelled().await;
            tokio::time::sleep(limits.answer).await;
        };
        let response = tokio::select! {
            response = send(CALL, call) => response?,
            () = silent => {
                let message = format!("no answer within {} s of the whole file being sent", limits.answer.as_secs());
                return Err(ClientError::unreachable(CALL, message));
            }
        };
        if response.status() == StatusCode::CREATED {
            return Ok(());
        }
        match self.elsewhere(&response) {
            Some(to) => Err(ClientError::Moved { call: CALL, to: Box::new(to) }),
            None => Err(reply::refusal(CALL, response).await),
        }
    }

    /// Scheme and host that a redirect names, where the token may go there: the body is used up, so the caller follows.
    fn elsewhere(&self, response: &Response) -> Option<Url> {
        let mut to = target(response).filter(|to| may_follow(response.status(), &self.base, to))?;
        to.set_path("/");
        to.set_query(None);
        to.set_fragment(None);
        Some(to)
    }

    /// `GET /jobs/:id/artifacts`: the archive of `job`, with the token of the job that wants it.
    ///
    /// With `direct`, the coordinator may redirect to its object storage (runner-api 5.2). A redirect is followed, without
    /// the token where the host is another (runner-api 11.45).
    ///
    /// # Errors
    /// [`ClientError::Forbidden`] also where there is no such archive (404).
    pub async fn download_artifact(
        &self,
        job: JobId,
        token: &str,
        direct: bool,
    ) -> Result<ArtifactDownload, ClientError> {
        const CALL: &str = "artifact download";
        let mut call =
            self.call(Method::GET, &format!("jobs/{job}/artifacts")).header("JOB-TOKEN", token).timeout(DOWNLOAD_LIMIT);
        if direct {
            call = call.query(&[("direct_download", true)]);
        }
        let mut response = send(CALL, call).await?;
        for _ in 0..REDIRECTS_MAX {
            if !response.status().is_redirection() {
                break;
            }
            let target = target(&response).ok_or_else(|| ClientError::Protocol {
                call: CALL,
                message: "a redirect without a usable Location".to_owned(),
            })?;
            let mut call = self.transport.http().get(target.clone()).timeout(DOWNLOAD_LIMIT);
            if target.origin() == self.base.origin() {
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
            body: unless_silent(
                response
                    .bytes_stream()
                    .map(|chunk| chunk.map_err(|error| std::io::Error::other(error.without_url())))
                    .boxed(),
            ),
        })
    }
}

/// Ends the stream with an error when nothing comes for too long.
fn unless_silent(body: ByteStream) -> ByteStream {
    futures::stream::unfold(Some(body), |body| async move {
        let mut body = body?;
        match tokio::time::timeout(SILENCE_LIMIT, body.next()).await {
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
