//! `muster cache`: maintains the job caches that are stored as chunks.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use muster_cache_store::{CacheStore, CollectOptions};
use muster_chunks::{Collection, Store, stores_below};
use muster_config::SettingsContext;
use muster_config::settings::{ChunkGcSettings, RunnerSettings};
use muster_job::{error_chain, short_token};

use crate::ci::ui;
use crate::config_file::ConfigArg;
use crate::{flags, runtime};

/// Log filter. The commands print their results and errors themselves.
const LOG: &str = "error";

/// Commands for caches.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Delete data that no cache needs, in the chunk stores of this machine and in the object stores of the runners.
    Gc(GcArgs),
}

/// Arguments of `muster cache gc`.
#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Directories of caches. [default: `cache_dir` of the configured runners]
    #[arg(value_name = "DIRECTORY")]
    directories: Vec<PathBuf>,
    #[command(flatten)]
    config: ConfigArg,
    /// Minimum age of unused data that is marked. Marked data is deleted after the same time if it is still unused. This time must be longer than the longest job.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = flags::go_duration)]
    grace: Duration,
    /// Delete each cache that no job has saved for this time, such as 720h. By default, no cache is deleted.
    #[arg(long, value_name = "TIME", value_parser = flags::go_duration)]
    max_age: Option<Duration>,
    /// Print what would be deleted, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Collect only for runners with `ChunksGcInterval`, with their settings, and only stores whose last collection is older than this
    /// interval. The manager runs this.
    #[arg(long, conflicts_with_all = ["directories", "grace", "max_age", "dry_run"])]
    due: bool,
}

pub(crate) fn run(command: Command) -> ExitCode {
    let Command::Gc(args) = command;
    crate::logging::init_command(LOG);
    runtime::block_on(async move { crate::ci::exit_code(collect(&args).await) })
}

/// Nice value of a collection that a manager started, so that jobs have a higher priority.
const NICENESS: i32 = 10;

/// Deletes unused data in all stores. Returns false if a collection failed.
async fn collect(args: &GcArgs) -> Result<bool, crate::config_file::ConfigError> {
    if args.due {
        // If the priority cannot be lowered, the collection works anyway.
        let _ = rustix::process::nice(NICENESS);
    }
    let options = CollectOptions {
        now: SystemTime::now(),
        grace: args.grace,
        max_age: args.max_age,
        min_interval: None,
        dry_run: args.dry_run,
    };
    let mut is_complete = true;
    let mut roots: BTreeMap<PathBuf, CollectOptions> =
        args.directories.iter().map(|directory| (directory.clone(), options)).collect();
    if roots.is_empty() {
        let settings = muster_config::settings(&args.config.load()?, &SettingsContext::default());
        for runner in &settings.runners {
            let Some(options) = options_of(args.due, runner, options) else { continue };
            let root = runner.cache_dir.clone().unwrap_or_else(|| PathBuf::from("cache"));
            roots.entry(root).and_modify(|shared| *shared = shared_options(*shared, options)).or_insert(options);
            is_complete &= collect_objects(runner, options).await;
        }
    }
    for (root, options) in roots {
        for store in stores_below(&root) {
            is_complete &= collect_directory(&store, options, args.due);
        }
    }
    Ok(is_complete)
}

/// Returns the options for a directory that two runners share. Nothing is deleted that the settings of one of them retain.
fn shared_options(first: CollectOptions, second: CollectOptions) -> CollectOptions {
    CollectOptions {
        grace: first.grace.max(second.grace),
        max_age: first.max_age.zip(second.max_age).map(|(first, second)| first.max(second)),
        min_interval: first.min_interval.min(second.min_interval),
        ..first
    }
}

/// Returns the options for the stores of a runner. With `only_due`, `None` means that the runner has no
/// `ChunksGcInterval`.
fn options_of(only_due: bool, runner: &RunnerSettings, options: CollectOptions) -> Option<CollectOptions> {
    if !only_due {
        return Some(options);
    }
    let ChunkGcSettings { interval, grace, max_age } = runner.cache.collection?;
    Some(CollectOptions { grace, max_age, min_interval: Some(interval), ..options })
}

/// Deletes unused data in the chunk stores of a runner's object store. Returns false if a collection failed.
async fn collect_objects(runner: &RunnerSettings, options: CollectOptions) -> bool {
    let Some(store) = &runner.cache.store else { return true };
    let mut prefix: Vec<String> = runner.cache.path.split('/').map(str::to_owned).collect();
    prefix.retain(|segment| !matches!(segment.as_str(), "" | "." | ".."));
    if !runner.cache.shared {
        prefix.extend(["runner".to_owned(), short_token(runner.token.expose())]);
    }
    match async { CacheStore::open(store).await?.collect(&prefix.join("/"), options).await }.await {
        Ok(stores) => {
            stores.iter().for_each(|(name, collection)| print(name, collection, options.dry_run));
            true
        }
        Err(error) => {
            ui::error(&format!(
                "failed to delete unused cache data of the runner {:?}: {}",
                runner.name,
                error_chain(&error)
            ));
            false
        }
    }
}

/// Deletes unused data in a store on this machine, unless its last collection is too recent. Returns false if the
/// collection failed.
///
/// `only_own` skips the stores of other users.
fn collect_directory(store: &Store, options: CollectOptions, only_own: bool) -> bool {
    let owner = store.root().symlink_metadata().map(|found| found.uid());
    if only_own && owner.is_ok_and(|owner| owner != rustix::process::geteuid().as_raw()) {
        return true;
    }
    let age = store.last_collection().and_then(|last| options.now.duration_since(last).ok());
    if options.min_interval.zip(age).is_some_and(|(interval, age)| age < interval) {
        return true;
    }
    let collected = match options.dry_run {
        true => store.plan(options.now, options.grace, options.max_age).map(|(_, collection)| collection),
        false => store.collect(options.now, options.grace, options.max_age),
    };
    match collected {
        Ok(collection) => {
            print(&store.root().display().to_string(), &collection, options.dry_run);
            true
        }
        Err(error) => {
            let root = store.root().display();
            ui::error(&format!("failed to delete unused cache data in {root}: {}", error_chain(&error)));
            false
        }
    }
}

fn print(store: &str, collection: &Collection, is_dry: bool) {
    let (deleted, bytes) = collection.deleted;
    let verb = if is_dry { "would be deleted" } else { "were deleted" };
    ui::outln(&format!(
        "{store}: {deleted} objects with {bytes} bytes {verb}, {} are marked, {} with {} bytes are in use; {} caches {verb} because of \
         their age",
        collection.marked, collection.used.0, collection.used.1, collection.expired
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_runners_with_the_same_directory_are_combined() {
        let hours = |count: u64| Duration::from_secs(count * 3600);
        let options = |grace, max_age: Option<u64>, interval| CollectOptions {
            now: SystemTime::UNIX_EPOCH,
            grace: hours(grace),
            max_age: max_age.map(hours),
            min_interval: Some(hours(interval)),
            dry_run: false,
        };
        let shared = |first, second| {
            let found = shared_options(first, second);
            (found.grace, found.max_age, found.min_interval)
        };
        let (long, short, unlimited) = (options(24, Some(720), 24), options(2, Some(48), 1), options(2, None, 1));
        assert_eq!(shared(long, short), (hours(24), Some(hours(720)), Some(hours(1))));
        assert_eq!(shared(short, long), shared(long, short));
        assert_eq!(shared(long, unlimited).1, None, "without a maximum age, no cache may be deleted");
    }
}
