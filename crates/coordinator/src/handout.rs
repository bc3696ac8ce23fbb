//! A job about to be handed to a manager, and all that surrounds it: what variables and payload are made from.

use muster_job::{JobId, PipelineId, Secret};
use muster_pipeline::context::{Context, PipelineSource};
use muster_pipeline::model::Job;

use crate::clock::Timestamp;
use crate::facts::{GitFacts, ProjectFacts};

/// A job about to be handed to a manager.
#[derive(Debug, Clone, Copy)]
pub struct Handout<'a> {
    /// The job, as it was compiled.
    pub job: &'a Job,
    /// Its id.
    pub job_id: JobId,
    /// The pipeline's id.
    pub pipeline_id: PipelineId,
    /// The pipeline's number in its project.
    pub pipeline_iid: i64,
    /// The job's token.
    pub token: &'a Secret,
    /// The project.
    pub project: &'a ProjectFacts,
    /// What the pipeline was compiled for.
    pub context: &'a Context,
    /// The commit.
    pub git: &'a GitFacts,
    /// The base URL of this coordinator, as jobs see it: `http://127.0.0.1:1234`.
    pub server_url: &'a str,
    /// Now.
    pub now: Timestamp,
}

impl Handout<'_> {
    /// The clone URL with the job's token in it, where the transport takes one.
    pub(crate) fn repository_url(&self) -> String {
        let url = &self.git.repo_url;
        for scheme in ["http://", "https://"] {
            if let Some(rest) = url.strip_prefix(scheme) {
                return format!("{scheme}gitlab-ci-token:{}@{rest}", self.token.expose());
            }
        }
        url.clone()
    }

    /// Whether the pipeline is for a merge request: its ref is neither branch nor tag.
    pub(crate) fn is_merge_request(&self) -> bool {
        self.context.source == PipelineSource::MergeRequestEvent
    }
}
