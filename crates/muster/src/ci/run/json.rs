//! Reporter that prints one JSON object per line (`docs/reference/ci.md`). Fields may be added; existing ones must not
//! change.

use muster_coordinator::views::{JobView, PipelineSummary};
use muster_job::milliseconds;
use serde_json::{Value, json};

use super::super::error::ExitStatus;
use super::super::ui;
use super::report::{Reporter, RunInfo, RunResult, job_duration, usage_of};

pub(super) struct Json;

fn print(event: &Value) {
    ui::outln(&ui::json_line(event));
}

fn job_fields(job: &JobView) -> Value {
    let usage = usage_of(job);
    json!({
        "id": job.id,
        "pipeline": job.pipeline,
        "name": job.name,
        "stage": job.stage,
        "status": job.status,
        "attempt": job.attempt,
        "allow_failure": job.allow_failure,
        "exit_code": job.exit_code,
        "failure_reason": job.failure_reason,
        "message": job.message,
        "coverage": job.coverage,
        "duration_ms": job_duration(job).map(milliseconds),
        "cpu_ms": usage.as_ref().and_then(|usage| usage.cpu_ms),
        "memory_bytes": usage.as_ref().and_then(|usage| usage.memory_bytes),
    })
}

impl Reporter for Json {
    fn started(&mut self, run: &RunInfo<'_>) {
        print(&json!({
            "event": "run_started",
            "run": run.number,
            "name": run.pipeline.name,
            "ref": run.ref_name,
            "sha": run.sha,
            "dirty": run.dirty,
            "source": run.source,
            "jobs": run.pipeline.jobs.len(),
            "url": run.url,
        }));
    }

    fn pipeline(&mut self, pipeline: &PipelineSummary) {
        print(&json!({
            "event": "pipeline",
            "id": pipeline.id,
            "name": pipeline.name,
            "status": pipeline.status,
            "warnings": pipeline.warnings,
            "parent_pipeline": pipeline.parent.map(|parent| parent.pipeline),
            "parent_job": pipeline.parent.map(|parent| parent.bridge),
        }));
    }

    fn job(&mut self, job: &JobView) {
        let mut event = json!({ "event": "job" });
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), job_fields(job)) {
            event.extend(fields);
        }
        print(&event);
    }

    fn log(&mut self, job: &JobView, lines: &[String]) {
        for line in lines {
            let text = anstream::adapter::strip_str(line).to_string();
            print(&json!({ "event": "log", "job": job.id, "name": job.name, "line": text }));
        }
    }

    fn warning(&mut self, text: &str) {
        print(&json!({ "event": "warning", "message": text }));
    }

    fn finished(&mut self, result: &RunResult<'_>) {
        let status = match result.status {
            ExitStatus::Passed if result.view.is_blocked() => "blocked",
            ExitStatus::Passed => "passed",
            ExitStatus::Failed => "failed",
            ExitStatus::BadConfiguration => "error",
            ExitStatus::Canceled => "canceled",
        };
        print(&json!({
            "event": "run_finished",
            "status": status,
            "duration_ms": milliseconds(result.elapsed),
            "critical_path": result.critical_path,
            "jobs": result.view.current_jobs().map(|job| job_fields(job)).collect::<Vec<_>>(),
        }));
    }
}
