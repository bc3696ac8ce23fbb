//! An HTTP object store with scripted responses.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use std::sync::Mutex;

#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) target: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// Status, headers and body of a response.
type ScriptedResponse = (u16, Vec<(&'static str, String)>, &'static str);

#[derive(Default)]
struct State {
    /// Content and modification time of each object, by path.
    objects: HashMap<String, (Vec<u8>, String)>,
    responses: VecDeque<ScriptedResponse>,
    requests: Vec<ReceivedRequest>,
}

pub(crate) struct Store {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

impl Store {
    pub(crate) async fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let app = axum::Router::new().fallback(move |request: Request| handle(Arc::clone(&shared), request));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, state }
    }

    /// The next requests get these statuses, and access no object.
    pub(crate) fn respond_with_statuses(&self, statuses: &[u16]) {
        let responses = statuses.iter().map(|status| (*status, Vec::new(), ""));
        self.state.lock().unwrap().responses.extend(responses);
    }

    pub(crate) fn respond_with(&self, status: u16, headers: &[(&'static str, String)], body: &'static str) {
        self.state.lock().unwrap().responses.push_back((status, headers.to_vec(), body));
    }

    pub(crate) fn put(&self, path: &str, content: Vec<u8>, modified: &str) {
        self.state.lock().unwrap().objects.insert(path.to_owned(), (content, modified.to_owned()));
    }

    pub(crate) fn object(&self, path: &str) -> Option<Vec<u8>> {
        self.state.lock().unwrap().objects.get(path).map(|(content, _)| content.clone())
    }

    pub(crate) fn take_requests(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

async fn handle(state: Arc<Mutex<State>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 24).await.unwrap();
    let path = head.uri.path().to_owned();
    let text = |value: &axum::http::HeaderValue| value.to_str().unwrap().to_owned();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let mut state = state.lock().unwrap();
    state.requests.push(ReceivedRequest { target: head.uri.to_string(), headers, body: body.to_vec() });
    if let Some((status, headers, body)) = state.responses.pop_front() {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(name, value);
        }
        return response.body(Body::from(body)).unwrap();
    }
    let response =
        |status: StatusCode, body: Vec<u8>| Response::builder().status(status).body(Body::from(body)).unwrap();
    match head.method {
        Method::PUT => {
            state.objects.insert(path, (body.to_vec(), "Sat, 01 Nov 2025 10:00:00 GMT".to_owned()));
            response(StatusCode::OK, Vec::new())
        }
        Method::POST => response(StatusCode::CREATED, Vec::new()),
        _ => match state.objects.get(&path) {
            Some((content, modified)) => {
                let mut response = response(StatusCode::OK, content.clone());
                response.headers_mut().insert(header::LAST_MODIFIED, modified.parse().unwrap());
                response.headers_mut().insert(header::ETAG, "\"tag\"".parse().unwrap());
                response
            }
            None => response(StatusCode::NOT_FOUND, Vec::new()),
        },
    }
}
