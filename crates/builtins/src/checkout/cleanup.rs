//! Cleans a repository before and after a job (docs/spec/job-execution.md, sections 2.3 and 2.8).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use muster_agent_api::builtin::Cleanup;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use super::{clear, embedded, exists, remote, submodules};
use crate::blocking::blocking;
use crate::context::Context;
use crate::removal::remove_tree;

const LEFTOVERS: [&str; 5] = ["index.lock", "shallow.lock", "HEAD.lock", "hooks/post-checkout", "config.lock"];

pub(super) async fn clean_up(context: &Arc<Context>, cleanup: &Cleanup, stop: &StopToken) -> Result<(), Failure> {
    let project = &context.project_dir;
    match cleanup.checkout.as_str() {
        "" => {}
        "none" => context.print(&style::info("Skipping build directory cleanup step")),
        "fetch" => {
            if let Some(flags) = cleanup.clean_flags.as_ref()
                && exists(context, ".git", stop).await?
            {
                if !remote::has_git(context) {
                    embedded::clean_up(context, cleanup, flags, stop).await?;
                    return remove_config_if_requested(context, cleanup, stop).await;
                }
                let clean: Vec<&str> = ["clean"].into_iter().chain(flags.iter().map(String::as_str)).collect();
                remote::git(context, &clean, project, stop).await?;
                remote::git(context, &["reset", "--hard"], project, stop).await?;
                submodules::clean(context, cleanup, stop).await?;
            }
        }
        _ => {
            clear(context, stop).await?;
            let directory = project.clone();
            blocking(&**context, "removing the project directory", stop, move || {
                let _ = fs::remove_dir(directory);
                Ok(())
            })
            .await?;
        }
    }
    remove_config_if_requested(context, cleanup, stop).await
}

async fn remove_config_if_requested(context: &Context, cleanup: &Cleanup, stop: &StopToken) -> Result<(), Failure> {
    if !cleanup.clean_config {
        return Ok(());
    }
    let (project, with_submodules) = (context.project_dir.clone(), !matches!(cleanup.submodules.as_str(), "" | "none"));
    blocking(context, "removing the git configuration", stop, move || {
        remove_config(&project, with_submodules);
        Ok(())
    })
    .await
}

/// Removes lock files of a killed git, and the `post-checkout` hook of an earlier job.
pub(super) fn remove_leftovers(project: &Path, with_submodules: bool) {
    let git = project.join(".git");
    for name in LEFTOVERS {
        let _ = fs::remove_file(git.join(name));
    }
    remove_below(&git.join("refs"), |name| name.ends_with(".lock"));
    if with_submodules {
        let names: Vec<&str> = LEFTOVERS.iter().filter_map(|name| name.rsplit('/').next()).collect();
        remove_below(&git.join("modules"), |name| names.contains(&name));
    }
    if git.exists() && !git.join("HEAD").exists() {
        // A killed `git init` leaves an incomplete repository.
        let _ = remove_tree(&git);
    }
}

fn remove_below(directory: &Path, is_removed: impl Fn(&str) -> bool) {
    for entry in walkdir::WalkDir::new(directory).into_iter().flatten() {
        if entry.file_type().is_file() && entry.file_name().to_str().is_some_and(&is_removed) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes configuration and hooks with which an earlier job may execute commands.
///
/// With a `commondir`, or a `.git` that is a file or a link, git would use another directory's configuration.
pub(super) fn remove_config(project: &Path, with_submodules: bool) {
    let git = project.join(".git");
    if fs::symlink_metadata(&git).is_ok_and(|found| !found.is_dir()) {
        let _ = fs::remove_file(&git);
    }
    for name in ["config", "config.worktree", "commondir"] {
        let _ = fs::remove_file(git.join(name));
    }
    let _ = remove_tree(&git.join("hooks"));
    if !with_submodules {
        return;
    }
    let mut walk = walkdir::WalkDir::new(git.join("modules")).into_iter();
    while let Some(entry) = walk.next() {
        let Ok(entry) = entry else { continue };
        if entry.file_type().is_file()
            && matches!(entry.file_name().to_str(), Some("config" | "config.worktree" | "commondir"))
        {
            let _ = fs::remove_file(entry.path());
        } else if entry.file_type().is_dir() && entry.file_name() == "hooks" {
            let _ = remove_tree(entry.path());
            walk.skip_current_dir();
        }
    }
}
