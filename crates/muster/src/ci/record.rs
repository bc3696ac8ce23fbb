//! `run.json`: facts about a run that the coordinator's data does not contain.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use muster_job::PipelineId;
use muster_pipeline::context::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::CiError;

const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) version: u32,
    /// Start time in RFC 3339.
    pub(super) started_at: String,
    /// ID of the run's root pipeline.
    pub(super) pipeline: PipelineId,
    /// Event of the pipeline, as in `CI_PIPELINE_SOURCE`.
    pub(super) source: String,
    pub(super) ref_name: String,
    /// Commit that was checked out when the run started.
    pub(super) head_sha: String,
    /// Whether there were uncommitted changes.
    pub(super) dirty: bool,
    /// `passed`, `failed`, `canceled`, `blocked` or `error`. `None` while the run is active, or if it was killed.
    pub(super) outcome: Option<String>,
    /// Duration in milliseconds. `None` if the outcome is `None` or `error`.
    pub(super) duration_ms: Option<u64>,
}

impl RunRecord {
    pub(super) fn new(pipeline: PipelineId, context: &Context, head_sha: &str, dirty: bool) -> Self {
        let now = time::OffsetDateTime::now_utc();
        Self {
            version: VERSION,
            started_at: now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default(),
            pipeline,
            source: context.source.as_str().to_owned(),
            ref_name: context.ref_name.clone(),
            head_sha: head_sha.to_owned(),
            dirty,
            outcome: None,
            duration_ms: None,
        }
    }

    pub(super) fn write(&self, run: &Path) -> Result<(), CiError> {
        write_private(&run.join("run.json"), self)
    }

    /// Returns `None` without a readable record, for example because the run ended before it had a pipeline.
    pub(super) fn read(run: &Path) -> Option<Self> {
        read_json(&run.join("run.json")).ok()
    }
}

pub(super) fn write_private(path: &Path, value: &impl Serialize) -> Result<(), CiError> {
    let bytes = serde_json::to_vec(value).map_err(std::io::Error::other);
    let written = bytes.and_then(|bytes| write_private_bytes(path, &bytes));
    written.map_err(|source| CiError::State { path: path.to_owned(), source })
}

/// Writes a file atomically that only this user can read.
pub(super) fn write_private_bytes(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, CiError> {
    let failed = |source| CiError::Read { path: PathBuf::from(path), source };
    let bytes = std::fs::read(path).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| failed(std::io::Error::other(error)))
}
