//! Converts a job's tree of stages and steps to spans.
//!
//! No state is kept while the job runs, so a restarted manager creates the same spans.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};

use super::context::{SpanId, TraceContext};

/// Name of a job's span (docs/spec/runner-config.md, section 1.11).
const JOB: &str = "job_execution";
/// Maximum number of spans per job. Further steps are omitted.
const MAX_SPANS: usize = 1000;
/// Maximum number of characters of a step's name. Authors choose these names.
const MAX_NAME_CHARS: usize = 128;
const NANOS_PER_MILLI: u64 = 1_000_000;

/// Value of an attribute. It must not contain secrets.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// Outcome of a job, stage or step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum SpanOutcome {
    Success,
    Failure,
    Canceled,
    Skipped,
}

impl SpanOutcome {
    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Canceled => "canceled",
            Self::Skipped => "skipped",
        }
    }
}

/// A stage or a step of a job that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSpan {
    /// Name of the stage, or the author's name of the step.
    pub name: String,
    /// Outcome.
    pub outcome: SpanOutcome,
    /// Start time, in milliseconds since 1970.
    pub started_ms: u64,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Exit status of the step's process. `None` means that the step ran no process, or that its process has no exit status.
    pub exit_code: Option<i32>,
    /// Further attributes, such as the resources that the step used.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Steps of the stage, or nested steps.
    pub steps: Vec<StepSpan>,
}

/// A job that has ended, with its stages.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpan {
    /// Position in the trace.
    pub context: TraceContext,
    /// Time at which the job was received, in milliseconds since 1970.
    pub started_ms: u64,
    /// Time at which the cleanup after the job was done, in milliseconds since 1970.
    pub ended_ms: u64,
    /// Outcome.
    pub outcome: SpanOutcome,
    /// Reported reason of a failure. `None` means that no failure was reported.
    pub failure_reason: Option<String>,
    /// Attributes of the job's span.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Stages of the job.
    pub stages: Vec<StepSpan>,
}

impl JobSpan {
    /// Returns the spans. The first is the job's span.
    ///
    /// Times of a child are limited to those of its parent, because the clocks of the manager and the instance can differ.
    pub(super) fn spans(&self) -> Vec<Span> {
        let TraceContext { trace, span, parent, .. } = self.context;
        let mut attributes: Vec<KeyValue> =
            self.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
        if let Some(reason) = &self.failure_reason {
            attributes.push(attribute("ci.job.failure_reason", &Attribute::Text(reason.clone())));
        }
        let (start, end) = (self.started_ms, self.ended_ms.max(self.started_ms));
        let mut spans = vec![Span {
            trace_id: trace.0.to_vec(),
            span_id: span.0.to_vec(),
            parent_span_id: parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
            name: JOB.to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: start.saturating_mul(NANOS_PER_MILLI),
            end_time_unix_nano: end.saturating_mul(NANOS_PER_MILLI),
            attributes,
            status: Some(status(self.outcome, self.failure_reason.as_deref().unwrap_or_default())),
            ..Span::default()
        }];
        for stage in &self.stages {
            self.add(&mut spans, span, (start, end), stage);
        }
        spans
    }

    fn add(&self, spans: &mut Vec<Span>, parent: SpanId, within: (u64, u64), step: &StepSpan) {
        if spans.len() >= MAX_SPANS {
            return;
        }
        let start = step.started_ms.clamp(within.0, within.1);
        let end = step.started_ms.saturating_add(step.duration_ms).clamp(start, within.1);
        // The ID depends on the position in the tree, so it is the same if the spans are created again.
        let id = SpanId::derived(&[&self.context.trace.0, &self.context.span.0, &spans.len().to_be_bytes()]);
        let mut attributes = vec![attribute("ci.step.status", &Attribute::Text(step.outcome.label().to_owned()))];
        if let Some(code) = step.exit_code {
            attributes.push(attribute("ci.step.exit_code", &Attribute::Number(code.into())));
        }
        attributes.extend(step.attributes.iter().map(|(name, value)| attribute(name, value)));
        spans.push(Span {
            trace_id: self.context.trace.0.to_vec(),
            span_id: id.0.to_vec(),
            parent_span_id: parent.0.to_vec(),
            name: step.name.chars().take(MAX_NAME_CHARS).collect(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: start.saturating_mul(NANOS_PER_MILLI),
            end_time_unix_nano: end.saturating_mul(NANOS_PER_MILLI),
            attributes,
            status: Some(status(step.outcome, "")),
            ..Span::default()
        });
        for inner in &step.steps {
            self.add(spans, id, (start, end), inner);
        }
    }
}

pub(super) fn attribute(name: &str, value: &Attribute) -> KeyValue {
    let value = match value {
        Attribute::Text(text) => Value::StringValue(text.clone()),
        Attribute::Number(number) => Value::IntValue(*number),
    };
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn status(outcome: SpanOutcome, message: &str) -> Status {
    let code = match outcome {
        SpanOutcome::Success => StatusCode::Ok,
        SpanOutcome::Failure | SpanOutcome::Canceled => StatusCode::Error,
        SpanOutcome::Skipped => StatusCode::Unset,
    };
    Status { code: code.into(), message: message.to_owned() }
}
