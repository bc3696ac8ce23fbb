//! `run-single`: runs the manager of one runner from flags or from an entry of a file, one job at a time.
//!
//! The agent exits together with the manager, because there may be no next start. If the manager is killed, the next
//! start of the same runner reports the jobs that were running.

use std::num::NonZeroI64;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use muster_config::settings::{MAX_WAIT, Settings};
use muster_config::{self as config, HostFacts, SettingsContext, Severity};
use muster_manager::RunLimits;
use muster_manager::store::{Store, StoreError};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table};

use super::signals::Signals;
use super::{HostSettings, ManagerParts, RunError, absolute, manage, problems, state_dir};
use crate::config_file::{ConfigArg, ConfigError};
use crate::flags::{self, go_int};
use crate::paths;
use crate::runner::entry::{EntryFlags, TemplateError, merge, read_entries};

/// Maximum number of processes for one runner. Each has its own state directory.
const MAX_PROCESSES: usize = 256;

/// Arguments of `gitlab-runner run-single`.
#[derive(Debug, clap::Args)]
#[command(after_help = "`--help` lists all flags, including those of executors; `-h` lists the common flags.")]
pub(crate) struct RunSingleArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Use the entry of this name in the configuration file for settings that the flags do not set.
    #[arg(short, long, value_name = "NAME")]
    runner: Option<String>,
    /// Number of jobs to run before exiting; 0 means no limit.
    #[arg(long, value_name = "NUMBER", value_parser = go_int, default_value = "0", allow_hyphen_values = true)]
    max_builds: i64,
    /// Seconds to wait for a job before exiting; 0 means no limit.
    #[arg(long, value_name = "SECONDS", value_parser = go_int, default_value = "0", allow_hyphen_values = true)]
    wait_timeout: i64,
    /// Seconds for canceling the job after a signal.
    #[arg(long, value_name = "SECONDS", value_parser = go_int, default_value = "30", allow_hyphen_values = true)]
    shutdown_timeout: i64,
    /// State directory of the manager. By default, each runner has its own, in /var/lib/muster for root, or else in the user's state
    /// directory.
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR", value_parser = flags::path())]
    state_dir: Option<std::path::PathBuf>,
    #[command(flatten)]
    entry: EntryFlags,
}

#[derive(Debug, thiserror::Error)]
enum SingleError {
    #[error("Missing {0}")]
    Missing(&'static str),
    #[error("{} has no runner `{name}`; run `gitlab-runner list` to see all runners", path.display())]
    NoRunner { path: std::path::PathBuf, name: String },
    #[error("invalid runner; fix the errors above")]
    Unusable,
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Entry(#[from] TemplateError),
    #[error(transparent)]
    Run(#[from] RunError),
}

pub(in crate::runner) fn run(args: &RunSingleArgs) -> ExitCode {
    let open_files = crate::open_files::raise();
    crate::runtime::block_on_one_thread(async {
        match start(args, open_files).await {
            Ok(code) => code,
            Err(error) => crate::runner::error::exit_code(Err(error)),
        }
    })
}

async fn start(args: &RunSingleArgs, open_files: Option<u64>) -> Result<ExitCode, SingleError> {
    let signals = Signals::watch().map_err(RunError::Signals)?;
    let settings = settings(args)?;
    let Some(runner) = settings.runners.first() else { return Err(SingleError::Unusable) };
    let token = muster_job::short_token(runner.token.expose());
    let url = muster_job::without_user_info(runner.url.as_str());
    tracing::info!(max_builds = args.max_builds, "Starting runner for {url} with token {token} ...");
    let (state_dir, store) = open_store(args, &format!("{} {}", runner.url, runner.token.expose())).await?;
    let positive = |number: i64| NonZeroI64::new(number.max(0)).map(|number| number.get().unsigned_abs());
    let run_limits = RunLimits {
        jobs: positive(args.max_builds).map(|jobs| usize::try_from(jobs).unwrap_or(usize::MAX)),
        idle: positive(args.wait_timeout).map(|seconds| Duration::from_secs(seconds).min(MAX_WAIT)),
    };
    let exit_with_pid = i32::try_from(std::process::id()).ok();
    let host = HostSettings { state_dir, user: None, exit_with_pid, open_files };
    Ok(manage(ManagerParts { settings, source: None, store, host, run_limits }, signals).await?)
}

/// Parses the entry as part of a whole configuration, so that the checks of `config.toml` apply.
fn settings(args: &RunSingleArgs) -> Result<Settings, SingleError> {
    let path = args.config.path();
    let entry = entry(args, &path)?;
    for (key, name) in [("url", "URL"), ("token", "Token"), ("executor", "Executor")] {
        if entry.get(key).and_then(Item::as_str).is_none_or(str::is_empty) {
            return Err(SingleError::Missing(name));
        }
    }
    let mut document = DocumentMut::new();
    document.insert("concurrent", toml_edit::value(1));
    let shutdown = if args.shutdown_timeout > 0 { args.shutdown_timeout } else { 30 };
    document.insert("shutdown_timeout", toml_edit::value(shutdown));
    let mut runners = ArrayOfTables::new();
    runners.push(entry);
    document.insert("runners", Item::ArrayOfTables(runners));
    let loaded = config::parse(&document.to_string(), &HostFacts::of(&path));
    problems::log(&loaded.problems, Path::new("run-single"));
    let context = SettingsContext {
        system_id: args.config.system_id(),
        user: None,
        certificates: Some(paths::certificates()),
        default_shell: None,
        find_plugin: None,
    };
    match loaded.config.as_ref().filter(|_| !loaded.has(Severity::Error)) {
        Some(config) => Ok(config::settings(config, &context)),
        None => Err(SingleError::Unusable),
    }
}

/// Returns the entry from the flags, completed by the named entry of the file.
fn entry(args: &RunSingleArgs, path: &Path) -> Result<Table, SingleError> {
    let mut entry = args.entry.table.clone();
    if let Some(name) = args.runner.as_ref().filter(|name| !name.is_empty()) {
        let runners = args.config.load()?.runners;
        let found = runners.iter().find(|runner| runner.name == *name).map(|runner| runner.index);
        let found =
            found.and_then(|index| read_entries(path).map(|all| all.into_iter().nth(index)).transpose()).transpose()?;
        let no_runner = || SingleError::NoRunner { path: path.to_owned(), name: name.clone() };
        merge(&mut entry, &found.ok_or_else(no_runner)?, "runners");
    }
    Ok(entry)
}

/// Opens the first state directory of this runner that no other process uses.
///
/// The fixed order lets a later start find the state of an earlier process.
async fn open_store(args: &RunSingleArgs, runner: &str) -> Result<(std::path::PathBuf, Store), RunError> {
    let first = match flags::non_empty(&args.state_dir) {
        Some(path) => absolute(&path)?,
        None => state_dir::for_runner(runner).ok_or(RunError::NoStateDir)?,
    };
    for number in 1..=MAX_PROCESSES {
        let mut directory = first.clone();
        if number > 1 {
            let name = first.file_name().unwrap_or_default().to_string_lossy();
            directory.set_file_name(format!("{name}-{number}"));
        }
        match Store::open(&directory).await {
            Err(StoreError::InUse(_)) if number < MAX_PROCESSES => {}
            opened => return Ok((directory, opened?)),
        }
    }
    Err(StoreError::InUse(first).into())
}
