//! What each path answers.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use crate::Telemetry;
use crate::metrics;

const TEXT: &str = "text/plain; charset=utf-8";
const LIST_VERSION: HeaderName = HeaderName::from_static("x-list-version");

const PROFILES: &str = "There are no profiles of the Go runtime here: this program is not written in Go.\n\
    For CPU time use `perf record -g -p <pid>`; SIGUSR1 writes the state of each thread to the log at level debug.\n";

type Answer = Response<Full<Bytes>>;

/// The answer to a request. The body, if there is one, is not read.
pub(super) fn answer<B>(request: &Request<B>, telemetry: &Telemetry) -> Answer {
    let answer = match request.uri().path() {
        "/metrics" => exposition(request.method(), telemetry),
        "/debug/jobs/list" => {
            let mut answer = text(StatusCode::OK, telemetry.metrics.list_jobs());
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            answer.headers_mut().insert(LIST_VERSION, HeaderValue::from_static("2"));
            answer
        }
        "/debug/process/state" => text(StatusCode::OK, telemetry.life.state().label()),
        "/health/ready" if telemetry.life.is_ready() => text(StatusCode::OK, "ready"),
        "/health/ready" => text(StatusCode::SERVICE_UNAVAILABLE, "boot-verify pending"),
        path if path == "/debug/pprof" || path.starts_with("/debug/pprof/") => {
            text(StatusCode::NOT_IMPLEMENTED, PROFILES)
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "404 page not found; there are /metrics, /health/ready, /debug/jobs/list and /debug/process/state\n",
        ),
    };
    if request.method() == Method::HEAD {
        return answer.map(|_| Full::default());
    }
    answer
}

fn exposition(method: &Method, telemetry: &Telemetry) -> Answer {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let mut answer = text(StatusCode::OK, telemetry.metrics.text(telemetry.life.state()));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    answer
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    answer
}
