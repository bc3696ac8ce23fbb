//! Reporter that prints a JUnit report: one test suite per pipeline, one test case per job.

use std::collections::HashMap;
use std::fmt::Write as _;

use muster_coordinator::views::{JobView, PipelineSummary};
use muster_job::{JobId, JobStatus};

use super::super::ui;
use super::report::{Reporter, RunInfo, RunResult, failure, job_time};

/// Maximum number of log lines of a job in the report.
const MAX_LOG_LINES: usize = 1000;

/// Collects logs, and prints the report at the end.
#[derive(Debug, Default)]
pub(super) struct Junit {
    logs: HashMap<JobId, Vec<String>>,
}

impl Reporter for Junit {
    fn started(&mut self, _run: &RunInfo<'_>) {}

    fn pipeline(&mut self, _pipeline: &PipelineSummary) {}

    fn job(&mut self, _job: &JobView) {}

    fn log(&mut self, job: &JobView, lines: &[String]) {
        let log = self.logs.entry(job.id).or_default();
        log.extend(lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()));
        log.drain(..log.len().saturating_sub(MAX_LOG_LINES));
    }

    fn warning(&mut self, text: &str) {
        ui::warning(text);
    }

    fn finished(&mut self, result: &RunResult<'_>) {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
        for pipeline in result.view.pipelines.values() {
            let jobs: Vec<_> = result.view.current_jobs().filter(|job| job.pipeline == pipeline.id).collect();
            let failed = jobs.iter().filter(|job| counts_as_failed(job)).count();
            let skipped = jobs.iter().filter(|job| is_skipped(job)).count();
            let name = pipeline.name.clone().unwrap_or_else(|| format!("pipeline {}", pipeline.id));
            let _ = writeln!(
                xml,
                "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\">",
                escaped(&name),
                jobs.len()
            );
            for job in jobs {
                self.write_case(&mut xml, job);
            }
            xml.push_str("  </testsuite>\n");
        }
        xml.push_str("</testsuites>\n");
        ui::out(&xml);
    }
}

impl Junit {
    fn write_case(&self, xml: &mut String, job: &JobView) {
        let time = job_time(job).unwrap_or_default().as_secs_f64();
        let (name, stage) = (escaped(&job.name), escaped(&job.stage));
        let _ = write!(xml, "    <testcase name=\"{name}\" classname=\"{stage}\" time=\"{time:.3}\">");
        if counts_as_failed(job) {
            let _ = write!(xml, "<failure message=\"{}\"/>", escaped(&failure(job).unwrap_or_default()));
        } else if is_skipped(job) {
            let _ = write!(xml, "<skipped message=\"{}\"/>", job.status);
        }
        if let Some(log) = self.logs.get(&job.id) {
            let _ = write!(xml, "<system-out>{}</system-out>", escaped(&log.join("\n")));
        }
        xml.push_str("</testcase>\n");
    }
}

fn counts_as_failed(job: &JobView) -> bool {
    job.status == JobStatus::Failed && !job.allow_failure
}

fn is_skipped(job: &JobView) -> bool {
    !matches!(job.status, JobStatus::Success | JobStatus::Failed)
}

/// Escapes text for XML, and removes characters that XML does not allow.
fn escaped(text: &str) -> String {
    let allowed = text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control());
    let allowed: String = allowed.filter(|c| !matches!(c, '\u{fffe}' | '\u{ffff}')).collect();
    allowed.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
