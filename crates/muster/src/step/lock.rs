//! `muster step lock`, `update` and `verify`: the lock file of a repository's remote steps.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use muster_steps::definition::parse_run_list;
use muster_steps::engine::{Reader, UsedSteps};
use muster_steps::expression::Dialect;
use muster_steps::lock::{LOCK_FILE, StepLock};
use muster_steps::remote::{RemoteStep, Source};

use super::error::StepCommandError;
use super::fetcher::{CommandFetcher, environment};
use crate::ci::step_lists::{StepLists, StepListsArgs};
use crate::ci::ui;

/// Arguments of `muster step lock`.
#[derive(Debug, clap::Args)]
pub(crate) struct StepLockArgs {
    /// More references to pin, for steps that the pipeline names by an expression.
    #[arg(value_name = "REFERENCE")]
    references: Vec<String>,
    #[command(flatten)]
    pipeline: StepListsArgs,
}

/// Arguments of `muster step update`.
#[derive(Debug, clap::Args)]
pub(crate) struct StepUpdateArgs {
    /// References to update, as `muster-steps.lock` names them [default: all].
    #[arg(value_name = "REFERENCE")]
    references: Vec<String>,
    #[command(flatten)]
    pipeline: StepListsArgs,
}

/// Arguments of `muster step verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct StepVerifyArgs {
    #[command(flatten)]
    pipeline: StepListsArgs,
}

pub(super) async fn lock(args: &StepLockArgs) -> Result<bool, StepCommandError> {
    let extra = args.references.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
    update_lock_file(&args.pipeline, &extra, &|_| false).await
}

pub(super) async fn update(args: &StepUpdateArgs) -> Result<bool, StepCommandError> {
    let named = args.references.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
    update_lock_file(&args.pipeline, &named, &|source| named.is_empty() || named.contains(source)).await
}

/// Returns whether the lock file pins every known remote step.
pub(super) async fn verify(args: &StepVerifyArgs) -> Result<bool, StepCommandError> {
    let lists = StepLists::read(&args.pipeline).await?;
    let path = lists.worktree.join(LOCK_FILE);
    let Some(lock) = read(&path)? else {
        return Err(StepCommandError::Usage(format!("{} does not exist; run `muster step lock`", path.display())));
    };
    let used = fetch_used(&lists, &[], &|source| lock.digest(source).map(str::to_owned)).await?;
    report_gaps(&lists, &used);
    let missing: Vec<&Source> =
        used.sources.iter().map(|(source, _)| source).filter(|source| lock.digest(source).is_none()).collect();
    for source in &missing {
        ui::error(&format!("{LOCK_FILE} does not name {source}; run `muster step lock`"));
    }
    if missing.is_empty() {
        // The warnings of `report_gaps` name the steps that are not known before the pipeline runs.
        let known = if used.dynamic.is_empty() && lists.unreadable.is_empty() { "" } else { "known " };
        ui::outln(&format!(
            "{LOCK_FILE} pins every {known}remote step of the pipeline ({} in total)",
            used.sources.len()
        ));
    }
    Ok(missing.is_empty())
}

/// Pins the steps of the pipeline, and `extra` sources. `is_updated` selects the sources whose pins are replaced.
async fn update_lock_file(
    args: &StepListsArgs,
    extra: &[Source],
    is_updated: &(dyn Fn(&Source) -> bool + Sync),
) -> Result<bool, StepCommandError> {
    let lists = StepLists::read(args).await?;
    let path = lists.worktree.join(LOCK_FILE);
    let old = read(&path)?.unwrap_or_default();
    let pin = |source: &Source| if is_updated(source) { None } else { old.digest(source).map(str::to_owned) };
    let used = fetch_used(&lists, extra, &pin).await?;
    report_gaps(&lists, &used);
    // If some steps of the pipeline are unknown, keep all old pins: the unknown steps may need them.
    let is_complete = used.dynamic.is_empty() && lists.unreadable.is_empty();
    let mut lock = if is_complete { StepLock::default() } else { old.clone() };
    for (source, fetched) in &used.sources {
        report_change(source, old.digest(source), &fetched.digest);
        for notice in &fetched.notices {
            ui::warning(&format!("the step {source} is {}: {}", notice.kind.name(), ui::plain(&notice.message)));
        }
        lock.put(source, fetched.digest.clone());
    }
    write_file(&path, &lock.to_text()?)?;
    let count = lock.entries().len();
    ui::outln(&format!("{LOCK_FILE} pins {count} remote {}; commit it", if count == 1 { "step" } else { "steps" }));
    Ok(true)
}

fn report_change(source: &Source, old: Option<&str>, new: &str) {
    match old {
        Some(old) if old == new => {}
        Some(old) => ui::outln(&format!("updated {source}: {old} -> {new}")),
        None => ui::outln(&format!("pinned {source}: {new}")),
    }
}

/// Finds the remote steps that the lists use, and fetches them and the `extra` sources. `pin` returns the digest to fetch.
async fn fetch_used(
    lists: &StepLists,
    extra: &[Source],
    pin: &(dyn Fn(&Source) -> Option<String> + Sync),
) -> Result<UsedSteps, StepCommandError> {
    let fetcher = CommandFetcher::new()?;
    let reader = Reader { port: &fetcher.fetcher, pin, lookup: &environment, dialect: Dialect::Current };
    let mut used = UsedSteps::default();
    for (job, list) in &lists.lists {
        let entries = parse_run_list(list).map_err(|source| StepCommandError::List { job: job.clone(), source })?;
        let added = used.add(&entries, &lists.worktree, reader).await;
        added.map_err(|source| StepCommandError::Job { job: job.clone(), source })?;
    }
    for source in extra {
        used.fetch(source, reader).await?;
    }
    Ok(used)
}

fn report_gaps(lists: &StepLists, used: &UsedSteps) {
    for problem in &lists.unreadable {
        ui::warning(&format!("failed to read {problem}; pin its remote steps with `muster step lock REFERENCE`"));
    }
    for reference in &used.dynamic {
        ui::warning(&format!(
            "the step of `{reference}` is known only when a job runs; pin it with `muster step lock REFERENCE`"
        ));
    }
    for problem in &used.unreadable {
        ui::warning(&format!("{problem}; remote steps that it calls are not pinned"));
    }
}

fn parse(text: &str) -> Result<Source, StepCommandError> {
    Ok(RemoteStep::parse(text, Dialect::Current)?.source)
}

fn read(path: &Path) -> Result<Option<StepLock>, StepCommandError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(StepLock::parse(&text)?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StepCommandError::File { path: path.to_owned(), source }),
    }
}

/// Replaces the file atomically.
fn write_file(path: &Path, text: &str) -> Result<(), StepCommandError> {
    let write = || {
        use std::os::unix::fs::PermissionsExt;
        let directory: PathBuf = path.parent().map(Path::to_owned).unwrap_or_default();
        let permissions = std::fs::Permissions::from_mode(0o644);
        let mut file = tempfile::Builder::new().prefix(LOCK_FILE).permissions(permissions).tempfile_in(directory)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    write().map_err(StepCommandError::file(path))
}
