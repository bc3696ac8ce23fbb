//! Checks out a commit of a remote repository with the `git` command (docs/spec/job-execution.md, section 2.2).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_agent_api::builtin::Checkout;
use muster_files::Limit;
use muster_steps::failure::Failure;
use muster_steps::process::Command;
use muster_steps::stop::StopToken;
use muster_steps::style;

use super::cleanup::{remove_config, remove_leftovers};
use super::config::{self, host};
use super::{clear, embedded, exists, mirror, short_sha, submodules};
use crate::blocking::blocking;
use crate::context::Context;
use crate::git_http::without_credentials;

const ATTRIBUTES_LIMIT: Limit = Limit { bytes: 1024 * 1024, remedy: "Git LFS files are not detected" };

pub(super) async fn check_out(context: &Arc<Context>, checkout: &Checkout, stop: &StopToken) -> Result<(), Failure> {
    let project = &context.project_dir;
    if checkout.strategy == "clone" {
        clear(context, stop).await?;
    }
    let with_submodules = !matches!(checkout.submodules.as_str(), "" | "none");
    let (directory, clean_config) = (project.clone(), checkout.clean_config);
    blocking(&**context, "removing leftovers of an earlier job", stop, move || {
        mirror::remove_borrowing_repository(&directory);
        remove_leftovers(&directory, with_submodules);
        if clean_config {
            remove_config(&directory, with_submodules);
        }
        Ok(())
    })
    .await?;
    let external = config::write(context, checkout, stop).await?;
    if !has_git(context) {
        return embedded::check_out(context, checkout, stop).await;
    }
    fetch(context, checkout, &external, stop).await?;
    if checkout.checkout {
        check_out_files(context, checkout, stop).await?;
    } else {
        context.print(&style::info("Skipping Git checkout"));
    }
    if with_submodules {
        submodules::update(context, checkout, stop).await
    } else {
        context.print(&style::info("Skipping Git submodules setup"));
        Ok(())
    }
}

async fn fetch(context: &Arc<Context>, checkout: &Checkout, external: &Path, stop: &StopToken) -> Result<(), Failure> {
    let project = &context.project_dir;
    context.print(&style::info(&match checkout.depth {
        depth @ 1.. => format!("Fetching changes with git depth set to {depth}..."),
        _ => "Fetching changes...".to_owned(),
    }));
    if checkout.safe_directory && has_writable_home(context, stop).await? {
        let project = project.to_string_lossy();
        let pattern = format!("^{}$", regex_escaped(&project));
        let args = ["config", "--global", "--replace-all", "safe.directory", &project, &pattern];
        git(context, &args, &context.temp_dir, stop).await?;
    }
    context.create_project_dir(stop).await?;
    let is_new = !exists(context, ".git", stop).await?;
    if is_new || checkout.clean_config {
        let template = config::write_template(context, checkout, stop).await?;
        let template = template.to_string_lossy();
        let mut args = vec!["init", "--quiet", "--template", &template];
        if !matches!(checkout.object_format.as_str(), "" | "sha1") {
            args.extend(["--object-format", &checkout.object_format]);
        }
        git(context, &args, project, stop).await?;
    }
    if is_new {
        context.print(&style::info("Created fresh repository."));
    } else {
        let (url, include) = (without_credentials(&checkout.repo_url), external.to_string_lossy());
        for (key, value) in [("remote.origin.url", url.as_str()), ("include.path", &*include)] {
            git(context, &["config", "--replace-all", key, value], project, stop).await?;
        }
    }
    if let Some(repository) = mirror::repository(context, checkout, stop).await? {
        match fetch_from(context, checkout, &repository.to_string_lossy(), stop).await {
            Err(Failure::Stopped(cause)) => return Err(Failure::Stopped(cause)),
            Err(failure) => mirror::report_broken(context, &failure.to_string()),
            Ok(()) => return Ok(()),
        }
    }
    fetch_from(context, checkout, "origin", stop).await
}

/// Fetches the refs of the job from `repository`, which is `origin` or a local path.
async fn fetch_from(
    context: &Arc<Context>,
    checkout: &Checkout,
    repository: &str,
    stop: &StopToken,
) -> Result<(), Failure> {
    let depth = checkout.depth.to_string();
    let options = options(checkout);
    let mut args: Vec<&str> = options.iter().map(String::as_str).collect();
    if repository != "origin" {
        args.extend(["-c", "protocol.file.allow=always"]);
    }
    args.extend(["fetch", repository, "--no-recurse-submodules"]);
    args.extend(checkout.refspecs.iter().map(String::as_str));
    if checkout.depth > 0 {
        args.extend(["--depth", &depth]);
    } else if exists(context, ".git/shallow", stop).await? {
        args.push("--unshallow");
    }
    args.extend(checkout.fetch_flags.iter().map(String::as_str));
    git(context, &args, &context.project_dir, stop).await
}

/// Returns the options for one call of git.
pub(crate) fn options(checkout: &Checkout) -> Vec<String> {
    let mut options = vec!["-c".to_owned(), format!("http.userAgent={}", config::user_agent())];
    if checkout.proactive_auth {
        let scope = host(&without_credentials(&checkout.repo_url)).map(|host| format!("{host}.")).unwrap_or_default();
        options.extend(["-c".to_owned(), format!("http.{scope}proactiveAuth=basic")]);
    }
    options
}

async fn check_out_files(context: &Context, checkout: &Checkout, stop: &StopToken) -> Result<(), Failure> {
    let project = &context.project_dir;
    let notice =
        format!("Checking out {} as detached HEAD (ref is {})...", short_sha(&checkout.sha), checkout.ref_name);
    context.print(&style::info(&notice));
    let options = options(checkout);
    let mut args: Vec<&str> = options.iter().map(String::as_str).collect();
    args.extend(["-c", "submodule.recurse=false", "checkout", "-f", "-q", &checkout.sha]);
    git_without_lfs(context, checkout, &args, stop).await?;
    if let Some(flags) = &checkout.clean_flags {
        let args: Vec<&str> = ["clean"].into_iter().chain(flags.iter().map(String::as_str)).collect();
        git(context, &args, project, stop).await?;
    }
    if checkout.skip_lfs {
        return Ok(());
    }
    if has_lfs(context) {
        git(context, &["lfs", "pull"], project, stop).await?;
        context.print("\n");
    } else if uses_lfs(project).await {
        context.print(&style::warning(NO_LFS));
    }
    Ok(())
}

pub(super) fn has_git(context: &Context) -> bool {
    has_command(context, "git")
}

pub(super) fn has_lfs(context: &Context) -> bool {
    has_command(context, "git-lfs")
}

fn has_command(context: &Context, name: &str) -> bool {
    let path = context.environment_value("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| {
        let file = directory.join(name);
        file.is_file() && rustix::fs::access(&file, rustix::fs::Access::EXEC_OK).is_ok()
    })
}

/// Returns whether the top `.gitattributes` uses the LFS filter. Returns false if the file cannot be read.
pub(super) async fn uses_lfs(project: &Path) -> bool {
    let text = muster_files::read(project.join(".gitattributes"), ATTRIBUTES_LIMIT).await;
    text.is_ok_and(|text| text.contains("filter=lfs"))
}

/// Returns whether git can write the user's configuration. Users of containers may have no home directory.
async fn has_writable_home(context: &Context, stop: &StopToken) -> Result<bool, Failure> {
    let home = context.environment_value("HOME");
    blocking(context, "checking the home directory", stop, move || {
        Ok(home.is_some_and(|home| rustix::fs::access(Path::new(&home), rustix::fs::Access::WRITE_OK).is_ok()))
    })
    .await
}

pub(crate) fn regex_escaped(text: &str) -> String {
    let special = |c: char| "\\.[]{}()*+?^$|".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// Runs git without LFS downloads, because `git lfs pull` follows (docs/spec/job-execution.md, section 2.5).
async fn git_without_lfs(
    context: &Context,
    checkout: &Checkout,
    args: &[&str],
    stop: &StopToken,
) -> Result<(), Failure> {
    let skip = (!checkout.skip_lfs).then(|| ("GIT_LFS_SKIP_SMUDGE".into(), "1".into()));
    git_with(context, args, &context.project_dir, skip, stop).await
}

pub(super) const NO_LFS: &str = "the repository uses Git LFS, but git-lfs is not in PATH: LFS files are only pointers";

/// Error if there is no `git` command, and libgit2 cannot replace it, as with a local repository.
const NO_GIT: &str = "failed to get the sources: `git` is not in PATH; install it, or set the variable GIT_STRATEGY to `none` or \
     `empty` if the job needs no sources";

/// Runs git with the job's environment, except variables that select another repository.
pub(super) async fn git(context: &Context, args: &[&str], dir: &Path, stop: &StopToken) -> Result<(), Failure> {
    git_with(context, args, dir, None, stop).await
}

async fn git_with(
    context: &Context,
    args: &[&str],
    dir: &Path,
    extra: Option<(OsString, OsString)>,
    stop: &StopToken,
) -> Result<(), Failure> {
    let selects_other_repository = |key: &OsString| {
        ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE"]
            .iter()
            .any(|name| key == name)
    };
    let mut env: Vec<_> = context.environment().into_iter().filter(|(key, _)| !selects_other_repository(key)).collect();
    env.push(("GIT_TERMINAL_PROMPT".into(), "0".into()));
    env.push(("GCM_INTERACTIVE".into(), "Never".into()));
    env.extend(extra);
    if !has_git(context) {
        return Err(Failure::Step(NO_GIT.to_owned()));
    }
    let command = Command {
        program: PathBuf::from("git"),
        args: args.iter().map(Into::into).collect(),
        env,
        work_dir: Some(dir.to_owned()),
        ..Command::default()
    };
    context.run_command(command, stop).await
}
