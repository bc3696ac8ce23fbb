//! Read-only access to past runs, for `muster ci show`.
//!
//! The coordinator of the run may still be running in another process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use muster_job::{JobId, PipelineId, RunnerId, Secret, Variable};
use muster_pipeline::layers;

use crate::artifacts;
use crate::assignment::JobAssignment;
use crate::blobs::directory::DirectoryBlobs;
use crate::blobs::{ArtifactName, Blobs};
use crate::error::{CoordinatorError, OpenError};
use crate::payload::Archive;
use crate::state::CoordinatorState;
use crate::store::Member;
use crate::store::sqlite::SqliteStore;
use crate::stored_pipelines::{StoredPipelines, not_found};
use crate::upstream::missing_archive;
use crate::variables::{JobVariablesInput, RunnerFacts, job_variables};
use crate::views::{ArtifactView, PipelineSummary, PipelineView};

/// The state directory of a run.
pub struct History {
    dir: PathBuf,
    stored_pipelines: StoredPipelines,
    blobs: Arc<dyn Blobs>,
}

/// Variables, archives and commit that a job got.
#[derive(Debug)]
pub struct JobSetup {
    /// Variables of the job, with an empty token, and without ID tokens and secrets.
    pub variables: Vec<Variable>,
    /// Archives that earlier jobs uploaded, and that still exist.
    pub archives: Vec<File>,
    /// One message for each output of an earlier job (archive or variables) that no longer exists.
    pub missing: Vec<String>,
    /// Commit that the job checked out.
    pub sha: String,
    /// Path of the project: `group/app`.
    pub project_path: String,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl History {
    /// Opens the state directory of a run without changing it.
    ///
    /// # Errors
    /// [`OpenError`], for example if `dir` contains no run.
    pub async fn open(dir: &Path) -> Result<Self, OpenError> {
        let store = SqliteStore::open_read_only(dir).await?;
        let blobs: Arc<dyn Blobs> = Arc::new(DirectoryBlobs::open_read_only(dir));
        let stored_pipelines = StoredPipelines::new(Arc::new(store), Arc::clone(&blobs));
        Ok(Self { dir: dir.to_owned(), stored_pipelines, blobs })
    }

    /// Returns at most `limit` pipelines after `after`, oldest first. `None` starts with the first pipeline.
    ///
    /// # Errors
    /// [`CoordinatorError::Store`].
    pub async fn pipelines(
        &self,
        after: Option<PipelineId>,
        limit: usize,
    ) -> Result<Vec<PipelineSummary>, CoordinatorError> {
        self.stored_pipelines.summaries(after.unwrap_or(PipelineId(i64::MIN)), limit).await
    }

    /// Returns a pipeline with its jobs.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`] or [`CoordinatorError::Store`].
    pub async fn pipeline(&self, pipeline: PipelineId) -> Result<PipelineView, CoordinatorError> {
        self.stored_pipelines.pipeline(pipeline).await
    }

    /// Returns the variables, the archives and the commit that a job got.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`] if the job does not exist, or another [`CoordinatorError`].
    pub async fn job_setup(&self, job: JobId) -> Result<JobSetup, CoordinatorError> {
        let job_not_found = || not_found(Member::Job(job));
        let mut state = self.stored_pipelines.hierarchy(Member::Job(job)).await?;
        let row = state.jobs.get(&job).cloned().ok_or_else(job_not_found)?;
        let upstream = self.stored_pipelines.upstream(&mut state, &row).await?;
        let pipeline = state.pipelines.get(&row.pipeline).ok_or_else(job_not_found)?;
        let context = state.contexts.get(&row.pipeline).ok_or_else(job_not_found)?;
        let compiled = pipeline.compiled.jobs.get(row.job_index).ok_or_else(job_not_found)?;
        let now = row.started_at.unwrap_or(pipeline.created_at);
        let runner = row.runner.and_then(|runner| state.registry.get(runner));
        let assignment = JobAssignment {
            job: compiled,
            job_id: job,
            pipeline_id: row.pipeline,
            pipeline_iid: row.pipeline.0,
            token: &Secret::default(),
            project: &pipeline.spec.project,
            context,
            git: &pipeline.spec.git,
            server_url: coordinator_url(context),
            now,
        };
        let variables = job_variables(&JobVariablesInput {
            assignment,
            runner: RunnerFacts {
                id: row.runner.unwrap_or(RunnerId(0)),
                description: runner.map_or("", |runner| &runner.settings.description),
                tags: runner.map_or(&[], |runner| &runner.settings.tags),
            },
            dotenv: &upstream.dotenv,
            manual: &row.detail.variables,
        });
        let (archives, deleted) = open_archives(&*self.blobs, &upstream.archives, &state).await?;
        Ok(JobSetup {
            variables,
            archives,
            missing: [upstream.missing, deleted].concat(),
            sha: pipeline.spec.git.sha.clone(),
            project_path: pipeline.spec.project.path.clone(),
        })
    }

    /// Returns at most 1 MiB of a job's trace, starting at `offset`. Empty at the end.
    ///
    /// # Errors
    /// [`CoordinatorError::Blob`].
    pub async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, CoordinatorError> {
        Ok(self.blobs.read_trace(job, offset).await?)
    }

    /// Opens a file that a job uploaded.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`] if the file was deleted, or [`CoordinatorError::Blob`].
    pub async fn open_artifact(&self, job: JobId, artifact: &ArtifactView) -> Result<File, CoordinatorError> {
        let (kind, filename) = (artifact.kind.clone(), artifact.filename.clone());
        self.stored_pipelines.open_artifact(&ArtifactName { job, kind, filename }).await
    }
}

/// Opens archives. Also returns a message for each archive that no longer exists.
async fn open_archives(
    blobs: &dyn Blobs,
    archives: &[Archive],
    state: &CoordinatorState,
) -> Result<(Vec<File>, Vec<String>), CoordinatorError> {
    let (mut opened, mut deleted) = (Vec::new(), Vec::new());
    for archive in archives {
        let row = state.artifact(archive.job, artifacts::ARCHIVE);
        let file = match row {
            Some(row) => blobs.open(&artifacts::name_of(row)).await?,
            None => None,
        };
        match file {
            Some(file) => opened.push(file),
            None => deleted.push(missing_archive(&archive.name)),
        }
    }
    Ok((opened, deleted))
}

fn coordinator_url(context: &muster_pipeline::context::Context) -> &str {
    let api = layers::value(&context.predefined, "CI_API_V4_URL").unwrap_or_default();
    api.strip_suffix("/api/v4").unwrap_or(api)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::memory::MemoryBlobs;
    use crate::clock::Timestamp;
    use crate::store::{ArtifactRow, Contents};

    /// The archive was deleted after its row was read.
    #[tokio::test]
    async fn deleted_archive_is_reported() {
        let row = ArtifactRow {
            job: JobId(7),
            kind: artifacts::ARCHIVE.to_owned(),
            format: "zip".to_owned(),
            filename: "artifacts.zip".to_owned(),
            size: 3,
            created_at: Timestamp::UNIX_EPOCH,
            expires_at: None,
            deleted: false,
        };
        let state = CoordinatorState::read_only(Contents { artifacts: vec![row], ..Contents::default() });
        let archive =
            Archive { job: JobId(7), name: "build".to_owned(), filename: "artifacts.zip".to_owned(), size: 3 };
        let (opened, deleted) = open_archives(&MemoryBlobs::default(), &[archive], &state).await.unwrap();
        assert!(opened.is_empty());
        assert_eq!(deleted, [missing_archive("build")]);
    }
}
