//! `builtin://checkout`: brings the project directory to a commit (job-execution 2).
//!
//! Two ways lead there. A commit of a repository on this machine is checked out once, as a [`template`], and copied
//! for every job. Any other is fetched by the `git` command ([`remote`]).

mod cleanup;
mod config;
mod remote;
mod restore;
mod submodules;
mod template;
mod tree;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use muster_agent_api::builtin::Checkout;
use muster_steps::stop::Stop;

use crate::context::Context;
use crate::failure::Failure;
use crate::script;
use crate::trace::style;
pub(crate) use cleanup::clean_up;
pub use template::Templates;

/// Runs the phase.
pub(crate) async fn run(context: &Context, checkout: &Checkout, stop: &Stop) -> Result<(), Failure> {
    let project = &context.project_dir;
    match checkout.strategy.as_str() {
        "none" => {
            config::write(context, checkout).map_err(Failure::io(WRITING))?;
            nothing_checked_out(context, "Skipping Git repository setup");
            return fs::create_dir_all(project).map_err(Failure::io("cannot make the project directory"));
        }
        "empty" => {
            config::write(context, checkout).map_err(Failure::io(WRITING))?;
            nothing_checked_out(context, "Skipping Git repository setup and creating an empty build directory");
            return clear(context, stop).await;
        }
        _ => {}
    }
    hook(context, checkout, ("pre_clone_script", &checkout.pre_script), stop).await?;
    match &checkout.local_repository {
        Some(repository) => template::check_out(context, checkout, Path::new(repository), stop).await?,
        None => remote::check_out(context, checkout, stop).await?,
    }
    hook(context, checkout, ("post_clone_script", &checkout.post_script), stop).await
}

const WRITING: &str = "cannot write the git configuration";

fn nothing_checked_out(context: &Context, why: &str) {
    context.say(&[why, "Skipping Git checkout", "Skipping Git submodules setup"].map(style::info).concat());
}

/// Before the second try: whatever the first left is in doubt.
pub(crate) async fn clear_worktree(context: &Context, stop: &Stop) -> Result<(), Failure> {
    context.say(&style::info("Deleting tracked and untracked files..."));
    clear(context, stop).await
}

/// Whether the phase has a repository to clear.
pub(crate) fn has_repository(checkout: &Checkout) -> bool {
    !matches!(checkout.strategy.as_str(), "none" | "empty")
}

async fn hook(context: &Context, checkout: &Checkout, hook: script::Group<'_>, stop: &Stop) -> Result<(), Failure> {
    if hook.1.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(&context.project_dir).map_err(Failure::io("cannot make the project directory"))?;
    script::run_groups(context, &checkout.shell, &[hook], stop).await
}

/// Makes the project directory one that exists and is empty.
async fn clear(context: &Context, stop: &Stop) -> Result<(), Failure> {
    let (dir, shared) = (context.project_dir.clone(), Arc::clone(&context.shared));
    if let Some(cause) = stop.cause() {
        return Err(Failure::Stopped(cause));
    }
    Context::blocking(move || {
        let cleared = shared.trash.discard(&dir).and_then(|()| fs::create_dir_all(&dir));
        cleared.map_err(Failure::io(format!("cannot empty `{}`", dir.display())))
    })
    .await
}

/// Removes a directory if it is there, also where a job took away its own permission to write (job-execution 4.3).
pub(crate) fn remove_tree(dir: &Path) -> io::Result<()> {
    match muster_files::remove_tree(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => muster_files::remove_locked_tree(dir),
    }
}

/// A URL without user and password, as it may stand in a file or in the trace.
fn without_credentials(url: &str) -> String {
    match url.split_once("://") {
        // The user of an SSH address is no secret, and part of it.
        Some((scheme @ ("http" | "https"), rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        _ => url.to_owned(),
    }
}

fn short(sha: &str) -> &str {
    sha.get(..8).unwrap_or(sha)
}

#[cfg(test)]
mod tests;
