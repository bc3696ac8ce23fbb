//! Fake engine, for failures that a real engine does not show on request.

use std::sync::Arc;

use bollard::Docker;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;

use super::endpoint::Endpoint;
use super::transport::{self, Connector};

/// Timeout of a call in seconds.
const CALL_TIMEOUT_S: u64 = 60;

#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) header: Option<(&'static str, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self { status, body: body.to_owned(), header: None }
    }
}

/// An engine that gets its answers from a function. If the function returns `None`, the engine does not answer.
pub(crate) struct FakeEngine {
    pub(crate) client: Docker,
    pub(crate) host: String,
    /// Calls, each with its query.
    calls: Arc<Mutex<Vec<(String, String)>>>,
    _serving: AbortOnDropHandle<()>,
    _dir: TempDir,
}

impl FakeEngine {
    /// Starts an engine. `answer` gets the method and path of a call, such as `DELETE /volumes/a`.
    pub(crate) fn start(answer: impl Fn(&str) -> Option<Answer> + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (answer, calls) = (Arc::new(answer), Arc::<Mutex<Vec<_>>>::default());
        let recorded = Arc::clone(&calls);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, recorded) = (Arc::clone(&answer), Arc::clone(&recorded));
                tokio::spawn(async move {
                    let mut stream = stream;
                    let (call, query) = read_call(&mut stream).await;
                    recorded.lock().push((call.clone(), query));
                    match answer(&call) {
                        Some(answer) => write(&mut stream, &call, &answer).await,
                        None => std::future::pending().await,
                    }
                });
            }
        });
        let host = format!("unix://{}", socket.display());
        let client = transport::client(Connector::new(Endpoint::Unix(socket)), CALL_TIMEOUT_S).unwrap().0;
        Self { client, host, calls, _serving: AbortOnDropHandle::new(serving), _dir: dir }
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().iter().map(|(call, _)| call.clone()).collect()
    }

    /// Returns the number of calls that begin with this text.
    pub(crate) fn count(&self, call: &str) -> usize {
        self.calls.lock().iter().filter(|(recorded, _)| recorded.starts_with(call)).count()
    }

    /// Returns the query of the last such call.
    pub(crate) fn query(&self, call: &str) -> Option<String> {
        self.calls.lock().iter().rfind(|(recorded, _)| recorded == call).map(|(_, query)| query.clone())
    }
}

/// Reads a request with its body. Returns the method and path, and the query.
async fn read_call(stream: &mut UnixStream) -> (String, String) {
    let (mut request, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let read = stream.read(&mut buffer).await.unwrap_or(0);
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
            let is_complete = match length {
                Some(length) => body.len() >= length,
                None => !head.contains("transfer-encoding: chunked") || request.ends_with(b"0\r\n\r\n"),
            };
            if is_complete || read == 0 {
                break;
            }
        } else if read == 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&request);
    let mut words = text.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    (format!("{method} {path}"), query.to_owned())
}

async fn write(stream: &mut UnixStream, call: &str, answer: &Answer) {
    let header = answer.header.as_ref().map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    let body = if call.starts_with("HEAD") { "" } else { &answer.body };
    let text = format!(
        "HTTP/1.1 {} Test\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{header}\r\n{body}",
        answer.status,
        body.len()
    );
    let _ = stream.write_all(text.as_bytes()).await;
}
