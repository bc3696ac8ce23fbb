//! The task that sends spans.

use std::collections::{HashMap, HashSet};
use std::sync::Weak;
use std::time::Duration;

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
use crate::logs::chain;

/// The name of the tracer (runner-config 1.11).
const SCOPE: &str = "gitlab-ci-runner";
/// Jobs whose spans are sent with one request.
const BATCH_MAX: usize = 32;
/// Tries of one request.
const TRIES_MAX: u32 = 3;
/// Before the second try; doubled before each further one.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// The longest wait between two tries that a collector can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 64 * 1024;
/// Destinations that came with jobs and whose outage is remembered.
const DESTINATIONS_MAX: usize = 64;

/// Why spans were not sent.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("no answer: {0}")]
    Unreachable(String),
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error("the HTTP client cannot be made: {0}")]
    Client(String),
}

/// Sends what is queued until the queue is closed and empty.
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
    /// For http: without the system's certificates, which take time and memory to read.
    plain: Option<reqwest::Client>,
    secure: Option<reqwest::Client>,
    /// Destinations whose outage was told.
    down: HashSet<Destination>,
}

impl Exporter {
    async fn export(&mut self, destination: Destination, spans: Vec<Span>) {
        let count = spans.len();
        let body = self.request(spans).encode_to_vec();
        // Nobody tries hard for one that was down just now.
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

    /// Answers how many spans the collector left out.
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
                Err(error) => (ExportError::Unreachable(chain(&error.without_url())), None),
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
            // Credentials in headers must not follow to another host.
            .redirect(reqwest::redirect::Policy::none())
            .tls_built_in_root_certs(secure)
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| ExportError::Client(chain(&error)))?;
        Ok(kept.insert(client).clone())
    }
}

/// The statuses after which the same request may be taken (OTLP, "Retryable Response Codes").
fn may_heal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// How many spans the collector says that it left out.
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
