//! Responses of the server's paths.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode, Uri};
use tokio::time::timeout;

use super::page::{JsonAnswer, Page};
use crate::Telemetry;
use crate::metrics;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Timeout of an endpoint that another crate handles.
const PAGE_LIMIT: Duration = Duration::from_secs(10);
const LIST_VERSION: HeaderName = HeaderName::from_static("x-list-version");

const PROFILES: &str = "There are no profiles of the Go runtime here: this program is not written in Go.\n\
    For CPU time use `perf record -g -p <pid>`; SIGUSR1 writes the state of each thread to the log at level debug.\n";

type Answer = Response<Full<Bytes>>;

/// Returns the response to a request. A body of the request is not read.
pub(super) async fn answer(method: &Method, uri: &Uri, telemetry: &Telemetry) -> Answer {
    let page = telemetry.pages.at(uri.path());
    let answer = match uri.path() {
        "/metrics" => exposition(method, telemetry),
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
        _ => match page {
            Some(page) => json(&*page, uri.query().unwrap_or_default()).await,
            None => text(
                StatusCode::NOT_FOUND,
                "404 page not found; there are /metrics, /health/ready, /debug/jobs/list, /debug/process/state, and, \
                 where instances are scaled, /debug/fleet/status and /debug/fleet/explain\n",
            ),
        },
    };
    if *method == Method::HEAD {
        return answer.map(|_| Full::default());
    }
    answer
}

async fn json(page: &dyn Page, query: &str) -> Answer {
    let (status, body) = match timeout(PAGE_LIMIT, page.answer(query)).await {
        Ok(JsonAnswer::Found(body)) => (StatusCode::OK, body),
        Ok(JsonAnswer::Missing(body)) => (StatusCode::NOT_FOUND, body),
        Ok(JsonAnswer::Wrong(why)) => return text(StatusCode::BAD_REQUEST, format!("{why}\n")),
        Ok(JsonAnswer::Failed(why)) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
        Err(_) => return text(StatusCode::SERVICE_UNAVAILABLE, "no answer in time; try again\n"),
    };
    let mut answer = text(status, body);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
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
