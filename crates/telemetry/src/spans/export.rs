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

use super::Parcel;
use super::settings::{Destination, SpanSettings};
use super::tree::{Attribute, attribute};
use crate::Telemetry;

/// Name of the tracer (docs/spec/runner-config.md, section 1.11).
const SCOPE: &str = "gitlab-ci-runner";
/// Maximum number of queued jobs that are handled together, with one request per destination.
const BATCH_MAX: usize = 32;
/// Maximum number of attempts to send a request.
const TRIES_MAX: u32 = 3;
/// Delay before the second attempt. Doubles with each further one.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// Maximum delay between two attempts, including a delay that the collector requests.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a response that are read.
const ANSWER_MAX: usize = 64 * 1024;
/// Maximum number of destinations whose outage is remembered. Jobs can bring new destinations.
const DESTINATIONS_MAX: usize = 64;

/// Error of an attempt to send spans.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("no answer: {0}")]
    Unreachable(String),
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error("the HTTP client cannot be made: {0}")]
    Client(String),
}

/// Sends queued spans until the queue is closed and empty.
pub(super) async fn run(mut queue: mpsc::Receiver<Parcel>, settings: SpanSettings, telemetry: Weak<Telemetry>) {
    let mut exporter = Exporter { settings, telemetry, plain: None, secure: None, down: HashSet::new() };
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let mut by_destination: HashMap<Destination, Vec<Span>> = HashMap::new();
        for parcel in batch.drain(..) {
            by_destination.entry(parcel.destination).or_default().extend(parcel.job.spans());
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
        let tries = if self.down.contains(&destination) { 1 } else { TRIES_MAX };
        let sent = self.send_with_tries(&destination, body, tries).await;
        let refused = match &sent {
            Ok(refused) => usize::try_from(*refused).unwrap_or(0).min(count),
            Err(_) => count,
        };
        if let Some(telemetry) = self.telemetry.upgrade() {
            telemetry.metrics.spans("exported", count - refused);
            telemetry.metrics.spans("refused", refused);
        }
        let place = destination.url.origin().ascii_serialization();
        match sent {
            Ok(_) if self.down.remove(&destination) => {
                tracing::info!(collector = place, "the collector takes spans again");
            }
            Ok(_) => {}
            Err(error) => {
                if self.down.len() >= DESTINATIONS_MAX {
                    self.down.clear();
                }
                if self.down.insert(destination) {
                    tracing::warn!(collector = place, %error, "spans cannot be sent; jobs are not affected");
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
    async fn send_with_tries(&mut self, to: &Destination, body: Vec<u8>, tries: u32) -> Result<i64, ExportError> {
        let client = self.client(to)?;
        let body = bytes::Bytes::from(body);
        let mut wait = TRY_AGAIN;
        for tried in 1.. {
            let mut request = client.post(to.url.clone()).header(CONTENT_TYPE, "application/x-protobuf");
            for (name, value) in &to.headers {
                request = request.header(name, value);
            }
            let (error, asked) = match request.timeout(self.settings.timeout).body(body.clone()).send().await {
                Ok(answer) if answer.status().is_success() => return Ok(left_out(answer).await),
                Ok(answer) if may_heal(answer.status()) => {
                    let asked = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                    (ExportError::Status(answer.status()), asked.map(Duration::from_secs))
                }
                Ok(answer) => return Err(ExportError::Status(answer.status())),
                Err(error) => (ExportError::Unreachable(error_chain(&error.without_url())), None),
            };
            if tried >= tries {
                return Err(error);
            }
            let wanted = wait.mul_f64(rand::rng().random_range(0.5..1.0));
            tokio::time::sleep(wanted.max(asked.unwrap_or_default()).min(RETRY_AFTER_MAX)).await;
            wait *= 2;
        }
        Ok(0)
    }

    fn client(&mut self, to: &Destination) -> Result<reqwest::Client, ExportError> {
        let secure = to.url.scheme() == "https";
        let kept = if secure { &mut self.secure } else { &mut self.plain };
        if let Some(client) = kept {
            return Ok(client.clone());
        }
        let client = reqwest::Client::builder()
            // Headers can contain credentials, which must not be sent to another host.
            .redirect(reqwest::redirect::Policy::none())
            .tls_built_in_root_certs(secure)
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| ExportError::Client(error_chain(&error)))?;
        Ok(kept.insert(client).clone())
    }
}

/// Returns true for a status after which a request can be retried (OTLP, "Retryable Response Codes").
fn may_heal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// Returns the number of rejected spans that a successful response reports.
async fn left_out(mut answer: reqwest::Response) -> i64 {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_MAX {
            return 0;
        }
    }
    let answer = ExportTraceServiceResponse::decode(&*body).unwrap_or_default();
    answer.partial_success.map_or(0, |partial| partial.rejected_spans)
}
