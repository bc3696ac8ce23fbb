//! Sends libgit2's HTTP requests with this crate's client.
//!
//! libgit2 has one table of transports per process, and calls a transport on the fetching thread. So a thread-local
//! variable has the session ([`Session::enter`]).

mod credentials;
mod sys;

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use git2::transport::{Service, SmartSubtransport, SmartSubtransportStream, Transport};
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response, StatusCode};
use tokio::runtime::Handle;
use url::{Origin, Url};

pub(crate) use credentials::{Credentials, without_credentials};

/// Maximum size of a request in bytes. A request lists wanted and existing commits.
const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;

/// URL suffix that requests the refs of a repository.
const LIST_REFS: &str = "/info/refs?service=git-upload-pack";
const MAX_REDIRECTS: usize = 10;

thread_local! {
    static SESSION: RefCell<Option<Arc<Session>>> = const { RefCell::new(None) };
}

/// Settings for the requests of one fetch.
pub(crate) struct Session {
    pub(crate) clients: Clients,
    pub(crate) credentials: Credentials,
    pub(crate) runtime: Handle,
    pub(crate) stop: StopToken,
    /// Explanation if the server refuses access.
    pub(crate) access_hint: &'static str,
}

/// HTTP clients. Only the coordinator gets the job's certificates.
pub(crate) struct Clients {
    coordinator: Option<Origin>,
    for_coordinator: reqwest::Client,
    for_others: reqwest::Client,
}

impl Clients {
    /// Returns the clients. `for_coordinator` has the certificates of the job, and `for_others` those of the system.
    pub(crate) fn new(coordinator: &str, for_coordinator: reqwest::Client, for_others: reqwest::Client) -> Self {
        Self { coordinator: origin(coordinator), for_coordinator, for_others }
    }

    fn get(&self, url: &str) -> &reqwest::Client {
        let is_coordinator = self.coordinator.is_some() && origin(url) == self.coordinator;
        if is_coordinator { &self.for_coordinator } else { &self.for_others }
    }
}

fn origin(url: &str) -> Option<Origin> {
    Some(Url::parse(url).ok()?.origin())
}

/// Returns a policy for redirects within one server.
pub(crate) fn same_server() -> Policy {
    Policy::custom(|attempt| {
        let last = attempt.previous().last().map(Url::origin);
        match () {
            () if attempt.previous().len() > MAX_REDIRECTS => attempt.error("too many redirects"),
            () if last == Some(attempt.url().origin()) => attempt.follow(),
            () => attempt.stop(),
        }
    })
}

impl Session {
    /// Runs `work` on this thread with this session.
    pub(crate) fn enter<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        /// Removes the session, even after a panic.
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                SESSION.with_borrow_mut(|session| *session = None);
            }
        }
        SESSION.with_borrow_mut(|session| *session = Some(Arc::clone(self)));
        let _leave = Leave;
        work()
    }

    pub(crate) fn list_refs(&self, url: &str) -> io::Result<Response> {
        let repository = self.credentials.apply(url);
        let url = format!("{}{LIST_REFS}", repository.url);
        let response = self.send(repository.authorize(self.clients.get(&url).get(&url)))?;
        let response = match other_server(&response) {
            // Another server must get neither credentials nor certificates.
            Some(url) => self.send(self.clients.get(url.as_str()).get(url))?,
            None => response,
        };
        expect_type(&response, "application/x-git-upload-pack-advertisement")?;
        Ok(response)
    }

    /// Sends a request, and checks the status.
    fn send(&self, request: RequestBuilder) -> io::Result<Response> {
        let response = self.wait(async { request.send().await.map_err(network_error) })?;
        match response.status() {
            StatusCode::OK => Ok(response),
            _ if other_server(&response).is_some() => Ok(response),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the server answered {status}: {}", self.access_hint),
            )),
            status => Err(io::Error::other(format!("the server answered {status}"))),
        }
    }

    fn wait<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                _ = self.stop.stopped() => Err(io::Error::other("stopped")),
                done = work => done,
            }
        })
    }
}

fn network_error(error: reqwest::Error) -> io::Error {
    io::Error::other(muster_job::error_chain(&error.without_url()))
}

/// Registers this transport for `http` and `https` in libgit2.
pub(crate) fn register() -> Result<(), git2::Error> {
    static REGISTERED: OnceLock<Result<(), String>> = OnceLock::new();
    let register = || sys::register(transport).map_err(|error| error.message().to_owned());
    REGISTERED.get_or_init(register).clone().map_err(|message| git2::Error::from_str(&message))
}

fn transport(remote: &git2::Remote<'_>) -> Result<Transport, git2::Error> {
    let session = SESSION.with_borrow(Option::clone);
    let session = session.ok_or_else(|| git2::Error::from_str("this thread has no session for HTTP requests"))?;
    Transport::smart(remote, true, Http { session, base: Mutex::new(None) })
}

struct Http {
    session: Arc<Session>,
    /// URL of the repository after redirects of the first request.
    base: Mutex<Option<String>>,
}

impl SmartSubtransport for Http {
    fn action(&self, url: &str, action: Service) -> Result<Box<dyn SmartSubtransportStream>, git2::Error> {
        let failed = |error: io::Error| {
            git2::Error::new(git2::ErrorCode::GenericError, git2::ErrorClass::Net, error.to_string())
        };
        let repository = self.session.credentials.apply(url);
        match action {
            Service::UploadPackLs => {
                let response = self.session.list_refs(url).map_err(failed)?;
                *self.base.lock() = response.url().as_str().strip_suffix(LIST_REFS).map(str::to_owned);
                Ok(Box::new(Stream::response(&self.session, response)))
            }
            Service::UploadPack => {
                let base = self.base.lock().clone().unwrap_or_else(|| repository.url.clone());
                let url = format!("{base}/git-upload-pack");
                let request = self
                    .session
                    .clients
                    .get(&url)
                    .post(url)
                    .header(CONTENT_TYPE, "application/x-git-upload-pack-request")
                    .header(ACCEPT, "application/x-git-upload-pack-result");
                // Another server must not get the credentials.
                let request = if repository.is_at(&base) { repository.authorize(request) } else { request };
                Ok(Box::new(Stream::request(&self.session, request)))
            }
            Service::ReceivePackLs | Service::ReceivePack => {
                Err(git2::Error::from_str("pushing is not supported without the git command"))
            }
        }
    }

    fn close(&self) -> Result<(), git2::Error> {
        Ok(())
    }
}

/// Returns the URL of a redirect that [`same_server`] does not follow.
fn other_server(response: &Response) -> Option<Url> {
    let location = response.headers().get(LOCATION).filter(|_| response.status().is_redirection())?;
    response.url().join(location.to_str().ok()?).ok()
}

fn expect_type(response: &Response, expected: &str) -> io::Result<()> {
    let found = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if found == expected {
        return Ok(());
    }
    Err(io::Error::other(format!("the response is not from a Git server: its type is `{found}`, not `{expected}`")))
}

/// Maximum size of a list of refs in bytes, which libgit2 keeps in memory.
const MAX_REFS_BYTES: u64 = 256 * 1024 * 1024;

struct Stream {
    session: Arc<Session>,
    state: State,
    /// Maximum number of bytes still to receive.
    left: u64,
}

enum State {
    /// libgit2 writes the request.
    Request(Option<RequestBuilder>, Vec<u8>),
    /// libgit2 reads the response. The bytes are the rest of the last chunk.
    Response(Response, Bytes),
}

impl Stream {
    fn response(session: &Arc<Session>, response: Response) -> Self {
        Self { session: Arc::clone(session), state: State::Response(response, Bytes::new()), left: MAX_REFS_BYTES }
    }

    fn request(session: &Arc<Session>, request: RequestBuilder) -> Self {
        Self { session: Arc::clone(session), state: State::Request(Some(request), Vec::new()), left: u64::MAX }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.state {
            State::Request(_, body) if body.len() + bytes.len() <= MAX_REQUEST_BYTES => {
                body.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            State::Request(..) => Err(io::Error::other("the request is too large")),
            State::Response(..) => Err(io::Error::other("the request has been sent already")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match &mut self.state {
                State::Request(request, body) => {
                    let request = request.take().ok_or_else(|| io::Error::other("the request failed"))?;
                    let response = self.session.send(request.body(std::mem::take(body)))?;
                    expect_type(&response, "application/x-git-upload-pack-result")?;
                    self.state = State::Response(response, Bytes::new());
                }
                State::Response(response, rest) if rest.is_empty() => {
                    match self.session.wait(async { response.chunk().await.map_err(network_error) })? {
                        Some(chunk) => {
                            let too_large = || io::Error::other("the server lists too many refs");
                            self.left = self.left.checked_sub(chunk.len() as u64).ok_or_else(too_large)?;
                            *rest = chunk;
                        }
                        None => return Ok(0),
                    }
                }
                State::Response(_, rest) => {
                    let count = rest.len().min(buffer.len());
                    rest.copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
                    return Ok(count);
                }
            }
        }
    }
}
