//! `muster cache`: maintains the caches of jobs that are stored as chunks.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use muster_cache_store::{CacheStore, CollectOptions};
use muster_chunks::{Collection, directories};
use muster_config::SettingsContext;
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
    /// Time after which unused data is marked, and after which marked data is deleted. It must be longer than the longest job.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = flags::go_duration)]
    grace: Duration,
    /// Time after the last save at which a cache is deleted, such as 720h. Without it, no cache is deleted.
    #[arg(long, value_name = "TIME", value_parser = flags::go_duration)]
    max_age: Option<Duration>,
    /// Print what would be deleted, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Runs `muster cache`.
pub(crate) fn run(command: Command) -> ExitCode {
    let Command::Gc(args) = command;
    crate::logging::init_command(LOG);
    runtime::block_on(async move { crate::ci::exit_code(collect(&args).await) })
}

/// Collects all stores. Returns whether none failed.
async fn collect(args: &GcArgs) -> Result<bool, crate::config_file::ConfigError> {
    let now = SystemTime::now();
    let mut is_complete = true;
    let mut roots = args.directories.clone();
    if roots.is_empty() {
        let settings = muster_config::settings(&args.config.load()?, &SettingsContext::default());
        let options = CollectOptions { now, grace: args.grace, max_age: args.max_age, dry_run: args.dry_run };
        for runner in &settings.runners {
            roots.push(runner.cache_dir.clone().unwrap_or_else(|| PathBuf::from("cache")));
            let Some(store) = &runner.cache.store else { continue };
            let mut prefix: Vec<String> = runner.cache.path.split('/').map(str::to_owned).collect();
            prefix.retain(|segment| !matches!(segment.as_str(), "" | "." | ".."));
            if !runner.cache.shared {
                prefix.extend(["runner".to_owned(), short_token(runner.token.expose())]);
            }
            let collected = async { CacheStore::open(store).await?.collect(&prefix.join("/"), options).await };
            match collected.await {
                Ok(stores) => stores.iter().for_each(|(name, collection)| print(name, collection, args.dry_run)),
                Err(error) => {
                    let problem = format!(
                        "failed to collect the caches of the runner {:?}: {}",
                        runner.name,
                        error_chain(&error)
                    );
                    ui::error(&problem);
                    is_complete = false;
                }
            }
        }
    }
    roots.sort();
    roots.dedup();
    for store in roots.iter().flat_map(|root| directories(root)) {
        let collected = match args.dry_run {
            true => store.plan(now, args.grace).map(|(_, collection)| collection),
            false => store.collect(now, args.grace, args.max_age),
        };
        match collected {
            Ok(collection) => print(&store.root().display().to_string(), &collection, args.dry_run),
            Err(error) => {
                ui::error(&format!(
                    "failed to collect the caches in {}: {}",
                    store.root().display(),
                    error_chain(&error)
                ));
                is_complete = false;
            }
        }
    }
    Ok(is_complete)
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
