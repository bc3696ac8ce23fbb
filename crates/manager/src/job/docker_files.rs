//! Files that a job's containers need: credentials for registries, and seccomp profiles.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures::future::join_all;
use muster_config::settings::RunnerSettings;
use muster_job::error_chain;
use muster_oci::CredentialHelper;
use muster_runner_api::payload::JobPayload;
use tokio::process::Command;

use crate::lower::docker::{helper_questions, seccomp_profiles};
use crate::lower::{AuthFile, DockerFiles, HelperAnswers, HelperLogin, HelperQuestion, JobContext};

/// Docker's credential files in a home directory. The first existing one is used.
const AUTH_FILES: [&str; 2] = [".docker/config.json", ".dockercfg"];
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Reads the files. Is called for each job, because they may change.
pub(super) async fn docker_files(runner: &RunnerSettings) -> DockerFiles {
    if !runner.uses_containers() {
        return DockerFiles::default();
    }
    let (profiles, home) = (seccomp_profiles(runner), home(runner.user.as_deref()).await);
    let mut files = DockerFiles::default();
    for path in profiles {
        let profile = read(Path::new(&path)).await.map_err(|error| error.to_string());
        files.seccomp.insert(path, profile);
    }
    for path in home.iter().flat_map(|home| AUTH_FILES.map(|file| home.join(file))) {
        match read(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            content => {
                let content = content.map_err(|error| error.to_string());
                files.auth_file = Some(AuthFile { path: path.display().to_string(), content });
                break;
            }
        }
    }
    files
}

/// Calls this machine's credential helpers for the images of a job (docs/spec/job-execution.md, section 7.3).
///
/// `None` means that the job's agent calls them itself.
pub(super) async fn helper_answers(payload: &JobPayload, context: &JobContext) -> Option<HelperAnswers> {
    let questions = helper_questions(payload, context)?;
    // In an incremental build, rustc 1.95 may stop with an internal error if this is an async closure.
    let answers = questions.into_iter().map(|question| async move {
        let answer = ask(&question).await;
        (question, answer)
    });
    Some(join_all(answers).await.into_iter().collect())
}

async fn ask(question: &HelperQuestion) -> Result<Option<HelperLogin>, String> {
    let helper = CredentialHelper::new(&question.helper).map_err(|error| error_chain(&error))?;
    let found = helper.get(&question.registry).await.map_err(|error| error_chain(&error))?;
    Ok(found.map(|found| HelperLogin {
        username: found.username,
        password: found.password,
        is_identity_token: found.is_identity_token,
    }))
}

async fn read(path: &Path) -> io::Result<String> {
    let metadata = tokio::fs::metadata(path).await?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        let message = format!("it is not a regular file of at most {} MiB", MAX_BYTES / (1024 * 1024));
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    tokio::fs::read_to_string(path).await
}

/// Without a user, returns `HOME` of this process.
async fn home(user: Option<&str>) -> Option<PathBuf> {
    let Some(user) = user else { return std::env::var_os("HOME").map(PathBuf::from) };
    let passwd = tokio::fs::read_to_string("/etc/passwd").await.unwrap_or_default();
    match home_in(&passwd, user) {
        Some(home) => Some(home),
        // The user may be known only to a directory service.
        None => {
            let output =
                Command::new("getent").args(["passwd", "--", user]).stdin(Stdio::null()).output().await.ok()?;
            home_in(&String::from_utf8_lossy(&output.stdout), user)
        }
    }
}

fn home_in(passwd: &str, user: &str) -> Option<PathBuf> {
    let entry = passwd.lines().find(|line| line.split(':').next() == Some(user))?;
    entry.split(':').nth(5).filter(|home| !home.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_directory_comes_from_the_passwd_entry_of_the_user() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nci:x:1000:1000::/srv/ci:/bin/sh\n";
        assert_eq!(home_in(passwd, "ci"), Some("/srv/ci".into()));
        assert_eq!(home_in(passwd, "c"), None);
    }

    #[tokio::test]
    async fn only_regular_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("profile.json");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(read(&path).await.unwrap(), "{}");
        assert!(read(directory.path()).await.unwrap_err().to_string().contains("not a regular file"));
    }
}
