//! git's smart HTTP protocol for fetches, so that gitlab-runner can clone the snapshot.
//!
//! Connects `git upload-pack` to the HTTP routes, and checks the job's token.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use base64::Engine as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio_util::io::ReaderStream;

use crate::git::Git;

const USER: &str = "gitlab-ci-token";
/// Maximum size of a request. git's requests have only a few kilobytes.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// The repository to serve.
#[derive(Clone)]
pub struct GitServer {
    /// Path of the bare repository.
    pub repository: PathBuf,
    /// Path of the project, such as `group/app`. Clients may add `.git` to it.
    pub project_path: String,
    /// Check of the password of each request.
    pub check_token: CheckToken,
}

/// Checks the token of a job.
pub type CheckToken = Arc<dyn Fn(String) -> BoxFuture<'static, TokenCheck> + Send + Sync>;

/// Result of a check of a job token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCheck {
    /// The token belongs to the current assignment of the job.
    Current,
    /// The job has ended, or was assigned again with another token.
    Expired,
    /// The token is not from this coordinator.
    Unknown,
    /// The coordinator cannot check tokens at the moment.
    Unavailable,
}

/// Returns the routes `/<project>.git/info/refs` and `/<project>.git/git-upload-pack`.
pub fn git_routes(server: GitServer) -> Router {
    // A project's path has slashes, which a route parameter cannot contain, so the handlers split the path.
    Router::new().route("/{*path}", get(advertise)).route("/{*path}", post(upload_pack)).with_state(server)
}

#[derive(serde::Deserialize)]
struct Service {
    service: Option<String>,
}

async fn advertise(
    State(server): State<GitServer>,
    Path(path): Path<String>,
    Query(query): Query<Service>,
    headers: HeaderMap,
) -> Response<Body> {
    if !server.serves(&path, "/info/refs") {
        return StatusCode::NOT_FOUND.into_response();
    }
    if query.service.as_deref() != Some("git-upload-pack") {
        return (StatusCode::FORBIDDEN, "this repository is read-only").into_response();
    }
    if let Err(response) = server.may_read(&headers).await {
        return response;
    }
    match server.spawn(&headers, true) {
        Ok((child, stdout)) => {
            let head = futures::stream::once(async { Ok("001e# service=git-upload-pack\n0000".into()) });
            let body = Body::from_stream(head.chain(output(child, stdout)));
            response("application/x-git-upload-pack-advertisement", body)
        }
        Err(error) => failed(&error),
    }
}

async fn upload_pack(
    State(server): State<GitServer>,
    Path(path): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response<Body> {
    if !server.serves(&path, "/git-upload-pack") {
        return StatusCode::NOT_FOUND.into_response();
    }
    if let Err(response) = server.may_read(&headers).await {
        return response;
    }
    let Ok(request) = axum::body::to_bytes(body, MAX_REQUEST_BYTES).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let request = match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        Some(b"gzip") => match gunzip(&request) {
            Ok(Some(request)) => request.into(),
            Ok(None) => return StatusCode::PAYLOAD_TOO_LARGE.into_response(),
            Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
        },
        _ => request,
    };
    let (mut child, stdout) = match server.spawn(&headers, false) {
        Ok(started) => started,
        Err(error) => return failed(&error),
    };
    let Some(mut stdin) = child.stdin.take() else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    // With version 0 of the protocol, git answers before it has read the whole request.
    let input = async move {
        if let Err(error) = stdin.write_all(&request).await {
            tracing::debug!(%error, "git upload-pack closed its input");
        }
        None
    };
    let input = futures::stream::once(input).filter_map(std::future::ready);
    let body = Body::from_stream(futures::stream::select(input, output(child, stdout)));
    response("application/x-git-upload-pack-result", body)
}

impl GitServer {
    /// Returns whether `path` is the served project followed by `end`.
    fn serves(&self, path: &str, end: &str) -> bool {
        let Some(project) = path.strip_suffix(end) else { return false };
        project.strip_suffix(".git").unwrap_or(project) == self.project_path
    }

    /// Checks the job's token in the basic authentication. The error is the response to the client.
    async fn may_read(&self, headers: &HeaderMap) -> Result<(), Response<Body>> {
        let token = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, text) = value.to_str().ok()?.split_once(' ')?;
            let plain = base64::engine::general_purpose::STANDARD.decode(text.trim()).ok()?;
            let plain = String::from_utf8(plain).ok()?;
            let (user, token) = plain.split_once(':')?;
            (scheme.eq_ignore_ascii_case("basic") && user == USER).then(|| token.to_owned())
        });
        let Some(token) = token else { return Err(unauthorized()) };
        match (self.check_token)(token).await {
            TokenCheck::Current => Ok(()),
            TokenCheck::Unknown => Err(unauthorized()),
            TokenCheck::Expired => {
                let reason = "the job of this token has ended, or was assigned again";
                Err((StatusCode::FORBIDDEN, reason).into_response())
            }
            TokenCheck::Unavailable => Err(StatusCode::SERVICE_UNAVAILABLE.into_response()),
        }
    }

    /// Starts `git upload-pack`, which ends when its handle is dropped. If `advertise` is true, the process only lists
    /// the refs, and reads no input.
    fn spawn(&self, headers: &HeaderMap, advertise: bool) -> std::io::Result<(Child, impl AsyncRead + Send + use<>)> {
        let mut arguments = vec!["upload-pack", "--stateless-rpc", "--strict"];
        if advertise {
            arguments.push("--advertise-refs");
        }
        arguments.push(".");
        let mut command = Command::from(Git::bare(&self.repository).command(&arguments));
        if let Some(version) = headers.get("git-protocol").and_then(|value| value.to_str().ok()) {
            command.env("GIT_PROTOCOL", version);
        }
        let stdin = if advertise { Stdio::null() } else { Stdio::piped() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| std::io::Error::other("git has no standard output"))?;
        Ok((child, stdout))
    }
}

/// Returns the output as a stream that owns the process.
///
/// If the process fails, the stream fails, so that a client does not accept a truncated response.
fn output(
    child: Child,
    stdout: impl AsyncRead + Send + 'static,
) -> impl futures::Stream<Item = std::io::Result<bytes::Bytes>> + Send {
    let mut child = Some(child);
    let end = futures::stream::once(async move {
        let status = match child.take() {
            Some(mut child) => child.wait().await?,
            None => return Ok(bytes::Bytes::new()),
        };
        if status.success() {
            Ok(bytes::Bytes::new())
        } else {
            Err(std::io::Error::other(format!("git upload-pack ended with {status}")))
        }
    });
    ReaderStream::with_capacity(Box::pin(stdout), 64 << 10).chain(end)
}

fn response(kind: &'static str, body: Body) -> Response<Body> {
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache, max-age=0, must-revalidate")];
    (headers, body).into_response()
}

fn unauthorized() -> Response<Body> {
    let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"muster\"")];
    (StatusCode::UNAUTHORIZED, challenge, "use the job token as the password of the user gitlab-ci-token")
        .into_response()
}

fn failed(error: &std::io::Error) -> Response<Body> {
    tracing::error!(%error, "failed to run git upload-pack");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

fn gunzip(packed: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
    use std::io::Read as _;
    let mut plain = Vec::new();
    let limit = u64::try_from(MAX_REQUEST_BYTES).unwrap_or(u64::MAX);
    flate2::read::GzDecoder::new(packed).take(limit.saturating_add(1)).read_to_end(&mut plain)?;
    Ok((plain.len() <= MAX_REQUEST_BYTES).then_some(plain))
}

#[cfg(test)]
mod tests;
