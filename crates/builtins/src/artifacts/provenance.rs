//! Provenance of artifacts: SLSA provenance 1, as an in-toto statement (docs/spec/job-execution.md, section 9.8).

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use muster_agent_api::builtin::ProvenanceInfo;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::blocking::blocking;
use crate::transfer::TransferContext;

const CHUNK: usize = 256 * 1024;

/// Content of the statement, without the list of files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// ID of the job.
    pub job_id: i64,
    /// Repository, runner and parameters of the job.
    pub origin: ProvenanceInfo,
    /// Start time of the job, in the format of RFC 3339.
    pub started_at: String,
    /// End time of the job, in the format of RFC 3339.
    pub ended_at: String,
}

impl Provenance {
    /// Writes the statement about `files` to `<name>-metadata.json`. Returns `files` and the new file.
    ///
    /// `name` is a file name without directories. An existing file or symbolic link is replaced.
    pub(super) async fn add(
        &self,
        context: &dyn TransferContext,
        name: &str,
        mut files: Vec<PathBuf>,
        stop: &StopToken,
    ) -> Result<Vec<PathBuf>, Failure> {
        let (root, token, provenance) = (context.root().to_owned(), stop.clone(), self.clone());
        let file = PathBuf::from(format!("{name}-metadata.json"));
        blocking(context, "reading the artifacts", stop, move || {
            let mut text = Vec::new();
            // The statement of an earlier job may be selected, but this statement replaces it.
            let subjects = subjects(&root, files.iter().filter(|path| **path != file), &token)?;
            let statement = provenance.statement(subjects);
            let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
            let mut serializer = serde_json::Serializer::with_formatter(&mut text, format);
            serde::Serialize::serialize(&statement, &mut serializer)
                .map_err(io::Error::from)
                .and_then(|()| replace(&root, &file, &text))
                .map_err(Failure::io(format!("failed to write `{}`", file.display())))?;
            if let Err(index) = files.binary_search(&file) {
                files.insert(index, file);
            }
            Ok(files)
        })
        .await
    }

    fn statement(&self, subject: Vec<Value>) -> Value {
        let origin = &self.origin;
        let mut parameters: Map<String, Value> =
            origin.parameters.iter().map(|name| (name.clone(), Value::from(""))).collect();
        parameters.insert("entryPoint".to_owned(), origin.job_name.as_str().into());
        parameters.insert("source".to_owned(), origin.repo_url.as_str().into());
        let version = origin.version.as_str();
        json!({
            "_type": "https://in-toto.io/Statement/v0.1",
            "predicateType": "https://slsa.dev/provenance/v1",
            "subject": subject,
            "predicate": {
                "buildDefinition": {
                    "buildType": format!("https://gitlab.com/gitlab-org/gitlab-runner/-/blob/{version}/PROVENANCE.md"),
                    "externalParameters": parameters,
                    "internalParameters": {
                        "name": origin.runner_name,
                        "executor": origin.executor_name,
                        "architecture": muster_job::go_architecture(),
                        "job": self.job_id.to_string(),
                    },
                    "resolvedDependencies": [{ "uri": origin.repo_url, "digest": { "sha256": origin.repo_digest } }],
                },
                "runDetails": {
                    "builder": {
                        "id": format!("{}/-/runners/{}", origin.repo_url, origin.runner_id),
                        "version": { "gitlab-runner": version },
                    },
                    "metadata": {
                        "invocationId": self.job_id.to_string(),
                        "startedOn": self.started_at,
                        "finishedOn": self.ended_at,
                    },
                },
            },
        })
    }
}

/// Writes a file of the directory atomically.
fn replace(directory: &Path, name: &Path, text: &[u8]) -> io::Result<()> {
    let readable = Permissions::from_mode(0o644);
    let mut temporary = tempfile::Builder::new().prefix(".metadata_").permissions(readable).tempfile_in(directory)?;
    temporary.write_all(text)?;
    temporary.persist(directory.join(name))?;
    Ok(())
}

/// Returns the names and digests of the regular files.
fn subjects<'a>(
    root: &Path,
    files: impl Iterator<Item = &'a PathBuf>,
    stop: &StopToken,
) -> Result<Vec<Value>, Failure> {
    let mut subjects = Vec::new();
    for file in files {
        if stop.cause().is_some() {
            break;
        }
        let path = root.join(file);
        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let mut hash = Sha256::new();
        hash_file(muster_files::open(&path)?, &mut hash, stop)
            .map_err(Failure::io(format!("failed to read `{}`", file.display())))?;
        subjects.push(json!({ "name": file.to_string_lossy(), "digest": { "sha256": hex::encode(hash.finalize()) } }));
    }
    match stop.cause() {
        Some(cause) => Err(Failure::Stopped(cause)),
        None => Ok(subjects),
    }
}

/// Adds a file to the hash. Returns early after a stop, so the caller must check `stop`.
fn hash_file(mut file: File, hash: &mut Sha256, stop: &StopToken) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    while stop.cause().is_none() {
        match file.read(&mut chunk)? {
            0 => break,
            length => hash.update(chunk.get(..length).unwrap_or_default()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::test_support::RecordingContext;

    #[tokio::test]
    async fn statement_of_an_earlier_job_is_replaced_and_not_described() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["app", "out-metadata.json"] {
            std::fs::write(dir.path().join(name), "content").unwrap();
        }
        let context = RecordingContext::new(dir.path().to_owned());
        let files = vec!["app".into(), "out-metadata.json".into()];
        let packed = Provenance::default().add(&context, "out", files.clone(), &StopToken::new()).await.unwrap();
        assert_eq!(packed, files);
        let text = std::fs::read_to_string(dir.path().join("out-metadata.json")).unwrap();
        let statement: Value = serde_json::from_str(&text).unwrap();
        let digest = hex::encode(Sha256::digest("content"));
        assert_eq!(statement["subject"], json!([{ "name": "app", "digest": { "sha256": digest } }]));
    }
}
