//! HTTP proxy between runner and coordinator that injects faults. It also forwards gRPC.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const GRPC_REQUEST: &str = "/gitlab.agent.job_router.rpc.JobRouter/GetJob";

/// Kind of a call of the runner API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiCall {
    /// `POST /jobs/request`, and the same call over gRPC.
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

impl ApiCall {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Request, Self::Trace, Self::Update, Self::Upload, Self::Download];

    fn from_request(method: &Method, path: &str) -> Option<Self> {
        Some(match *method {
            Method::POST if path.ends_with("/jobs/request") || path == GRPC_REQUEST => Self::Request,
            Method::PATCH if path.ends_with("/trace") => Self::Trace,
            Method::PUT => Self::Update,
            Method::POST if path.ends_with("/artifacts") => Self::Upload,
            Method::GET if path.ends_with("/artifacts") => Self::Download,
            _ => return None,
        })
    }
}

/// Fault of one API call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed before the request reaches the coordinator.
    DropBefore,
    /// The coordinator processes the request, but its response is not forwarded.
    DropAfter,
    /// The request is delayed by this time.
    Delay(Duration),
    /// The coordinator gets the request twice. The second response is forwarded.
    Duplicate,
    /// The coordinator receives half of the request body, then both connections are closed.
    TruncateRequest,
    /// The coordinator gets a valid request with half of the body. Only affects traces.
    ShortenTrace,
    /// The runner receives half of the response, then the connection is closed.
    TruncateResponse,
    /// The runner receives this status, and `Retry-After` in seconds unless that is `None`. The request does not reach
    /// the coordinator.
    Status(u16, Option<u32>),
}

impl Fault {
    /// Returns whether this fault of a job request loses the assigned job if the coordinator has no idempotency keys.
    pub fn loses_response(self) -> bool {
        matches!(self, Self::DropAfter | Self::TruncateResponse | Self::Duplicate)
    }

    /// Returns a random fault.
    pub fn random(rng: &mut StdRng) -> Self {
        match rng.random_range(0..12) {
            0 => Self::DropBefore,
            1 => Self::DropAfter,
            2 => Self::Delay(Duration::from_millis(rng.random_range(1..200))),
            3 => Self::Duplicate,
            4 => Self::TruncateRequest,
            5 => Self::ShortenTrace,
            6 => Self::TruncateResponse,
            7 => Self::Status(500, None),
            8 => Self::Status(502, None),
            9 => Self::Status(503, Some(rng.random_range(0..2))),
            10 => Self::Status(429, Some(1)),
            _ => Self::Status(429, None),
        }
    }
}

/// Selects the fault of each API call.
pub type FaultSelector = Box<dyn FnMut(ApiCall) -> Option<Fault> + Send>;

struct Shared {
    target: Mutex<String>,
    client: reqwest::Client,
    http2: reqwest::Client,
    grpc_requests: AtomicUsize,
    select_fault: Mutex<FaultSelector>,
}

/// HTTP proxy. Dropping this value stops the proxy.
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
        let client = || reqwest::Client::builder().no_proxy();
        let shared = Arc::new(Shared {
            target: Mutex::new(target.trim_end_matches('/').to_owned()),
            client: client().build().unwrap(),
            http2: client().http2_prior_knowledge().build().unwrap(),
            grpc_requests: AtomicUsize::new(0),
            select_fault: Mutex::new(Box::new(|_| None)),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { url, shared, task }
    }

    /// Sets the function that selects the faults of later API calls.
    pub fn select_faults(&self, select: FaultSelector) {
        *self.shared.select_fault.lock() = select;
    }

    /// Returns the number of calls over gRPC so far.
    pub fn grpc_requests(&self) -> usize {
        self.shared.grpc_requests.load(Ordering::SeqCst)
    }
}

/// Accepts connections. Nagle's algorithm stays on: it delays an answer over gRPC by about 40 ms, and a fault during this
/// time loses an assigned job.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| handle(Arc::clone(&shared), request));
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn connection_reset() -> std::io::Error {
    std::io::ErrorKind::ConnectionReset.into()
}

async fn handle(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| connection_reset())?.to_bytes();
    let kind = ApiCall::from_request(&head.method, head.uri.path());
    let is_grpc = head.version == hyper::Version::HTTP_2;
    shared.grpc_requests.fetch_add(usize::from(is_grpc), Ordering::SeqCst);
    let client = if is_grpc { &shared.http2 } else { &shared.client };
    let fault = kind.and_then(|kind| (shared.select_fault.lock())(kind));
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let url = format!("{}{path}", shared.target.lock());
    let send = |body: reqwest::Body| {
        let mut headers = head.headers.clone();
        headers.remove(header::HOST);
        headers.remove(header::TRANSFER_ENCODING);
        client.request(head.method.clone(), &url).headers(headers).body(body).send()
    };
    let half = body.slice(..body.len() / 2);
    match fault {
        Some(Fault::DropBefore) => return Err(connection_reset()),
        Some(Fault::Status(code, retry_after_seconds)) => return Ok(error_response(code, retry_after_seconds)),
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
        Some(Fault::Duplicate) => drop(send(body.clone().into()).await),
        Some(Fault::TruncateRequest) => {
            let chunks = stream::iter([Ok(half)]).chain(stream::once(async { Err(connection_reset()) }));
            let _ = send(reqwest::Body::wrap_stream(chunks)).await;
            return Err(connection_reset());
        }
        Some(Fault::ShortenTrace) if kind == Some(ApiCall::Trace) => {
            let mut headers = head.headers.clone();
            headers.remove(header::HOST);
            headers.remove(header::CONTENT_LENGTH);
            let request = shared.client.request(head.method.clone(), &url).headers(headers).body(half);
            return forward_response(request.send().await, None).await;
        }
        _ => {}
    }
    forward_response(send(body.into()).await, fault).await
}

fn error_response(code: u16, retry_after_seconds: Option<u32>) -> Response<Body> {
    let mut response = Response::new(
        Full::new(Bytes::from("fault injected by the test proxy")).map_err(|never| match never {}).boxed(),
    );
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    if let Some(seconds) = retry_after_seconds {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

async fn forward_response(
    response: Result<reqwest::Response, reqwest::Error>,
    fault: Option<Fault>,
) -> Result<Response<Body>, std::io::Error> {
    let response = response.map_err(|_| connection_reset())?;
    let (status, mut headers): (_, HeaderMap) = (response.status(), response.headers().clone());
    let body = hyper::Response::<reqwest::Body>::from(response).into_body().collect().await;
    let body = body.map_err(|_| connection_reset())?;
    // A gRPC response ends with its status.
    let trailers = body.trailers().cloned();
    let body = body.to_bytes();
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    let body = match fault {
        Some(Fault::DropAfter) => return Err(connection_reset()),
        Some(Fault::TruncateResponse) => {
            headers.insert(header::CONTENT_LENGTH, (body.len().max(2)).into());
            let half = body.slice(..body.len() / 2);
            let chunks = stream::iter([Ok(Frame::data(half))]).chain(stream::once(async { Err(connection_reset()) }));
            BodyExt::boxed(StreamBody::new(chunks))
        }
        _ => match trailers {
            Some(trailers) => {
                let frames = [Frame::data(body), Frame::trailers(trailers)].map(Ok);
                BodyExt::boxed(StreamBody::new(stream::iter(frames)))
            }
            None => Full::new(body).map_err(|never| match never {}).boxed(),
        },
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}
