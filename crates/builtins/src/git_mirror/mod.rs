//! `builtin://git_mirror`: a copy of a repository that the jobs of a machine share.
//!
//! ```text
//! server --fetch--> <root>/<name>/objects --hard links--> <root>/<name>/views/<view>/repository --fetch--> .git of the job
//! ```
//!
//! A job gets a view: hard links to the packs of the mirror, and the refs that it may fetch. A container has the view read-only. Without
//! containers, jobs run as the user of the agent, and could write to any of the agent's files. Therefore nothing in a mirror is trusted:
//!
//! - Objects are copied by `git fetch`, which computes the name of each object from its content, or are read by libgit2, which compares the
//!   name with the content. An object with changed content is an error, and the job fetches from the server.
//! - The refs that jobs get are kept in the memory of the agent ([`crate::mirrors::Mirrors`]), as the server reported them.
//! - A mirror has no configuration, hooks or refs. The commands of git for a job use a new directory for them ([`git::GitDir`]).
//! - The commands of git for a mirror run outside of the job's container, and do not get the job's variables.

mod git;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use muster_agent_api::builtin::GitMirror;
use muster_steps::builtin::Builtin;
use muster_steps::failure::Failure;
use muster_steps::process::Processes;
use muster_steps::stop::StopToken;
use muster_steps::style;

use crate::blocking::blocking;
use crate::context::Context;
use crate::mirrors::{Key, Mirror, Refs, Refspec, View, parse_refspecs, sources};
use crate::named_lock::Kind;
use git::GitDir;

#[async_trait]
impl Builtin<Context> for GitMirror {
    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        let start = Instant::now();
        let prepared = prepare(self, context, stop).await;
        *context.mirror_time.lock() = start.elapsed();
        let (line, view) = match prepared {
            Ok(prepared) => prepared,
            Err(failure @ Failure::Stopped(_)) => return Err(failure),
            Err(failure) => {
                tracing::warn!(name = self.name, error = %failure, "failed to prepare a git mirror");
                context.print(&style::warning(&format!(
                    "The git mirror of this machine is not used for this job: {failure}"
                )));
                return Ok(());
            }
        };
        context.print(&style::info(line));
        *context.mirror_view.lock() = Some(view);
        Ok(())
    }

    fn has_leftovers(&self, _temp_dir: &Path) -> bool {
        Path::new(&self.view_dir()).exists()
    }

    async fn remove_leftovers(&self, _temp_dir: &Path, _processes: &Processes) -> Result<(), Failure> {
        let mirror = Mirror::new(self)?;
        let removed = tokio::task::spawn_blocking(move || mirror.remove_abandoned_views()).await;
        removed.map_err(|error| Failure::System(error.to_string()))
    }
}

/// Makes sure that the mirror has the commit, and creates the view. Returns a log line and the view.
async fn prepare(
    inputs: &GitMirror,
    context: &Arc<Context>,
    stop: &StopToken,
) -> Result<(&'static str, View), Failure> {
    let mirror = Mirror::new(inputs)?;
    let refspecs = parse_refspecs(inputs)?;
    let key = Key { mirror: mirror.dir.clone(), sha: inputs.sha.clone(), sources: sources(&refspecs) };
    {
        let mirror = mirror.clone();
        blocking(&**context, "preparing the git mirror", stop, move || mirror.create()).await?;
    }
    let mirrors = &context.shared.mirrors;
    for kind in [Kind::Shared, Kind::Exclusive] {
        let guard = mirror.lock(mirrors, kind, stop).await?;
        if kind == Kind::Exclusive {
            let mirror = mirror.clone();
            let failed = Failure::io("failed to clean the git mirror");
            let clean = move || mirror.remove_command_dirs().map_err(failed);
            blocking(&**context, "cleaning the git mirror", stop, clean).await?;
        }
        let git = GitDir::new(context, inputs, &mirror, stop).await?;
        // While this job waited for the exclusive lock, another job may have fetched the commit.
        let found = match mirrors.refs(&key) {
            Some(refs) if git.has_objects(&refs, &inputs.sha, stop).await? => Some(refs),
            _ => None,
        };
        let (line, refs) = match (found, kind) {
            (Some(refs), _) => {
                ("The git mirror of this machine has the commit: nothing is fetched from the server.", refs)
            }
            (None, Kind::Shared) => continue,
            (None, Kind::Exclusive) => {
                ("Updated the git mirror of this machine.", update(&git, inputs, &mirror, &refspecs, stop).await?)
            }
        };
        mirrors.remember(key, &refs);
        let view = create_view(inputs, context, mirror, refs, stop).await?;
        drop(guard);
        return Ok((line, view));
    }
    Err(Failure::System("failed to lock the git mirror".to_owned()))
}

async fn create_view(
    inputs: &GitMirror,
    context: &Arc<Context>,
    mirror: Mirror,
    refs: Arc<Refs>,
    stop: &StopToken,
) -> Result<View, Failure> {
    let (name, max_age_s) = (inputs.view.clone(), inputs.max_age_s);
    blocking(&**context, "creating a view of the git mirror", stop, move || {
        View::create(mirror, &name, &refs, max_age_s).map_err(Failure::io("failed to create a view of the git mirror"))
    })
    .await
}

/// Fetches from the server.
///
/// If the mirror has commits and the server has the refs, a failed fetch means a damaged mirror: its content is removed, and the fetch is repeated.
async fn update(
    git: &GitDir<'_>,
    inputs: &GitMirror,
    mirror: &Mirror,
    refspecs: &[Refspec],
    stop: &StopToken,
) -> Result<Arc<Refs>, Failure> {
    let tips = git.existing_tips(stop).await?;
    let fetched = match git.fetch(&tips, refspecs, stop).await {
        Err(failure @ Failure::Stopped(_)) => return Err(failure),
        Err(_) if !tips.is_empty() && git.server_has(refspecs, stop).await? => {
            tracing::warn!(mirror = %mirror.dir.display(), "failed to fetch into a git mirror, replacing its content");
            mirror.clear().map_err(Failure::io("failed to remove the content of the git mirror"))?;
            git.fetch(&[], refspecs, stop).await
        }
        fetched => fetched,
    };
    let refs = Arc::new(fetched?);
    if !git.has_objects(&refs, &inputs.sha, stop).await? {
        return Err(Failure::Step(format!("the refs of the job do not lead to the commit {}", inputs.sha)));
    }
    mirror.write_tips(&tips, &refs).map_err(Failure::io("failed to write the list of commits of the git mirror"))?;
    if mirror.has_many_packs() {
        git.repack(&refs, &tips, stop).await?;
    }
    Ok(refs)
}

/// Removes the job's view of a mirror, and mirrors that have not been used for long. Called after the job.
pub(crate) async fn close(context: &Context) {
    let Some(view) = context.mirror_view.lock().take() else { return };
    let shared = Arc::clone(&context.shared);
    // The job waits only a short time, because unused mirrors are moved to the trash, which is emptied in the background.
    let closed = tokio::task::spawn_blocking(move || view.close(&shared.mirrors, &shared.trash)).await;
    if let Err(error) = closed {
        tracing::warn!(%error, "failed to remove the view of a git mirror");
    }
}
