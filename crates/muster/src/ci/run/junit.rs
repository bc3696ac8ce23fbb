//! Reporter that prints a JUnit report: one test suite per pipeline, one test case per job.

use std::collections::HashMap;

use muster_coordinator::views::{JobView, PipelineSummary};
use muster_job::{JobId, JobStatus};

use super::super::ui;
use super::report::{Reporter, RunInfo, RunResult, failure_message, job_duration};
use crate::junit::{Case, Outcome, Suite};

const MAX_LOG_LINES: usize = 1000;

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
        log.extend(lines.iter().cloned());
        log.drain(..log.len().saturating_sub(MAX_LOG_LINES));
    }

    fn warning(&mut self, text: &str) {
        ui::warning(text);
    }

    fn finished(&mut self, result: &RunResult<'_>) {
        let suite = |pipeline: &PipelineSummary| Suite {
            name: pipeline.name.clone().unwrap_or_else(|| format!("pipeline {}", pipeline.id)),
            cases: result
                .view
                .current_jobs()
                .filter(|job| job.pipeline == pipeline.id)
                .map(|job| self.case(job))
                .collect(),
        };
        ui::out(&crate::junit::report(
            &result.view.pipelines.values().map(|pipeline| suite(pipeline)).collect::<Vec<_>>(),
        ));
    }
}

impl Junit {
    fn case(&self, job: &JobView) -> Case {
        let outcome = match job.status {
            JobStatus::Failed if !job.allow_failure => {
                Outcome::Failed { message: failure_message(job).unwrap_or_default(), details: String::new() }
            }
            // A job that may fail does not fail the report.
            JobStatus::Success | JobStatus::Failed => Outcome::Passed,
            status => Outcome::Skipped(status.to_string()),
        };
        Case {
            name: job.name.clone(),
            class: job.stage.clone(),
            time: job_duration(job).unwrap_or_default(),
            outcome,
            output: self.logs.get(&job.id).map(|lines| lines.join("\n")).unwrap_or_default(),
        }
    }
}
