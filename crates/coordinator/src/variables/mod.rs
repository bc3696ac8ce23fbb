//! The variables of a job's payload: layers in order of precedence, then the server's expansion (pipeline-yaml 4.1, 4.2).
//!
//! Invariants: of equal names only the winner is in the result; nothing that the runner sets itself (phase R of
//! pipeline-yaml 4.5) is in it unless a user wrote it.

mod environment;
mod forwarded;
mod predefined;

use muster_job::{RunnerId, Variable};
use muster_pipeline::context::Context;
use muster_pipeline::{expand, layers};

pub use forwarded::forwarded;
pub use predefined::RUNNER_OWNED;

use crate::handout::Handout;

/// What the variables of a job are made from.
#[derive(Debug, Clone, Copy)]
pub struct JobVariablesInput<'a> {
    /// The job and what surrounds it.
    pub handout: Handout<'a>,
    /// Who takes it.
    pub runner: RunnerFacts<'a>,
    /// From the dotenv reports of the jobs whose artifacts it gets, in the order of those jobs.
    pub dotenv: &'a [(String, String)],
    /// Typed in by the person who started the manual job.
    pub manual: &'a [Variable],
}

/// The runner that takes a job.
#[derive(Debug, Clone, Copy)]
pub struct RunnerFacts<'a> {
    /// Its id.
    pub id: RunnerId,
    /// Its description.
    pub description: &'a str,
    /// Its tags.
    pub tags: &'a [String],
}

/// The variables of a job, lowest precedence first.
#[must_use]
pub fn job_variables(input: &JobVariablesInput<'_>) -> Vec<Variable> {
    let Handout { job, context, .. } = input.handout;
    let (user, predefined) = layers::split_user(&context.predefined);
    let environment = job.environment.as_ref();
    let scope = environment.map(|environment| environment.name.as_str());
    let facts = layers::JobFacts { name: &job.name, group_name: &job.group_name, stage: &job.stage, node: job.node };
    let mut variables = layers::merge([
        predefined::persisted(&input.handout),
        layers::job_predefined(facts),
        predefined::manual(job),
        environment.map(environment::predefined).unwrap_or_default(),
        predefined::without_runner_owned(predefined),
        predefined::runner(&input.runner),
        job.variables.clone(),
        user,
        input.dotenv.iter().map(|(key, value)| from_dotenv(key, value)).collect(),
        layers::project_variables(&context.project_variables, context.ref_protected, scope),
        context.pipeline_variables.clone(),
        input.manual.to_vec(),
    ]);
    expand::expand_all(&mut variables);
    variables
}

/// The variables that the server's own decisions about a job may use before the job has an id or a runner: expansion of
/// `environment`, `resource_group`, `tags`, `trigger` and `needs` (pipeline-yaml 4.2), and the rules of a child pipeline.
#[must_use]
pub fn rule_variables(context: &Context, job: &muster_pipeline::model::Job) -> Vec<Variable> {
    let facts = layers::JobFacts { name: &job.name, group_name: &job.group_name, stage: &job.stage, node: job.node };
    let environment = job.environment.as_ref().map(|environment| environment.name.as_str());
    layers::rule_variables(context, Some(facts), &job.variables, environment)
}

/// A value from a job is not shown to services, and is no secret either.
fn from_dotenv(key: &str, value: &str) -> Variable {
    Variable { public: false, ..Variable::public(key, value) }
}
