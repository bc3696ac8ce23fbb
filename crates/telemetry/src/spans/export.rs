//! The task that sends spans to collectors.

use std::collections::{HashMap, HashSet};
use std::sync::Weak;
use std::time::Duration;

use muster_job::error_chain;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use rand::Rng as _;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use tokio::sync::mpsc;

use super::ExportItem;
use super::settings::{Destination, SpanSettings};
use super::tree::{Attribute, attribute};
use crate::Telemetry;

/// Name of the tracer (docs/spec/runner-config.md, section 1.11).
const SCOPE: &str = "gitlab-ci-runner";
/// Maximum number of queued items that are handled together, with one request per destination.
const MAX_BATCH_ITEMS: usize = 32;
/// Maximum number of attempts to send a request.
const MAX_ATTEMPTS: u32 = 3;
/// Delay before the second attempt. It doubles with each further attempt, and jitter reduces it by up to half.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum delay between two attempts, including a delay that the collector requests.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes. In a longer response, rejected spans are not counted.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Maximum number of destinations whose outage is remembered. Each job can name further destinations.
const MAX_DESTINATIONS: usize = 64;

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("failed to send the request")]
    Request(#[source] reqwest::Error),
    #[error("the collector responded with status {0}")]
    Status(StatusCode),
    #[error("failed to create an HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Sends queued spans until the queue is closed and empty.
pub(super) async fn run(mut queue: mpsc::Receiver<ExportItem>, settings: SpanSettings, telemetry: Weak<Telemetry>) {
    let mut exporter = Exporter { settings, telemetry, plain: None, secure: None, down: HashSet::new() };
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, MAX_BATCH_ITEMS).await > 0 {
        let mut by_destination: HashMap<Destination, Vec<Span>> = HashMap::new();
        for item in batch.drain(..) {
            by_destination.entry(item.destination).or_default().extend(item.job.spans());
        }
        for (destination, spans) in by_destination {
            exporter.export(destination, spans).await;
        }
    }
}

struct Exporter {
    settings: SpanSettings,
    telemetry: Weak<Telemetry>,
    /// Client for http. It does not load the system's certificates, which takes time and memory.
    plain: Option<reqwest::Client>,
    secure: Option<reqwest::Client>,
    /// Destinations whose outage was logged.
    down: HashSet<Destination>,
}

impl Exporter {
    async fn export(&mut self, destination: Destination, spans: Vec<Span>) {
        let count = spans.len();
        let body = self.request(spans).encode_to_vec();
        // Do not retry if the destination was down the last time.
        let attempts = if self.down.contains(&destination) { 1 } else { MAX_ATTEMPTS };
        let sent = self.send_with_retries(&destination, body, attempts).await;
        let rejected = match &sent {
            Ok(rejected) => usize::try_from(*rejected).unwrap_or(0).min(count),
            Err(_) => count,
        };
        if let Some(telemetry) = self.telemetry.upgrade() {
            telemetry.metrics.record_spans("exported", count - rejected);
            telemetry.metrics.record_spans("refused", rejected);
        }
        let collector = destination.url.origin().ascii_serialization();
        match sent {
            Ok(_) if self.down.remove(&destination) => {
                tracing::info!(collector, "collector accepts spans again");
            }
            Ok(_) => {}
            Err(error) => {
                if self.down.len() >= MAX_DESTINATIONS {
                    self.down.clear();
                }
                if self.down.insert(destination) {
                    let error = error_chain(&error);
                    tracing::warn!(collector, error, "failed to export spans; jobs are not affected");
                }
            }
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let attributes = self.settings.resource.iter();
        let attributes = attributes.map(|(name, value)| attribute(name, &Attribute::Text(value.clone()))).collect();
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let resource = Some(Resource { attributes, ..Resource::default() });
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }],
        }
    }

    /// Sends a request, with retries. Returns the number of spans that the collector rejected.
    async fn send_with_retries(&mut self, to: &Destination, body: Vec<u8>, attempts: u32) -> Result<i64, ExportError> {
        let client = self.client(to)?;
        let body = bytes::Bytes::from(body);
        let mut delay = RETRY_DELAY;
        for attempt in 1.. {
            let mut request = client.post(to.url.clone()).header(CONTENT_TYPE, "application/x-protobuf");
            for (name, value) in &to.headers {
                request = request.header(name, value);
            }
            let (error, requested) = match request.timeout(self.settings.timeout).body(body.clone()).send().await {
                Ok(response) if response.status().is_success() => return Ok(rejected_spans(response).await),
                Ok(response) if is_retryable(response.status()) => {
                    let requested =
                        response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                    (ExportError::Status(response.status()), requested.map(Duration::from_secs))
                }
                Ok(response) => return Err(ExportError::Status(response.status())),
                Err(error) => (ExportError::Request(error.without_url()), None),
            };
            if attempt >= attempts {
                return Err(error);
            }
            let jittered = delay.mul_f64(rand::rng().random_range(0.5..1.0));
            tokio::time::sleep(jittered.max(requested.unwrap_or_default()).min(MAX_RETRY_DELAY)).await;
            delay *= 2;
        }
        Ok(0)
    }

    fn client(&mut self, to: &Destination) -> Result<reqwest::Client, ExportError> {
        let secure = to.url.scheme() == "https";
        let cached = if secure { &mut self.secure } else { &mut self.plain };
        if let Some(client) = cached {
            return Ok(client.clone());
        }
        let client = reqwest::Client::builder()
            .http1_only()
            // Headers can contain credentials, which must not be sent to another host.
            .redirect(reqwest::redirect::Policy::none())
            .tls_built_in_root_certs(secure)
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(ExportError::Client)?;
        Ok(cached.insert(client).clone())
    }
}

/// Returns true for a status after which a request can be retried (OTLP, "Retryable Response Codes").
fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// Returns the number of rejected spans that a successful response reports.
async fn rejected_spans(mut response: reqwest::Response) -> i64 {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_RESPONSE_BYTES {
            return 0;
        }
    }
    let response = ExportTraceServiceResponse::decode(&*body).unwrap_or_default();
    response.partial_success.map_or(0, |partial| partial.rejected_spans)
}
