//! `builtin://git_mirror`: a copy of a repository that jobs of a machine share.
//!
//! ```text
//! server --fetch--> <root>/<name>/objects --hard links--> <root>/<name>/views/<view>/repository --fetch--> .git of the
//! job
//! ```
//!
//! A job gets a view: hard links to packs of the mirror, and the refs that it may fetch. A container mounts the view
//! read-only. Jobs without containers run as the agent's user, and could write to the mirror, so it is not trusted:
//!
//! - `git fetch` and libgit2 verify the hash of each object. If an object is damaged, the job fetches from the server.
//! - The agent keeps the refs for jobs in memory, as the server reported them ([`crate::mirrors::Mirrors`]).
//! - Each job has a new directory for configuration, hooks and refs ([`git::GitDir`]).
//! - Git commands for a mirror run outside of the container, without the job's variables.

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

/// Fetches the commit if necessary, and creates the view. Returns a log line and the view.
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
        blocking(&**context, "preparing the git mirror", stop, move || mirror.create_root()).await?;
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
        // Another job may have fetched the commit while this job waited for the exclusive lock.
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
/// If the fetch fails although the server has the refs, a mirror that already has commits counts as damaged. Its
/// content is then removed, and fetched again.
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

/// Removes the job's view, and mirrors that were not used for long. Called after the job.
pub(crate) async fn close(context: &Context) {
    let Some(view) = context.mirror_view.lock().take() else { return };
    let shared = Arc::clone(&context.shared);
    // Mirrors are only moved to the trash, so this is fast.
    let closed = tokio::task::spawn_blocking(move || view.close(&shared.mirrors, &shared.trash)).await;
    if let Err(error) = closed {
        tracing::warn!(%error, "failed to remove the view of a git mirror");
    }
}
