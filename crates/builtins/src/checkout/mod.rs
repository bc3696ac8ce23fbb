//! `builtin://checkout`: checks out a commit in the project directory (docs/spec/job-execution.md, section 2).
//!
//! A commit of a local repository is checked out once as a [`template`], and copied for each job. Other commits are
//! fetched by the `git` command ([`remote`]), or by libgit2 if there is no such command ([`embedded`]).

mod cleanup;
pub(crate) mod config;
mod embedded;
mod mirror;
mod offer;
pub(crate) mod remote;
mod submodules;
mod template;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::{Checkout, Cleanup};
use muster_steps::builtin::{Builtin, Offer, Role};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use crate::blocking::blocking;
use crate::context::Context;
use crate::script;
use crate::shell_text::ScriptBlock;
use crate::transfer::TransferContext;

#[async_trait]
impl Builtin<Context> for Checkout {
    fn role(&self) -> Role {
        Role::Sources
    }

    fn offer(&self, context: &Context) -> Option<Offer> {
        Some(offer::checkout(context, self))
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        run(context, self, stop).await
    }

    fn clear_section(&self) -> Option<(&'static str, &'static str)> {
        let has_repository = !matches!(self.strategy.as_str(), "none" | "empty");
        has_repository.then_some(CLEAR_WORKTREE)
    }

    async fn clear(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        context.print(&style::info("Deleting tracked and untracked files..."));
        clear(context, stop).await
    }
}

#[async_trait]
impl Builtin<Context> for Cleanup {
    fn role(&self) -> Role {
        Role::Cleanup
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        cleanup::clean_up(context, self, stop).await?;
        context.clear_files(stop).await
    }
}

async fn run(context: &Arc<Context>, checkout: &Checkout, stop: &StopToken) -> Result<(), Failure> {
    resume_removal(context, stop).await?;
    match checkout.strategy.as_str() {
        "none" => {
            config::write(context, checkout, stop).await?;
            print_skipped(context, "Skipping Git repository setup");
            return context.create_project_dir(stop).await;
        }
        "empty" => {
            config::write(context, checkout, stop).await?;
            print_skipped(context, "Skipping Git repository setup and creating an empty build directory");
            return clear(context, stop).await;
        }
        _ => {}
    }
    run_hook(context, checkout, ("pre_clone_script", &checkout.pre_script), stop).await?;
    match &checkout.local_repository {
        Some(repository) => template::check_out(context, checkout, Path::new(repository), stop).await?,
        None => remote::check_out(context, checkout, stop).await?,
    }
    run_hook(context, checkout, ("post_clone_script", &checkout.post_script), stop).await
}

/// Name and title of the log section before another attempt.
pub(crate) const CLEAR_WORKTREE: (&str, &str) =
    ("clear_worktree", "Deleting all tracked and untracked files due to source fetch failure");

fn print_skipped(context: &Context, reason: &str) {
    context.print(&[reason, "Skipping Git checkout", "Skipping Git submodules setup"].map(style::info).concat());
}

async fn run_hook(
    context: &Context,
    checkout: &Checkout,
    hook: ScriptBlock<'_>,
    stop: &StopToken,
) -> Result<(), Failure> {
    if hook.1.is_empty() {
        return Ok(());
    }
    context.create_project_dir(stop).await?;
    // The hook may be the job's own, so the operator's limits apply to it.
    muster_steps::process::run_limited(script::run_blocks(context, &checkout.shell, &[hook], stop)).await
}

/// Resumes the removal of old project directories that a killed agent left.
async fn resume_removal(context: &Context, stop: &StopToken) -> Result<(), Failure> {
    let (extraction, shared) = (context.extraction(), Arc::clone(&context.shared));
    blocking(context, "looking for old project directories", stop, move || {
        // A symbolic link in the path could lead to another directory. The checkout itself reports such a path.
        if extraction.create_parent().is_ok() {
            shared.trash.resume(&extraction.root);
        }
        Ok(())
    })
    .await
}

/// Empties or creates the project directory.
async fn clear(context: &Context, stop: &StopToken) -> Result<(), Failure> {
    let (extraction, shared) = (context.extraction(), Arc::clone(&context.shared));
    if let Some(cause) = stop.cause() {
        return Err(Failure::Stopped(cause));
    }
    blocking(context, "emptying the project directory", stop, move || {
        // A symbolic link in the path must not lead to another directory.
        extraction.create_parent()?;
        let dir = &extraction.root;
        shared.trash.discard(dir).map_err(Failure::io(format!("failed to empty `{}`", dir.display())))?;
        extraction.open_root().map(drop)
    })
    .await
}

async fn exists(context: &Context, name: &str, stop: &StopToken) -> Result<bool, Failure> {
    let path = context.project_dir.join(name);
    blocking(context, "checking the project directory", stop, move || Ok(path.exists())).await
}

pub(crate) fn short_sha(sha: &str) -> &str {
    sha.get(..8).unwrap_or(sha)
}
