//! A job's tree of stages and steps as spans.
//!
//! The tree is known when the job has ended: nothing is kept while it runs, and a manager that takes a job up again
//! makes the same spans.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};

use super::context::{SpanId, TraceContext};

/// The span of a job (runner-config 1.11).
const JOB: &str = "job_execution";
/// Spans of one job; steps beyond it are left out.
const SPANS_MAX: usize = 1000;
/// Characters of a name that an author chose.
const NAME_MAX: usize = 128;
const NANOS: u64 = 1_000_000;

/// An attribute's value. No secret may stand here.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// How a job, stage or step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Ending {
    Success,
    Failure,
    Cancelled,
    Skipped,
}

impl Ending {
    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
        }
    }
}

/// A stage or a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSpan {
    /// The name: GitLab's of a stage, the author's of a step.
    pub name: String,
    /// How it ended.
    pub ending: Ending,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// Milliseconds.
    pub duration_ms: u64,
    /// The exit status of the process, for a step that is one.
    pub exit_code: Option<i32>,
    /// What is inside it.
    pub steps: Vec<StepSpan>,
}

/// A job that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpan {
    /// Its place in the trace.
    pub context: TraceContext,
    /// When it was taken, in milliseconds since 1970.
    pub started_ms: u64,
    /// When it was cleaned up after, in milliseconds since 1970.
    pub ended_ms: u64,
    /// How it ended.
    pub ending: Ending,
    /// The reason that was reported, where it failed.
    pub failure_reason: Option<String>,
    /// What it was.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Its stages.
    pub stages: Vec<StepSpan>,
}

impl JobSpan {
    /// The spans, the job's first. A child is within its parent, whatever the clocks of two machines say.
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
            start_time_unix_nano: start.saturating_mul(NANOS),
            end_time_unix_nano: end.saturating_mul(NANOS),
            attributes,
            status: Some(status(self.ending, self.failure_reason.as_deref().unwrap_or_default())),
            ..Span::default()
        }];
        for stage in &self.stages {
            self.add(&mut spans, span, (start, end), stage);
        }
        spans
    }

    fn add(&self, spans: &mut Vec<Span>, parent: SpanId, within: (u64, u64), step: &StepSpan) {
        if spans.len() >= SPANS_MAX {
            return;
        }
        let start = step.started_ms.clamp(within.0, within.1);
        let end = step.started_ms.saturating_add(step.duration_ms).clamp(start, within.1);
        // The place in the order of the tree, which is the same each time.
        let id = SpanId::derived(&[&self.context.trace.0, &self.context.span.0, &spans.len().to_be_bytes()]);
        let mut attributes = vec![attribute("ci.step.status", &Attribute::Text(step.ending.label().to_owned()))];
        if let Some(code) = step.exit_code {
            attributes.push(attribute("ci.step.exit_code", &Attribute::Number(code.into())));
        }
        spans.push(Span {
            trace_id: self.context.trace.0.to_vec(),
            span_id: id.0.to_vec(),
            parent_span_id: parent.0.to_vec(),
            name: step.name.chars().take(NAME_MAX).collect(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: start.saturating_mul(NANOS),
            end_time_unix_nano: end.saturating_mul(NANOS),
            attributes,
            status: Some(status(step.ending, "")),
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

fn status(ending: Ending, message: &str) -> Status {
    let code = match ending {
        Ending::Success => StatusCode::Ok,
        Ending::Failure | Ending::Cancelled => StatusCode::Error,
        Ending::Skipped => StatusCode::Unset,
    };
    Status { code: code.into(), message: message.to_owned() }
}
