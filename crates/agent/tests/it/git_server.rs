//! Real `git upload-pack` over HTTP.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use tokio::io::AsyncWriteExt;

pub(crate) const TOKEN: &str = "s3cret-t0ken";

pub(crate) struct GitServer {
    pub(crate) address: String,
    requests: RequestLog,
}

/// Path and `Authorization` of each request.
type RequestLog = Arc<Mutex<Vec<(String, Option<String>)>>>;

impl GitServer {
    /// Starts a server for repositories in `root`. Paths below `/public/` need no token.
    pub(crate) async fn start(root: &Path) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = RequestLog::default();
        let app = Router::new().fallback(serve).with_state((root.to_owned(), Arc::clone(&requests)));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, requests }
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<(String, Option<String>)> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    pub(crate) fn url(&self, token: &str, path: &str) -> String {
        format!("http://gitlab-ci-token:{token}@{}/{path}", self.address)
    }
}

async fn serve(State((root, requests)): State<(PathBuf, RequestLog)>, request: Request) -> Response {
    let uri = request.uri().clone();
    let path = uri.path().trim_start_matches('/').to_owned();
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    requests.lock().unwrap().push((path.clone(), authorization.map(str::to_owned)));
    if path == "html.git/info/refs" {
        return axum::response::Html("Sign in").into_response();
    }
    if path == "slow.git/info/refs" {
        std::future::pending::<()>().await;
    }
    let expected = base64::engine::general_purpose::STANDARD.encode(format!("gitlab-ci-token:{TOKEN}"));
    let path = match path.strip_prefix("public/") {
        Some(path) => path.to_owned(),
        None if authorization == Some(&format!("Basic {expected}")) => path,
        // git sends credentials only after this header.
        None => return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=\"git\"")]).into_response(),
    };
    let (repository, arguments, kind) = if let Some(repository) = path.strip_suffix("/info/refs") {
        (repository, vec!["--stateless-rpc", "--advertise-refs"], "advertisement")
    } else if let Some(repository) = path.strip_suffix("/git-upload-pack") {
        (repository, vec!["--stateless-rpc"], "result")
    } else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let directory = root.join(repository);
    if !directory.exists() {
        return StatusCode::NOT_FOUND.into_response();
    }
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let mut output = if kind == "advertisement" { b"001e# service=git-upload-pack\n0000".to_vec() } else { Vec::new() };
    output.extend(upload_pack(&directory, &arguments, body).await);
    ([(header::CONTENT_TYPE, format!("application/x-git-upload-pack-{kind}"))], Body::from(output)).into_response()
}

async fn upload_pack(directory: &Path, arguments: &[&str], input: Bytes) -> Vec<u8> {
    let mut child = tokio::process::Command::new("git")
        .arg("upload-pack")
        .args(arguments)
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&input).await.unwrap();
    drop(stdin);
    child.wait_with_output().await.unwrap().stdout
}
