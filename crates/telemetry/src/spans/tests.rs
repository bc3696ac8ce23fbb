//! Tests of the export of spans, with collectors that record what they receive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::{Build, ProcessState};

const BUILD: Build = Build { name: "muster", version: "1", revision: "a", branch: "b", built_at: "c" };

/// A received request: its path, its header `authorization` and its message.
type ReceivedRequest = (String, Option<String>, ExportTraceServiceRequest);

/// A collector that records the requests that it receives.
struct Collector {
    url: String,
    requests: UnboundedReceiver<ReceivedRequest>,
}

impl Collector {
    /// Starts a collector that responds to its first requests with `statuses`, and to further ones with 200.
    async fn start(statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (received, requests) = unbounded_channel();
        let statuses = Arc::new(Mutex::new(VecDeque::from(statuses.to_vec())));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (received, statuses) = (received.clone(), Arc::clone(&statuses));
                let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let (received, statuses) = (received.clone(), Arc::clone(&statuses));
                    async move {
                        let path = request.uri().path().to_owned();
                        assert_eq!(request.headers()["content-type"], "application/x-protobuf");
                        let credentials = request.headers().get("authorization");
                        let credentials = credentials.map(|value| value.to_str().unwrap().to_owned());
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let _ = received.send((path, credentials, ExportTraceServiceRequest::decode(body).unwrap()));
                        let status = statuses.lock().pop_front().unwrap_or(200);
                        hyper::Response::builder().status(status).body(Full::<bytes::Bytes>::default())
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { url, requests }
    }

    async fn next(&mut self) -> ReceivedRequest {
        tokio::time::timeout(Duration::from_secs(20), self.requests.recv())
            .await
            .expect("the collector received no request within 20 s")
            .unwrap()
    }
}

fn telemetry(variables: &[(&str, &str)]) -> Arc<Telemetry> {
    let get = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let (settings, problems) = SpanSettings::read(get);
    assert_eq!(problems, Vec::<String>::new());
    Telemetry::new(&BUILD, &Arc::default(), settings)
}

fn step(name: &str, started_ms: u64, duration_ms: u64, outcome: SpanOutcome, steps: Vec<StepSpan>) -> StepSpan {
    StepSpan { name: name.to_owned(), outcome, started_ms, duration_ms, exit_code: None, attributes: Vec::new(), steps }
}

fn job(context: TraceContext) -> JobSpan {
    let inner = StepSpan {
        exit_code: Some(2),
        attributes: vec![("ci.step.cpu_ms", Attribute::Number(7_123))],
        ..step("compile", 1_300, 10_000, SpanOutcome::Failure, Vec::new())
    };
    JobSpan {
        context,
        started_ms: 1_000,
        ended_ms: 2_000,
        outcome: SpanOutcome::Failure,
        failure_reason: Some("script_failure".to_owned()),
        attributes: vec![
            ("ci.job.id", Attribute::Number(7)),
            ("ci.runner.executor", Attribute::Text("shell".to_owned())),
        ],
        stages: vec![
            step("get_sources", 1_100, 100, SpanOutcome::Success, Vec::new()),
            step("step_script", 1_200, 700, SpanOutcome::Failure, vec![inner]),
        ],
    }
}

fn spans(request: &ExportTraceServiceRequest) -> &[Span] {
    &request.resource_spans[0].scope_spans[0].spans
}

/// Waits until a scrape contains `line`.
async fn wait_for(telemetry: &Telemetry, line: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !telemetry.metrics.text(ProcessState::Running).contains(line) {
        assert!(Instant::now() < deadline, "no scrape contained `{line}`");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn job_is_exported_as_tree_of_spans() {
    let mut collector = Collector::start(&[]).await;
    let telemetry = telemetry(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment=test"),
    ]);
    let context = telemetry.tracer.context(&[b"https://host", b"7"], None).unwrap();
    telemetry.tracer.send(job(context), None);
    let (path, credentials, request) = collector.next().await;
    assert_eq!((path.as_str(), credentials.as_deref()), ("/v1/traces", Some("Bearer x")));
    let resource = format!("{:?}", request.resource_spans[0].resource);
    assert!(resource.contains("service.name") && resource.contains("deployment"), "{resource}");
    let spans = spans(&request);
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["job_execution", "get_sources", "step_script", "compile"]);
    assert!(spans.iter().all(|span| span.trace_id == spans[0].trace_id));
    assert_eq!(format!("00-{}-{}-01", hex(&spans[0].trace_id), hex(&spans[0].span_id)), context.traceparent());
    assert_eq!(spans[0].parent_span_id, Vec::<u8>::new());
    assert_eq!([&spans[1].parent_span_id, &spans[2].parent_span_id], [&spans[0].span_id, &spans[0].span_id]);
    assert_eq!(spans[3].parent_span_id, spans[2].span_id);
    // The clock of the step's machine is wrong, but the span stays within its stage.
    assert_eq!(spans[3].end_time_unix_nano, spans[2].end_time_unix_nano);
    let attributes = format!("{:?}", spans[3].attributes);
    assert!(attributes.contains("ci.step.cpu_ms") && attributes.contains("7123"), "{attributes}");
    let status = spans[0].status.as_ref().unwrap();
    assert_eq!((status.code, status.message.as_str()), (2, "script_failure"), "2 is OTLP's code for an error");
    telemetry.tracer.flush().await;
    wait_for(&telemetry, "muster_spans_total{result=\"exported\"} 4\n").await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn requested_destination_gets_no_configured_credentials() {
    let mut configured = Collector::start(&[]).await;
    let mut requested_collector = Collector::start(&[]).await;
    let telemetry = telemetry(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &configured.url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
    ]);
    assert!(!telemetry.tracer.context(&[b"7"], None).unwrap().sampled);
    let requested = RequestedTrace {
        trace: TraceId::parse("0af7651916cd43dd8448eb211c80319c").unwrap(),
        parent: SpanId::parse("b7ad6b7169203331").unwrap(),
        destinations: vec![Destination::from_job(&requested_collector.url).unwrap()],
    };
    let context = telemetry.tracer.context(&[b"7"], Some(&requested)).unwrap();
    telemetry.tracer.send(job(context), Some(&requested));
    let (_, requested_credentials, request) = requested_collector.next().await;
    let (_, configured_credentials, copy) = configured.next().await;
    assert_eq!((requested_credentials, configured_credentials.as_deref()), (None, Some("secret")));
    assert_eq!(request, copy);
    assert_eq!(hex(&spans(&request)[0].trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&spans(&request)[0].parent_span_id), "b7ad6b7169203331");
}

#[tokio::test]
async fn nothing_is_traced_if_unconfigured_or_disabled() {
    assert_eq!(telemetry(&[]).tracer.context(&[b"7"], None), None);
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_SDK_DISABLED", "true")];
    assert_eq!(telemetry(&variables).tracer.context(&[b"7"], None), None);
}

#[tokio::test]
async fn busy_collector_is_retried() {
    let mut collector = Collector::start(&[503, 429]).await;
    let telemetry = telemetry(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)]);
    let context = telemetry.tracer.context(&[b"7"], None).unwrap();
    telemetry.tracer.send(job(context), None);
    let (first, second, third) = (collector.next().await, collector.next().await, collector.next().await);
    assert!(first == second && second == third);
    wait_for(&telemetry, "muster_spans_total{result=\"exported\"} 4\n").await;
}

#[tokio::test]
async fn rejecting_collector_is_not_retried() {
    let mut collector = Collector::start(&[400]).await;
    let telemetry = telemetry(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)]);
    let context = telemetry.tracer.context(&[b"7"], None).unwrap();
    telemetry.tracer.send(job(context), None);
    collector.next().await;
    wait_for(&telemetry, "muster_spans_total{result=\"refused\"} 4\n").await;
    telemetry.tracer.flush().await;
    assert!(collector.requests.try_recv().is_err());
}

#[tokio::test]
async fn silent_collector_does_not_block_jobs() {
    // Accepts connections and never responds.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let telemetry = telemetry(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]);
    let context = telemetry.tracer.context(&[b"7"], None).unwrap();
    let started = Instant::now();
    for _ in 0..(2 * MAX_QUEUED_ITEMS) {
        telemetry.tracer.send(job(context), None);
    }
    assert!(started.elapsed() < Duration::from_secs(5), "queueing spans must not wait");
    let text = telemetry.metrics.text(ProcessState::Running);
    let dropped = text.lines().find_map(|line| line.strip_prefix("muster_spans_total{result=\"dropped\"} ")).unwrap();
    let expected = 4 * MAX_QUEUED_ITEMS;
    assert_eq!(dropped.parse::<usize>().unwrap(), expected, "four spans of each job that does not fit into the queue");
}
