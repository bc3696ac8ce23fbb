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
use muster_config::settings::{CacheStoreSettings, ChunkGcSettings, RunnerSettings};
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
    let mut roots: Vec<_> = args.directories.iter().map(|directory| (directory.clone(), options)).collect();
    if roots.is_empty() {
        let settings = muster_config::settings(&args.config.load()?, &SettingsContext::default());
        let runners = settings.runners.iter();
        let runners: Vec<(&RunnerSettings, CollectOptions)> =
            runners.filter_map(|runner| Some((&**runner, options_of(args.due, runner, options)?))).collect();
        for (runner, store, prefix, options) in object_stores(&runners) {
            is_complete &= collect_objects(runner, store, &prefix, options).await;
        }
        let root = |runner: &RunnerSettings| runner.cache_dir.clone().unwrap_or_else(|| PathBuf::from("cache"));
        roots.extend(runners.into_iter().map(|(runner, options)| (root(runner), options)));
    }
    for (store, options) in directory_stores(roots) {
        is_complete &= collect_directory(&store, options, args.due);
    }
    Ok(is_complete)
}

/// Returns the object store of each runner, the prefix of its objects, and the options. Runners that share the objects
/// have the same options.
fn object_stores<'a>(
    runners: &[(&'a RunnerSettings, CollectOptions)],
) -> Vec<(&'a RunnerSettings, &'a CacheStoreSettings, String, CollectOptions)> {
    let mut shared = BTreeMap::new();
    let mut stores = Vec::new();
    for (runner, options) in runners {
        if let Some(store) = &runner.cache.store {
            let (bucket, prefix) = (bucket(store), object_prefix(runner));
            add_options(&mut shared, (bucket.clone(), prefix.clone()), *options);
            stores.push((*runner, store, bucket, prefix));
        }
    }
    let with_options = |(runner, store, bucket, prefix): (_, _, _, String)| {
        let options = shared.get(&(bucket, prefix.clone()))?;
        Some((runner, store, prefix, *options))
    };
    stores.into_iter().filter_map(with_options).collect()
}

/// Returns the stores below the directories. A store below several directories, or below a directory that several runners
/// share, has the combined options.
fn directory_stores(directories: Vec<(PathBuf, CollectOptions)>) -> Vec<(Store, CollectOptions)> {
    let mut roots = BTreeMap::new();
    for (root, options) in directories {
        add_options(&mut roots, root, options);
    }
    let (mut stores, mut shared) = (BTreeMap::new(), BTreeMap::new());
    for (root, options) in roots {
        for store in stores_below(&root) {
            let path = store.root().canonicalize().unwrap_or_else(|_| store.root().to_owned());
            add_options(&mut shared, path.clone(), options);
            stores.entry(path).or_insert(store);
        }
    }
    // Both maps have the same keys.
    stores.into_values().zip(shared.into_values()).collect()
}

/// Returns the kind of an object store, its server, and its bucket.
fn bucket(store: &CacheStoreSettings) -> (&'static str, Option<String>, String) {
    match store {
        CacheStoreSettings::S3(s3) => ("s3", s3.server.clone(), s3.bucket.clone()),
        CacheStoreSettings::Gcs(gcs) => ("gcs", gcs.domain.clone(), gcs.bucket.clone()),
        CacheStoreSettings::Azure(azure) => {
            ("azure", azure.domain.clone(), format!("{}/{}", azure.account, azure.container))
        }
    }
}

fn add_options<K: Ord>(shared: &mut BTreeMap<K, CollectOptions>, key: K, options: CollectOptions) {
    shared.entry(key).and_modify(|shared| *shared = shared_options(*shared, options)).or_insert(options);
}

/// Returns the options for a store that two runners share. Nothing is deleted that the settings of one of them retain.
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

/// Returns the prefix of the names of a runner's chunk stores.
fn object_prefix(runner: &RunnerSettings) -> String {
    let mut prefix: Vec<String> = runner.cache.path.split('/').map(str::to_owned).collect();
    prefix.retain(|segment| !matches!(segment.as_str(), "" | "." | ".."));
    if !runner.cache.shared {
        prefix.extend(["runner".to_owned(), short_token(runner.token.expose())]);
    }
    prefix.join("/")
}

/// Deletes unused data in the chunk stores of a runner's object store. Returns false if a collection failed.
async fn collect_objects(
    runner: &RunnerSettings,
    store: &CacheStoreSettings,
    prefix: &str,
    options: CollectOptions,
) -> bool {
    match async { CacheStore::open(store).await?.collect(prefix, options).await }.await {
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
    use muster_config::settings::{S3AccessKey, S3Settings};
    use muster_job::Secret;

    use super::*;

    fn hours(count: u64) -> Duration {
        Duration::from_secs(count * 3600)
    }

    fn options(grace: u64, max_age: Option<u64>, interval: u64) -> CollectOptions {
        CollectOptions {
            now: SystemTime::UNIX_EPOCH,
            grace: hours(grace),
            max_age: max_age.map(hours),
            min_interval: Some(hours(interval)),
            dry_run: false,
        }
    }

    #[test]
    fn runners_share_options_if_they_share_the_objects_of_a_bucket() {
        let runner = |path: &str, shared, server: Option<&str>, user: &str| {
            let mut runner = RunnerSettings::new("http://127.0.0.1:1".parse().unwrap(), Secret::new("t"), 0);
            let key = S3AccessKey { id: Secret::new(user), secret: Secret::new("s"), session: None };
            let (bucket, server) = ("bucket".to_owned(), server.map(str::to_owned));
            let settings = S3Settings { bucket, server, access_key: Some(key), ..S3Settings::default() };
            runner.cache.store = Some(CacheStoreSettings::S3(settings));
            (runner.cache.path, runner.cache.shared) = (path.to_owned(), shared);
            runner
        };
        let runners = [
            runner("a/b", true, None, "first"),
            runner("a//b/", true, None, "second"),
            runner("a", true, None, "first"),
            runner("a/b", false, None, "first"),
            runner("a/b", true, Some("minio.example"), "first"),
        ];
        let ages = [Some(48), Some(720), Some(48), Some(48), Some(48)].map(|max_age| options(2, max_age, 1));
        let found = object_stores(&runners.iter().zip(ages).collect::<Vec<_>>());
        let ages: Vec<_> = found.iter().map(|(_, _, prefix, options)| (prefix.as_str(), options.max_age)).collect();
        let [old, short] = [720, 48].map(|age| Some(hours(age)));
        assert_eq!(ages[..3], [("a/b", old), ("a/b", old), ("a", short)]);
        assert_eq!((ages[3].1, ages[4]), (short, ("a/b", short)));
    }

    #[test]
    fn store_below_the_directories_of_two_runners_has_the_options_of_both() {
        let home = tempfile::tempdir().unwrap();
        let [outer, inner] = ["outer", "outer/inner"].map(|name| home.path().join(name));
        for directory in [&outer, &inner] {
            std::fs::create_dir_all(directory.join(".chunks/protected/objects")).unwrap();
        }
        let (short, long) = (options(2, Some(48), 1), options(24, Some(720), 24));
        let found = directory_stores(vec![(outer.clone(), short), (inner.clone(), long)]);
        let mut ages: Vec<_> = found.iter().map(|(store, found)| (store.root().to_owned(), found.max_age)).collect();
        ages.sort();
        let store = |directory: &std::path::Path| directory.join(".chunks/protected");
        assert_eq!(ages, [(store(&outer), short.max_age), (store(&inner), long.max_age)]);
    }

    #[test]
    fn settings_of_runners_with_the_same_directory_are_combined() {
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
