//! The variables of a job's payload: layers in order of precedence, expanded by the coordinator.
//!
//! The rules are in docs/spec/pipeline-yaml.md, sections 4.1 and 4.2.
//!
//! Invariants: if several layers have a variable of the same name, the result has only the variable that takes precedence. Variables
//! that the runner sets itself (section 4.5, phase R) are only included if a user defined them.

mod environment;
mod forwarded;
mod predefined;

use muster_job::{RunnerId, Variable};
use muster_pipeline::context::Context;
use muster_pipeline::{expand, layers};

pub use forwarded::forwarded;
pub use predefined::RUNNER_OWNED;

use crate::assignment::JobAssignment;

/// Input for [`job_variables`].
#[derive(Debug, Clone, Copy)]
pub struct JobVariablesInput<'a> {
    /// The job, its project and its pipeline.
    pub assignment: JobAssignment<'a>,
    /// Runner that the job is assigned to.
    pub runner: RunnerFacts<'a>,
    /// Variables from the dotenv reports of the jobs whose artifacts the job gets, in the order of those jobs.
    pub dotenv: &'a [(String, String)],
    /// Variables that the user entered when they started the manual job.
    pub manual: &'a [Variable],
}

/// The runner that a job is assigned to.
#[derive(Debug, Clone, Copy)]
pub struct RunnerFacts<'a> {
    /// ID of the runner.
    pub id: RunnerId,
    /// Description of the runner.
    pub description: &'a str,
    /// Tags of the runner.
    pub tags: &'a [String],
}

/// Returns the variables of a job, lowest precedence first.
#[must_use]
pub fn job_variables(input: &JobVariablesInput<'_>) -> Vec<Variable> {
    let JobAssignment { job, context, .. } = input.assignment;
    let (about_user, predefined) = layers::split_user(&context.predefined);
    let environment = job.environment.as_ref();
    let scope = environment.map(|environment| environment.name.as_str());
    let facts = layers::JobFacts { name: &job.name, group_name: &job.group_name, stage: &job.stage, node: job.node };
    let mut variables = layers::merge([
        predefined::persisted(&input.assignment),
        layers::job_predefined(facts),
        predefined::ci_job_manual(job),
        environment.map(environment::predefined).unwrap_or_default(),
        predefined::without_runner_owned(predefined),
        predefined::runner(&input.runner),
        job.variables.clone(),
        about_user,
        input.dotenv.iter().map(|(key, value)| from_dotenv(key, value)).collect(),
        layers::project_variables(&context.project_variables, context.ref_protected, scope),
        context.pipeline_variables.clone(),
        input.manual.to_vec(),
    ]);
    expand::expand_all(&mut variables);
    variables
}

/// Returns the variables that the rules of a job can use. [`forwarded`] also uses them, to expand references.
#[must_use]
pub fn rule_variables(context: &Context, job: &muster_pipeline::model::Job) -> Vec<Variable> {
    let facts = layers::JobFacts { name: &job.name, group_name: &job.group_name, stage: &job.stage, node: job.node };
    let environment = job.environment.as_ref().map(|environment| environment.name.as_str());
    layers::rule_variables(context, Some(facts), &job.variables, environment)
}

/// Returns a variable of a dotenv report. Services do not get it, and it is not masked.
fn from_dotenv(key: &str, value: &str) -> Variable {
    Variable { public: false, ..Variable::public(key, value) }
}
