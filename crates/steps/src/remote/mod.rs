//! Steps in Git repositories and OCI registries: their references and the port that fetches them (docs/spec/steps.md,
//! sections 2.1 to 2.8).

mod parse;
mod source;

use std::path::PathBuf;

use async_trait::async_trait;

use crate::failure::PortError;
use crate::stop::StopToken;
pub use parse::{Location, ReferenceError, RemoteStep};
pub(crate) use parse::{default_files, split};
pub use source::Source;

/// Port that fetches steps from servers.
#[async_trait]
pub trait StepSource: Send + Sync {
    /// Fetches a source into a directory that only this job uses.
    ///
    /// # Errors
    /// [`PortError`].
    async fn fetch(&self, request: FetchRequest<'_>, stop: &StopToken) -> Result<FetchedSource, PortError>;
}

/// Function that returns the value of a variable by its name. In a job, it looks among the exports of earlier steps,
/// then among the variables of the job, then in the agent's environment.
pub type Lookup<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// Content to fetch.
#[derive(Clone, Copy)]
pub struct FetchRequest<'a> {
    /// Source of the content.
    pub source: &'a Source,
    /// Digest that the content must have. `None` accepts any content.
    pub pin: Option<&'a str>,
    /// Variables of the job, which can contain credentials.
    pub lookup: Lookup<'a>,
}

impl std::fmt::Debug for FetchRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FetchRequest").field("source", &self.source).field("pin", &self.pin).finish_non_exhaustive()
    }
}

/// Content of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedSource {
    /// Directory with the content.
    pub dir: PathBuf,
    /// Hash of the Git commit, or digest of the OCI index.
    pub digest: String,
    /// Notices of the publisher to the users of the step.
    pub notices: Vec<Notice>,
}

/// Notice of a publisher to the users of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Reason for the notice.
    pub kind: NoticeKind,
    /// Text of the publisher.
    pub message: String,
}

/// Reason for a [`Notice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeKind {
    /// The step works, but has a successor.
    Deprecated,
    /// The step has a defect.
    Defective,
}

impl NoticeKind {
    /// Returns the word for the reason.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Deprecated => "deprecated",
            Self::Defective => "defective",
        }
    }
}
