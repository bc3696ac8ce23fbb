//! `muster ci shell JOB`: opens a shell in the workspace of a finished job, with its variables.
//!
//! Without `run --keep`, the shell gets a new workspace with the commit, and the artifacts that the job received and
//! created.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use muster_coordinator::views::JobView;
use muster_coordinator::{CoordinatorError, History};
use muster_job::Variable;

use super::args::ShellArgs;
use super::config::Config;
use super::error::CiError;
use super::prepare::locate;
use super::record::write_private_bytes;
use super::show::{existing_run, find_job, last_run, pipelines, unpack_archive};
use super::trash::remove_all;
use super::ui;
use crate::unpack::UnpackArgs;

pub(super) async fn shell(args: ShellArgs) -> Result<ExitCode, CiError> {
    let project = locate(&args.repository.directory)?;
    let run = match args.run {
        Some(run) => run,
        None => last_run(&project)?,
    };
    let directory = existing_run(&project, run)?;
    let history = History::open(&directory.join("coordinator")).await?;
    let pipelines = pipelines(&history).await?;
    let view = find_job(&pipelines, &args.job, run)?;
    let mut setup = history.job_setup(view.id).await?;
    if !view.status.is_complete() {
        ui::warning(&format!("job `{}` has not finished", view.name));
    }
    let existing = existing_workspace(&directory, view, &setup.project_path);
    let workspace = match existing.clone() {
        Some(existing) => existing,
        None => {
            let mut archives = std::mem::take(&mut setup.archives);
            for artifact in view.artifacts.iter().filter(|artifact| artifact.kind == "archive") {
                match history.open_artifact(view.id, artifact).await {
                    Ok(archive) => archives.push(archive),
                    Err(CoordinatorError::NotFound(what)) => setup.missing.push(format!("{what} has expired")),
                    Err(error) => return Err(error.into()),
                }
            }
            for message in &setup.missing {
                ui::warning(&format!("the workspace is not complete: {message}"));
            }
            new_workspace(&directory, &setup.sha, view, archives, &Config::load()?.unpack)?
        }
    };
    let mut command = shell_command();
    set_environment(&mut command, &setup.variables, &workspace)?;
    ui::note(&match existing {
        Some(_) => format!("this is the workspace of job `{}` as the job left it; `exit` leaves the shell", view.name),
        None => format!(
            "the workspace of job `{}` was not kept (use `muster ci run --keep` to keep it), so this is a new workspace with the \
             commit and the artifacts; `exit` leaves the shell",
            view.name
        ),
    });
    let status = command.status().map_err(CiError::system("start the shell"))?;
    tracing::debug!(%status, "shell exited");
    Ok(exit_code(status))
}

/// Returns the exit code of the shell, or 128 plus the number of the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    let signal = None;
    let code = status.code().or_else(|| signal.map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Returns the directory that contains a job's workspace in a run with `--keep`.
pub(super) fn job_workspace_directory(run: &Path, job: impl std::fmt::Display) -> PathBuf {
    run.join("builds").join(job.to_string())
}

fn existing_workspace(run: &Path, view: &JobView, project_path: &str) -> Option<PathBuf> {
    let path = job_workspace_directory(run, view.id).join(project_path);
    path.is_dir().then_some(path)
}

fn new_workspace(
    run: &Path,
    sha: &str,
    view: &JobView,
    archives: Vec<File>,
    limits: &UnpackArgs,
) -> Result<PathBuf, CiError> {
    let workspace = run.join("shell").join(view.id.to_string());
    let failed = |source| CiError::State { path: workspace.clone(), source };
    remove_all(&workspace).map_err(failed)?;
    std::fs::create_dir_all(&workspace).map_err(failed)?;
    let git = |arguments: &[&std::ffi::OsStr]| {
        let output = Command::new("git").current_dir(&workspace).args(arguments).output();
        let output = output.map_err(CiError::system("run `git`"))?;
        let stderr = || String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(CiError::Failed(format!("failed to check out the commit: {}", stderr())))
        }
    };
    let store = run.join("store.git");
    git(&[
        "clone".as_ref(),
        "--quiet".as_ref(),
        "--no-checkout".as_ref(),
        "--shared".as_ref(),
        store.as_ref(),
        ".".as_ref(),
    ])?;
    git(&["-c".as_ref(), "advice.detachedHead=false".as_ref(), "checkout".as_ref(), "--quiet".as_ref(), sha.as_ref()])?;
    for archive in archives {
        unpack_archive(archive, &workspace, limits)?;
    }
    Ok(workspace)
}

/// Sets the job's variables. Writes variables of type file to files next to the workspace.
fn set_environment(command: &mut Command, variables: &[Variable], workspace: &Path) -> Result<(), CiError> {
    let mut files = workspace.as_os_str().to_owned();
    files.push(".tmp");
    let files = PathBuf::from(files);
    for variable in variables.iter().filter(|variable| is_name(&variable.key)) {
        if variable.file {
            let path = files.join(&variable.key);
            let written =
                std::fs::create_dir_all(&files).and_then(|()| write_private_bytes(&path, variable.value.as_bytes()));
            written.map_err(|source| CiError::State { path: path.clone(), source })?;
            command.env(&variable.key, path);
        } else if !variable.value.contains('\0') {
            command.env(&variable.key, &variable.value);
        }
    }
    command.env("CI_PROJECT_DIR", workspace).env("CI_SERVER", "yes").current_dir(workspace);
    Ok(())
}

fn is_name(key: &str) -> bool {
    !key.is_empty() && !key.contains(['=', '\0'])
}

/// Returns the shell that jobs use: bash, or else sh.
fn shell_command() -> Command {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let has_bash = std::env::split_paths(&paths).any(|directory| directory.join("bash").is_file());
    Command::new(if has_bash { "bash" } else { "sh" })
}
