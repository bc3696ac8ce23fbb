//! `Run` request of a job, with its plan and steps.

use std::collections::HashMap;
use std::ffi::OsString;

use muster_agent_api::plan::{JobPlan, job_plan};
use muster_agent_api::step_runner::RunRequest;
use muster_builtins::{Context, Declared, registry};
use muster_steps::builtin::{Call, PlanError, Step};

pub(crate) struct ParsedRequest {
    pub(crate) plan: JobPlan,
    pub(crate) steps: Vec<Step<Context>>,
    pub(crate) declared: Declared,
    env: HashMap<String, String>,
}

impl ParsedRequest {
    /// Returns the environment variables of all processes, which override the agent's.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.env.iter().map(|(key, value)| (key.into(), value.into()))
    }

    /// Returns whether the request has a step file. Jobs with step files may share a project directory.
    pub(crate) fn is_step_file(&self) -> bool {
        matches!(self.steps.as_slice(), [Step { call: Call::StepFile(_), .. }])
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseError {
    #[error("invalid plan of the job: {0}")]
    Plan(#[from] serde_json::Error),
    #[error("{0:?} is not a valid project directory; use an absolute path")]
    ProjectDir(String),
    #[error("{0}")]
    Steps(#[from] PlanError),
}

pub(crate) fn parse(request: &RunRequest) -> Result<ParsedRequest, ParseError> {
    let build_dir = request.job.as_ref().map(|job| job.build_dir.as_str()).filter(|dir| !dir.is_empty());
    let work_dir = build_dir.unwrap_or(&request.work_dir);
    let mut plan = job_plan(&request.steps, work_dir)?;
    if !plan.project_dir.starts_with('/') {
        return Err(ParseError::ProjectDir(plan.project_dir));
    }
    if plan.bare {
        // Temporary files are beside the project directory.
        let parent = std::path::Path::new(&plan.project_dir).parent();
        plan.builds_dir = parent.unwrap_or(std::path::Path::new("/")).to_string_lossy().into_owned();
    }
    let declared = Declared::from_plan(&plan);
    let steps = registry().recording_calls(plan.record_calls).load(std::mem::take(&mut plan.steps))?;
    Ok(ParsedRequest { plan, steps, declared, env: request.env.clone() })
}
