//! Prepares jobs for their assignment: checks the runner and builds the payload (docs/spec/runner-api.md, section 9.3, step 4).

use std::time::Duration;

use muster_job::{FailureReason, JobId, RunnerId, Secret};
use muster_pipeline::expand::{Unknown, expand_text};
use muster_pipeline::layers;
use muster_runner_api::payload::JobPayload;
use muster_runner_api::wire::VersionInfo;

use crate::assignment::JobAssignment;
use crate::jwt::Signer;
use crate::keys::Keys;
use crate::options::Options;
use crate::payload::{self, PayloadInput, QueueFacts};
use crate::upstream::{Obstacle, Undispatchable, UpstreamResolver};
use crate::variables::{JobVariablesInput, RunnerFacts, job_variables};

pub(crate) struct PreparedJob {
    pub(crate) payload: JobPayload,
    pub(crate) assignment: u32,
    pub(crate) timeout: Duration,
    /// URL of the environment, with variables expanded.
    pub(crate) environment_url: Option<String>,
}

pub(crate) struct JobPreparer<'a> {
    pub(crate) upstream: UpstreamResolver<'a>,
    pub(crate) options: &'a Options,
    pub(crate) keys: &'a Keys,
    pub(crate) signer: &'a Signer,
    pub(crate) queue_len: usize,
}

impl JobPreparer<'_> {
    pub(crate) fn prepare(
        &self,
        job: JobId,
        assignment: u32,
        runner: RunnerId,
        info: &VersionInfo,
    ) -> Result<PreparedJob, Obstacle> {
        let (state, now) = (self.upstream.state, self.upstream.now);
        let row = state.jobs.get(&job).ok_or_else(|| Undispatchable::missing("job"))?;
        let pipeline = state.pipelines.get(&row.pipeline).ok_or_else(|| Undispatchable::missing("pipeline"))?;
        let context =
            state.contexts.get(&row.pipeline).ok_or_else(|| Undispatchable::missing("context of the pipeline"))?;
        let compiled = pipeline
            .compiled
            .jobs
            .get(row.job_index)
            .ok_or_else(|| Undispatchable::missing("configuration of the job"))?;
        let runner = state.registry.get(runner).ok_or_else(|| Undispatchable::missing("runner"))?;
        let outputs = self.upstream.outputs_for(row)?;
        if let Some(feature) = payload::missing_feature(compiled, context.source, info) {
            let message = format!("the runner `{}` lacks the feature `{feature}`", runner.settings.description);
            return Err(Undispatchable { reason: FailureReason::RunnerUnsupported, message }.into());
        }
        let spec = &pipeline.spec;
        let token = Secret::new(self.keys.job_token(job, assignment));
        let job_assignment = JobAssignment {
            job: compiled,
            job_id: job,
            pipeline_id: row.pipeline,
            pipeline_iid: row.pipeline.0,
            token: &token,
            project: &spec.project,
            context,
            git: &spec.git,
            server_url: &self.options.server_url,
            now,
        };
        let variables = job_variables(&JobVariablesInput {
            assignment: job_assignment,
            runner: RunnerFacts {
                id: runner.id,
                description: &runner.settings.description,
                tags: &runner.settings.tags,
            },
            dotenv: &outputs.dotenv,
            manual: &row.detail.variables,
        });
        let own_timeout = compiled.timeout.unwrap_or(spec.project.job_timeout);
        let timeout = runner.settings.maximum_timeout.map_or(own_timeout, |maximum| own_timeout.min(maximum));
        let payload = payload::build(&PayloadInput {
            assignment: job_assignment,
            variables: &variables,
            dependencies: &outputs.archives,
            timeout,
            queue: QueueFacts {
                waited: Duration::try_from(now - row.queued_at.unwrap_or(now)).unwrap_or_default(),
                size: self.queue_len,
                depth: 0,
            },
            secrets: &spec.secrets,
            signer: self.signer,
            trace_interval: self.options.limits.own_trace_interval,
            local_repository: self.options.local_repository,
        })
        // Use a reason that is not retried by default, because a retry would fail in the same way.
        .map_err(|error| Undispatchable { reason: FailureReason::UnmetPrerequisites, message: error.to_string() })?;
        let url = compiled.environment.as_ref().and_then(|environment| environment.url.as_deref());
        let lookup = |name: &str| layers::value(&variables, name).map(ToOwned::to_owned);
        let environment_url = url.map(|url| expand_text(url, &lookup, Unknown::Keep));
        Ok(PreparedJob { payload, assignment, timeout, environment_url })
    }
}
