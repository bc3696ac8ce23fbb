//! Input for the variables and the payload of a job.

use muster_job::{JobId, PipelineId, Secret};
use muster_pipeline::context::{Context, PipelineSource};
use muster_pipeline::model::Job;

use crate::clock::Timestamp;
use crate::facts::{GitFacts, ProjectFacts};

/// A job that is being assigned to a runner manager.
#[derive(Debug, Clone, Copy)]
pub struct JobAssignment<'a> {
    /// The compiled job.
    pub job: &'a Job,
    /// ID of the job.
    pub job_id: JobId,
    /// ID of the pipeline.
    pub pipeline_id: PipelineId,
    /// Number of the pipeline within its project.
    pub pipeline_iid: i64,
    /// Token of the job.
    pub token: &'a Secret,
    /// Project of the pipeline.
    pub project: &'a ProjectFacts,
    /// Context that the pipeline was compiled for.
    pub context: &'a Context,
    /// Commit of the pipeline.
    pub git: &'a GitFacts,
    /// Base URL of this coordinator as seen by jobs: `http://127.0.0.1:1234`.
    pub server_url: &'a str,
    /// Current time.
    pub now: Timestamp,
}

impl JobAssignment<'_> {
    /// Returns the clone URL. An HTTP URL contains the job's token.
    pub(crate) fn repository_url(&self) -> String {
        let url = &self.git.repo_url;
        for scheme in ["http://", "https://"] {
            if let Some(rest) = url.strip_prefix(scheme) {
                return format!("{scheme}gitlab-ci-token:{}@{rest}", self.token.expose());
            }
        }
        url.clone()
    }

    /// Returns whether the pipeline is for a merge request, whose ref is neither a branch nor a tag.
    pub(crate) fn is_merge_request(&self) -> bool {
        self.context.source == PipelineSource::MergeRequestEvent
    }
}
