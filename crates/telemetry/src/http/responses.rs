//! Responses of the server's paths.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode, Uri};
use tokio::time::timeout;

use super::endpoint::{JsonEndpoint, JsonResponse};
use crate::Telemetry;
use crate::metrics;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Timeout of an endpoint that another crate handles.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);
const LIST_VERSION: HeaderName = HeaderName::from_static("x-list-version");

const PROFILES_UNAVAILABLE: &str = "Profiles of the Go runtime are not available, because this program is not written in Go.\n\
    For CPU time use `perf record -g -p <pid>`; SIGUSR1 writes the state of each thread to the log at level debug.\n";

type TextResponse = Response<Full<Bytes>>;

/// Returns the response to a request. The body of the request is not read.
pub(super) async fn respond(method: &Method, uri: &Uri, telemetry: &Telemetry) -> TextResponse {
    let endpoint = telemetry.endpoints.get(uri.path());
    let response = match uri.path() {
        "/metrics" => exposition(method, telemetry),
        "/debug/jobs/list" => {
            let mut response = text(StatusCode::OK, telemetry.metrics.list_jobs());
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            response.headers_mut().insert(LIST_VERSION, HeaderValue::from_static("2"));
            response
        }
        "/debug/process/state" => text(StatusCode::OK, telemetry.lifecycle.state().label()),
        // gitlab-runner responds with 503 only because of `boot_verify`, which Muster does not support.
        "/health/ready" => text(StatusCode::OK, "ready"),
        path if path == "/debug/pprof" || path.starts_with("/debug/pprof/") => {
            text(StatusCode::NOT_IMPLEMENTED, PROFILES_UNAVAILABLE)
        }
        _ => match endpoint {
            Some(endpoint) => json(&*endpoint, uri.query().unwrap_or_default()).await,
            None => text(
                StatusCode::NOT_FOUND,
                "404 page not found; available are /metrics, /health/ready, /debug/jobs/list, /debug/process/state, and \
                 for autoscaled runners /debug/fleet/status and /debug/fleet/explain\n",
            ),
        },
    };
    if *method == Method::HEAD {
        return response.map(|_| Full::default());
    }
    response
}

async fn json(endpoint: &dyn JsonEndpoint, query: &str) -> TextResponse {
    let (status, body) = match timeout(ENDPOINT_TIMEOUT, endpoint.respond(query)).await {
        Ok(JsonResponse::Ok(body)) => (StatusCode::OK, body),
        Ok(JsonResponse::NotFound(body)) => (StatusCode::NOT_FOUND, body),
        Ok(JsonResponse::BadRequest(message)) => return text(StatusCode::BAD_REQUEST, format!("{message}\n")),
        Ok(JsonResponse::Error(message)) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{message}\n")),
        Err(_) => return text(StatusCode::SERVICE_UNAVAILABLE, "the request timed out; try again\n"),
    };
    let mut response = text(status, body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

fn exposition(method: &Method, telemetry: &Telemetry) -> TextResponse {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let mut response = text(StatusCode::OK, telemetry.metrics.text(telemetry.lifecycle.state()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> TextResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response
}
