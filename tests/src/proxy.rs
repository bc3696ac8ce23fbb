//! HTTP proxy between runner and coordinator that injects faults.
//!
//! It reports what it did with each exchange, so that a test can act at that moment.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Kind of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `POST /jobs/request`.
    Request,
    /// `PATCH /jobs/:id/trace`.
    Trace,
    /// `PUT /jobs/:id`.
    Update,
    /// `POST /jobs/:id/artifacts`.
    Upload,
    /// `GET /jobs/:id/artifacts`.
    Download,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Request, Self::Trace, Self::Update, Self::Upload, Self::Download];

    fn of(method: &Method, path: &str) -> Option<Self> {
        Some(match *method {
            Method::POST if path.ends_with("/jobs/request") => Self::Request,
            Method::PATCH if path.ends_with("/trace") => Self::Trace,
            Method::PUT => Self::Update,
            Method::POST if path.ends_with("/artifacts") => Self::Upload,
            Method::GET if path.ends_with("/artifacts") => Self::Download,
            _ => return None,
        })
    }
}

/// Fault of one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed before the request reaches the coordinator.
    DropBefore,
    /// The connection is closed after the coordinator has processed the request, before its response is passed on.
    DropAfter,
    /// The exchange is delayed by this time.
    Delay(Duration),
    /// The request is sent to the coordinator twice. The second response is passed on.
    Duplicate,
    /// The coordinator gets half of the request body, then both connections are closed.
    CutBody,
    /// The coordinator gets a complete request with half of the body. Only for traces: other requests have their length in the body too.
    ShortBody,
    /// The runner gets half of the response, then the connection is closed.
    CutAnswer,
    /// The runner gets this response. The request does not reach the coordinator.
    Status(u16, Option<u32>),
}

impl Fault {
    /// Returns whether the fault of a job request loses a job of a coordinator without idempotency keys.
    pub fn loses_an_answer(self) -> bool {
        matches!(self, Self::DropAfter | Self::CutAnswer | Self::Duplicate)
    }

    /// Returns a random fault.
    pub fn any(rng: &mut StdRng) -> Self {
        match rng.random_range(0..12) {
            0 => Self::DropBefore,
            1 => Self::DropAfter,
            2 => Self::Delay(Duration::from_millis(rng.random_range(1..200))),
            3 => Self::Duplicate,
            4 => Self::CutBody,
            5 => Self::ShortBody,
            6 => Self::CutAnswer,
            7 => Self::Status(500, None),
            8 => Self::Status(502, None),
            9 => Self::Status(503, Some(rng.random_range(0..2))),
            10 => Self::Status(429, Some(1)),
            _ => Self::Status(429, None),
        }
    }
}

/// Selects the fault of each exchange, in the order in which they begin.
pub type Decide = Box<dyn FnMut(Kind) -> Option<Fault> + Send>;

struct Shared {
    target: Mutex<String>,
    client: reqwest::Client,
    decide: Mutex<Decide>,
}

/// HTTP proxy. Dropping it stops it.
pub struct Proxy {
    /// URL for runners.
    pub url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Body = BoxBody<Bytes, std::io::Error>;

impl Proxy {
    /// Starts a proxy for the coordinator at `target`, without faults.
    pub async fn start(target: &str) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target.trim_end_matches('/').to_owned()),
            client,
            decide: Mutex::new(Box::new(|_| None)),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { url, shared, task }
    }

    /// Uses `decide` to select the faults of later exchanges.
    pub fn decide(&self, decide: Decide) {
        *self.shared.decide.lock() = decide;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| exchange(Arc::clone(&shared), request));
            // An error means that a fault closed the connection.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn broken() -> std::io::Error {
    std::io::ErrorKind::ConnectionReset.into()
}

async fn exchange(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| broken())?.to_bytes();
    let kind = Kind::of(&head.method, head.uri.path());
    let fault = kind.and_then(|kind| (shared.decide.lock())(kind));
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let url = format!("{}{path}", shared.target.lock());
    let send = |body: reqwest::Body| {
        let mut headers = head.headers.clone();
        headers.remove(header::HOST);
        headers.remove(header::TRANSFER_ENCODING);
        shared.client.request(head.method.clone(), &url).headers(headers).body(body).send()
    };
    let half = body.slice(..body.len() / 2);
    match fault {
        Some(Fault::DropBefore) => return Err(broken()),
        Some(Fault::Status(code, after)) => return Ok(refuse(code, after)),
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
        Some(Fault::Duplicate) => drop(send(body.clone().into()).await),
        Some(Fault::CutBody) => {
            let parts = stream::iter([Ok(half)]).chain(stream::once(async { Err(broken()) }));
            let _ = send(reqwest::Body::wrap_stream(parts)).await;
            return Err(broken());
        }
        Some(Fault::ShortBody) if kind == Some(Kind::Trace) => {
            let mut headers = head.headers.clone();
            headers.remove(header::HOST);
            headers.remove(header::CONTENT_LENGTH);
            let short = shared.client.request(head.method.clone(), &url).headers(headers).body(half);
            return relay(short.send().await, None).await;
        }
        _ => {}
    }
    relay(send(body.into()).await, fault).await
}

fn refuse(code: u16, after: Option<u32>) -> Response<Body> {
    let mut response =
        Response::new(Full::new(Bytes::from("broken on purpose")).map_err(|never| match never {}).boxed());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    if let Some(seconds) = after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

async fn relay(
    answer: Result<reqwest::Response, reqwest::Error>,
    fault: Option<Fault>,
) -> Result<Response<Body>, std::io::Error> {
    let answer = answer.map_err(|_| broken())?;
    let (status, mut headers): (_, HeaderMap) = (answer.status(), answer.headers().clone());
    let body = answer.bytes().await.map_err(|_| broken())?;
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    let body = match fault {
        Some(Fault::DropAfter) => return Err(broken()),
        Some(Fault::CutAnswer) => {
            headers.insert(header::CONTENT_LENGTH, (body.len().max(2)).into());
            let half = body.slice(..body.len() / 2);
            let parts = stream::iter([Ok(Frame::data(half))]).chain(stream::once(async { Err(broken()) }));
            BodyExt::boxed(StreamBody::new(parts))
        }
        _ => Full::new(body).map_err(|never| match never {}).boxed(),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}
