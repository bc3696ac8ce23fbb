//! Spans of jobs, as an OpenTelemetry collector receives them.

use std::collections::HashMap;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use muster_job::{JobId, JobStatus};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::observe::{WAITING_SCRIPT, metrics_address, push, push_with, scrape_until, wait_for_log};
use super::support::Harness;

struct Collector {
    url: String,
    requests: UnboundedReceiver<ExportTraceServiceRequest>,
    _serving: JoinSet<()>,
}

impl Collector {
    async fn start() -> Self {
        async fn take(State(requests): State<UnboundedSender<ExportTraceServiceRequest>>, body: Bytes) {
            requests.send(ExportTraceServiceRequest::decode(body).unwrap()).unwrap();
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = unbounded_channel();
        let routes = Router::new().route("/v1/traces", post(take)).with_state(sender);
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, requests, _serving: serving }
    }

    async fn spans(&mut self) -> (Vec<Span>, String) {
        let request = tokio::time::timeout(Duration::from_secs(20), self.requests.recv())
            .await
            .expect("no spans arrived")
            .unwrap();
        let resource = &request.resource_spans[0];
        let service = text(&resource.resource.as_ref().unwrap().attributes[0].value.as_ref().unwrap().value);
        (resource.scope_spans[0].spans.clone(), service)
    }
}

fn text(value: &Option<Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn attributes(span: &Span) -> HashMap<&str, String> {
    span.attributes.iter().map(|pair| (pair.key.as_str(), text(&pair.value.as_ref().unwrap().value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that each span except the first lies within its parent, which must be in `spans`.
fn check_tree(spans: &[Span]) {
    for span in &spans[1..] {
        let parent = spans.iter().find(|other| other.span_id == span.parent_span_id).expect("a span has no parent");
        assert_eq!(span.trace_id, parent.trace_id);
        assert!(
            span.start_time_unix_nano >= parent.start_time_unix_nano,
            "{} must not start before its parent",
            span.name
        );
        assert!(span.end_time_unix_nano <= parent.end_time_unix_nano, "{} must not end after its parent", span.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_is_one_trace_that_its_script_can_join() {
    let harness = Harness::start().await;
    let mut collector = Collector::start().await;
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str()), ("OTEL_SERVICE_NAME", "test-service")];
    let (_manager, _) = harness.manager_logged(&[], &variables);
    push(&harness, 7, "echo \"parent is $TRACEPARENT\"; exit 3", &json!({}));
    let job = harness.coordinator.wait_for_end(JobId(7)).await;
    let (spans, service) = collector.spans().await;
    assert_eq!(service, "test-service");
    check_tree(&spans);
    let root = &spans[0];
    assert_eq!((root.name.as_str(), root.parent_span_id.len()), ("job_execution", 0));
    let parent = format!("parent is 00-{}-{}-01\n", hex(&root.trace_id), hex(&root.span_id));
    assert!(job.text().contains(&parent), "`{parent}` is missing in:\n{}", job.text());
    let of_root = |span: &&Span| span.parent_span_id == root.span_id;
    let stages: Vec<_> = spans.iter().filter(of_root).map(|span| span.name.as_str()).collect();
    let position = |name: &str| {
        stages.iter().position(|stage| *stage == name).unwrap_or_else(|| panic!("{name} is missing in {stages:?}"))
    };
    let order = ["retrieval", "pre_checks", "prepare_executor", "get_sources", "step_script", "report", "cleanup"];
    assert!(order.map(position).is_sorted(), "{stages:?}");
    // The manager adds the stage `health` to the stages of the agent.
    assert!((position("prepare_executor")..position("report")).contains(&position("health")), "{stages:?}");
    let root_attributes = attributes(root);
    for used in ["ci.job.cpu_ms", "ci.job.memory_bytes", "ci.job.read_bytes", "ci.job.written_bytes"] {
        assert!(root_attributes[used].parse::<u64>().is_ok(), "{used} is {}", root_attributes[used]);
    }
    // The executor `shell` uses the network of the machine, whose traffic is not the job's.
    assert!(!root_attributes.contains_key("ci.job.received_bytes"), "{root_attributes:?}");
    let script = attributes(spans.iter().find(|span| span.name == "step_script").unwrap());
    for used in ["ci.step.cpu_ms", "ci.step.memory_bytes", "ci.step.read_bytes", "ci.step.written_bytes"] {
        assert!(script[used].parse::<u64>().is_ok(), "{used} is {}", script[used]);
    }
    assert!(!script.contains_key("ci.step.received_bytes"), "{script:?}");
    for (name, expected) in [
        ("ci.job.id", "7"),
        ("ci.project.id", "5"),
        ("ci.pipeline.id", "9"),
        ("ci.pipeline.source", "push"),
        ("ci.runner.executor", "shell"),
        ("ci.job.status", "failed"),
        ("ci.job.failure_reason", "script_failure"),
    ] {
        assert_eq!(root_attributes[name], expected, "{name}");
    }
    assert!(!format!("{spans:?}").contains("secret"), "{spans:?}");
}

/// Requirement R200.
#[tokio::test(flavor = "multi_thread")]
async fn each_job_stage_has_a_span_and_a_duration() {
    let stages =
        ["pre_checks", "retrieval", "restore_cache", "prepare_executor", "step_script", "health", "report", "cleanup"];
    let harness = Harness::start().await;
    let mut collector = Collector::start().await;
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str())];
    let (_manager, log) = harness.manager_logged(&["--listen-address", "127.0.0.1:0"], &variables);
    let address = metrics_address(&log).await;
    let cache =
        json!([{ "key": "k", "untracked": false, "policy": "pull-push", "paths": ["kept"], "when": "on_success" }]);
    push_with(&harness, 7, "mkdir -p kept; date > kept/file", &json!({}), &json!({ "cache": cache }));
    let job = harness.coordinator.wait_for_end(JobId(7)).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    let (spans, _) = collector.spans().await;
    for stage in stages {
        let of_stage: Vec<_> = spans.iter().filter(|span| span.name == stage).collect();
        assert_eq!(of_stage.len(), 1, "spans of {stage}");
        assert_eq!(of_stage[0].parent_span_id, spans[0].span_id, "the parent of {stage} must be the job");
        let series = format!("muster_job_stage_seconds_count{{stage=\"{stage}\"}}");
        scrape_until(&address, &series, "1").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_job_remains_one_trace() {
    let harness = Harness::start().await;
    let mut collector = Collector::start().await;
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str())];
    push(&harness, 1, &format!("echo \"parent is $TRACEPARENT\"; {WAITING_SCRIPT}"), &json!({}));
    let (manager, _) = harness.manager_logged(&[], &variables);
    harness.coordinator.wait_for(JobId(1), |job| job.text().contains("begun\n")).await;
    manager.kill().await;
    let (_manager, _) = harness.manager_logged(&[], &variables);
    std::fs::write(harness.path("go"), "").unwrap();
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    let (spans, _) = collector.spans().await;
    check_tree(&spans);
    let parent = format!("parent is 00-{}-{}-01\n", hex(&spans[0].trace_id), hex(&spans[0].span_id));
    assert!(job.text().contains(&parent), "`{parent}` is missing in:\n{}", job.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_spans_are_children_of_the_servers_span() {
    let harness = Harness::start().await;
    let mut collector = Collector::start().await;
    let tracing = json!({ "tracing": {
        "trace_id": "0af7651916cd43dd8448eb211c80319c", "span_parent_id": "b7ad6b7169203331",
        "otel_endpoints": [{ "url": format!("{}/v1/traces", collector.url) }]
    }});
    let (_manager, _) = harness.manager_logged(&[], &[]);
    push(&harness, 7, "true", &tracing);
    let (spans, service) = collector.spans().await;
    check_tree(&spans);
    assert_eq!(service, "runner");
    assert_eq!(hex(&spans[0].trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&spans[0].parent_span_id), "b7ad6b7169203331");
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_collector_logs_one_warning() {
    let harness = Harness::start().await;
    let unused_listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", unused_listener.local_addr().unwrap());
    drop(unused_listener);
    let (manager, log) = harness.manager_logged(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]);
    for id in 1..=3 {
        push(&harness, id, "true", &json!({}));
        assert_eq!(harness.coordinator.wait_for_end(JobId(id)).await.status, JobStatus::Success);
    }
    wait_for_log(&log, "failed to export spans").await;
    manager.terminate();
    let mut manager = manager;
    assert!(manager.wait_for_exit(Duration::from_secs(20)).await.success());
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("failed to export spans").count(), 1, "{text}");
}
