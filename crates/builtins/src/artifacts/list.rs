//! Lists the files of a job's artifacts for steps that the runner's operator configured, and adds to the job's archives
//! the paths that these steps name.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::{ArtifactsList, ArtifactsUpload};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use crate::blocking::blocking;
use crate::context::Context;
use crate::extraction::Extraction;
use crate::files::select::{FileSelection, select};
use crate::private_file;
use crate::transfer::{MessageLevel, TransferContext};
use crate::variables::JobVariable;

const LIST_FILE: &str = "artifact-files";

const LIST_VARIABLE: &str = "MUSTER_ARTIFACT_FILES";

/// Writes the list of the artifacts' regular files: one path per line, relative to the project directory.
pub(super) async fn list(context: &Arc<Context>, list: &ArtifactsList, stop: &StopToken) -> Result<(), Failure> {
    let path = context.temp_dir.join(LIST_FILE);
    let set_variable = |value: String| {
        context.variables.add([JobVariable { key: LIST_VARIABLE.to_owned(), value, file: false, masked: false }]);
    };
    // A later step of the operator may run even if this step fails. It must then read neither a file that the job chose
    // nor an earlier list, so the variable is empty until the list is written.
    set_variable(String::new());
    let (path_text, earlier_list) = (path.to_string_lossy().into_owned(), path.clone());
    blocking(&**context, "removing the earlier list of the artifacts", stop, move || {
        private_file::remove(&earlier_list).map_err(Failure::io("failed to remove the earlier list of the artifacts"))
    })
    .await?;
    let quiet = Quiet(context);
    let mut files = BTreeSet::new();
    for artifact in &list.artifacts {
        let ArtifactsUpload { paths, exclude, untracked, .. } = artifact;
        files.extend(select(&quiet, FileSelection { paths, exclude, untracked: *untracked }, stop).await?);
    }
    let root = context.project_dir.clone();
    blocking(&**context, "writing the list of the artifacts", stop, move || {
        let text = lines(&root, &files)?;
        private_file::write(&path, &text).map_err(Failure::io("failed to write the list of the artifacts"))
    })
    .await?;
    set_variable(path_text);
    Ok(())
}

fn lines(root: &Path, files: &BTreeSet<PathBuf>) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let is_regular = |file: &&PathBuf| fs::symlink_metadata(root.join(file)).is_ok_and(|found| found.is_file());
    for file in files.iter().filter(is_regular) {
        if file.as_os_str().as_bytes().contains(&b'\n') {
            // The job chose the name, so this is not a failure of the runner.
            let error =
                format!("the name of the artifact {file:?} contains a line break; rename the file, or exclude it");
            return Err(Failure::Step(error));
        }
        text.extend_from_slice(file.as_os_str().as_bytes());
        text.push(b'\n');
    }
    Ok(text)
}

/// Adds the paths that steps of the operator added, if the artifact is an archive.
pub(super) fn with_added_paths<'a>(artifact: &'a ArtifactsUpload, added: &[String]) -> Cow<'a, ArtifactsUpload> {
    if added.is_empty() || !is_archive(artifact) {
        return Cow::Borrowed(artifact);
    }
    let paths = artifact.paths.iter().chain(added).cloned().collect();
    Cow::Owned(ArtifactsUpload { paths, ..artifact.clone() })
}

/// Returns whether the artifact is an archive instead of a report.
pub(super) fn is_archive(artifact: &ArtifactsUpload) -> bool {
    matches!(artifact.artifact_type.as_str(), "" | "archive")
}

/// The context of the job, but without messages, because the upload prints the same ones.
struct Quiet<'a>(&'a Context);

#[async_trait]
impl TransferContext for Quiet<'_> {
    fn root(&self) -> &Path {
        self.0.root()
    }

    fn extraction(&self) -> Extraction {
        TransferContext::extraction(self.0)
    }

    fn staging(&self) -> &Path {
        self.0.staging()
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        TransferContext::environment(self.0)
    }

    fn report(&self, _level: MessageLevel, _line: &str) {}

    async fn git(&self, args: &[&str], out: Arc<File>, stop: &StopToken) -> Result<bool, Failure> {
        self.0.git(args, out, stop).await
    }
}
