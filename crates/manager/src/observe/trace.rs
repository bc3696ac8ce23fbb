//! A job's position in a distributed trace, and its result tree as spans.

use muster_agent_api::result::{ResourceUsage, StepNode, StepStatus, StepUsage};
use muster_config::settings::RunnerSettings;
use muster_runner_api::payload::JobPayload;
use muster_telemetry::spans::{
    Attribute, Destination, RequestedTrace, SpanId, SpanOutcome, StepSpan, TraceContext, TraceId,
};

use super::Observer;

#[derive(Debug, Default)]
pub(super) struct JobTrace {
    pub(super) context: Option<TraceContext>,
    pub(super) requested: Option<RequestedTrace>,
}

impl JobTrace {
    pub(super) fn new(observer: &Observer, runner: &RunnerSettings, payload: &JobPayload) -> Self {
        let requested = requested(observer, payload);
        let id = payload.id.to_string();
        // The token makes the IDs of the trace unguessable. The IDs are digests, so they do not reveal the token.
        let identity = [runner.url.as_str().as_bytes(), id.as_bytes(), payload.token.as_bytes()];
        Self { context: observer.telemetry().tracer.context(&identity, requested.as_ref()), requested }
    }
}

fn requested(observer: &Observer, payload: &JobPayload) -> Option<RequestedTrace> {
    let tracing = payload.features.tracing.as_ref()?;
    let ids = TraceId::parse(&tracing.trace_id).zip(SpanId::parse(&tracing.span_parent_id));
    let Some((trace, parent)) = ids else {
        observer.warn_unsupported("invalid trace ID or span ID");
        return None;
    };
    let mut destinations = Vec::new();
    for endpoint in &tracing.otel_endpoints {
        match Destination::from_job(&endpoint.url) {
            Some(destination) if endpoint.auth.is_none() => destinations.push(destination),
            Some(_) => observer.warn_unsupported("authentication at an endpoint"),
            None => observer.warn_unsupported("an endpoint that is not http or https"),
        }
    }
    Some(RequestedTrace { trace, parent, destinations })
}

/// Returns the attributes without masked values.
pub(super) fn span_attributes(runner: &RunnerSettings, payload: &JobPayload) -> Vec<(&'static str, Attribute)> {
    let source = payload.variables.iter().rfind(|variable| variable.key == "CI_PIPELINE_SOURCE" && !variable.masked);
    let source = source.map(|variable| variable.value.clone()).unwrap_or_default();
    vec![
        ("ci.job.id", Attribute::Number(payload.id.0)),
        ("ci.project.id", Attribute::Number(payload.job_info.project_id)),
        ("ci.pipeline.id", Attribute::Number(payload.job_info.pipeline_id)),
        ("ci.pipeline.source", Attribute::Text(source)),
        ("ci.runner.id", Attribute::Number(runner.id)),
        ("ci.runner.executor", Attribute::Text(runner.executor.clone())),
    ]
}

/// Returns the span without messages, because only the job's log masks secrets.
pub(super) fn span(node: &StepNode) -> StepSpan {
    StepSpan {
        name: node.name.clone(),
        outcome: match node.status {
            StepStatus::Success => SpanOutcome::Success,
            StepStatus::Failure => SpanOutcome::Failure,
            StepStatus::Cancelled => SpanOutcome::Canceled,
            StepStatus::Skipped => SpanOutcome::Skipped,
        },
        started_ms: node.started_ms,
        duration_ms: node.duration_ms,
        exit_code: node.exit_code,
        attributes: step_usage_attributes(node.used.unwrap_or_default()),
        steps: node.steps.iter().map(span).collect(),
    }
}

pub(super) fn job_usage_attributes(used: &ResourceUsage) -> Vec<(&'static str, Attribute)> {
    numbers([
        ("ci.job.cpu_ms", used.cpu_ms),
        ("ci.job.memory_bytes", used.memory_bytes),
        ("ci.job.read_bytes", used.read_bytes),
        ("ci.job.written_bytes", used.written_bytes),
        ("ci.job.received_bytes", used.received_bytes),
        ("ci.job.sent_bytes", used.sent_bytes),
    ])
}

fn step_usage_attributes(used: StepUsage) -> Vec<(&'static str, Attribute)> {
    numbers([
        ("ci.step.cpu_ms", used.cpu_ms),
        ("ci.step.memory_bytes", used.memory_bytes),
        ("ci.step.read_bytes", used.read_bytes),
        ("ci.step.written_bytes", used.written_bytes),
        ("ci.step.received_bytes", used.received_bytes),
        ("ci.step.sent_bytes", used.sent_bytes),
    ])
}

fn numbers(values: [(&'static str, Option<u64>); 6]) -> Vec<(&'static str, Attribute)> {
    let number = |value: u64| Attribute::Number(i64::try_from(value).unwrap_or(i64::MAX));
    values.into_iter().filter_map(|(name, value)| Some((name, number(value?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_values_of_a_usage_are_attributes_of_the_spans() {
        let step = StepUsage {
            cpu_ms: Some(1),
            memory_bytes: Some(2),
            read_bytes: Some(3),
            written_bytes: Some(4),
            received_bytes: Some(5),
            sent_bytes: Some(u64::MAX),
        };
        let job = ResourceUsage { received_bytes: Some(7), sent_bytes: Some(8), ..ResourceUsage::default() };
        let text = |attributes: Vec<(&str, Attribute)>| {
            attributes.into_iter().map(|(name, value)| format!("{name} {value:?}")).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(
            text(step_usage_attributes(step)),
            "ci.step.cpu_ms Number(1)\nci.step.memory_bytes Number(2)\nci.step.read_bytes Number(3)\n\
             ci.step.written_bytes Number(4)\nci.step.received_bytes Number(5)\n\
             ci.step.sent_bytes Number(9223372036854775807)"
        );
        assert_eq!(text(job_usage_attributes(&job)), "ci.job.received_bytes Number(7)\nci.job.sent_bytes Number(8)");
    }
}
