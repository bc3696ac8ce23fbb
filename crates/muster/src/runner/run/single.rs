//! `run-single`: a manager of one runner, which its flags describe, or an entry of a file. One job at a time; it ends after
//! so many jobs, or so long without one.
//!
//! What it does and how is as with `run`, but for this: its agent does not outlive it, since it may be the last to run here.
//! Jobs that ran when it was killed are reported by the next start of the same runner.

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
use super::{Host, RunError, Work, absolute, manage, problems, state_dir};
use crate::config_file::{ConfigArg, ConfigError};
use crate::flags::{self, go_int};
use crate::paths;
use crate::runner::entry::{EntryFlags, TemplateError, entries, merge};

/// Processes that work for one runner in one place, each with a state of its own.
const PROCESSES_MAX: usize = 256;

/// Arguments of `run-single`.
#[derive(Debug, clap::Args)]
#[command(after_help = "`--help` lists all flags, also those of the executors; `-h` the common ones.")]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Take what the flags do not say from the entry of this name in the configuration file.
    #[arg(short, long, value_name = "NAME")]
    runner: Option<String>,
    /// Jobs to run before it ends; 0 for as many as there are.
    #[arg(long, value_name = "NUMBER", value_parser = go_int, default_value = "0", allow_hyphen_values = true)]
    max_builds: i64,
    /// Seconds to wait for a job before it ends; 0 for ever.
    #[arg(long, value_name = "SECONDS", value_parser = go_int, default_value = "0", allow_hyphen_values = true)]
    wait_timeout: i64,
    /// Seconds that an abort of the job may take, after a signal.
    #[arg(long, value_name = "SECONDS", value_parser = go_int, default_value = "30", allow_hyphen_values = true)]
    shutdown_timeout: i64,
    /// Directory of this manager's state. By default one of its own for each runner, below /var/lib/muster for root, else
    /// below the user's state directory.
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR", value_parser = flags::path())]
    state_dir: Option<std::path::PathBuf>,
    #[command(flatten)]
    entry: EntryFlags,
}

/// Why there is no runner.
#[derive(Debug, thiserror::Error)]
enum SingleError {
    #[error("Missing {0}")]
    Missing(&'static str),
    #[error("no runner of {} is called `{name}`; `gitlab-runner list` shows what there is", path.display())]
    NoRunner { path: std::path::PathBuf, name: String },
    #[error("the runner cannot work: mend what is told above")]
    Unusable,
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Entry(#[from] TemplateError),
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Runs the command.
pub(in crate::runner) fn run(args: &Args) -> ExitCode {
    let open_files = crate::open_files::raise();
    crate::runtime::block_on_one_thread(async {
        match work(args, open_files).await {
            Ok(code) => code,
            Err(error) => crate::runner::error::ended(Err(error)),
        }
    })
}

async fn work(args: &Args, open_files: Option<u64>) -> Result<ExitCode, SingleError> {
    let signals = Signals::watch().map_err(RunError::Signals)?;
    let settings = settings(args)?;
    let Some(runner) = settings.runners.first() else { return Err(SingleError::Unusable) };
    let token = muster_job::short_token(runner.token.expose());
    tracing::info!(max_builds = args.max_builds, "Starting runner for {} with token {token} ...", runner.url);
    let (state_dir, store) = open(args, &format!("{} {}", runner.url, runner.token.expose())).await?;
    let positive = |number: i64| NonZeroI64::new(number.max(0)).map(|number| number.get().unsigned_abs());
    let quota = RunLimits {
        jobs: positive(args.max_builds).map(|jobs| usize::try_from(jobs).unwrap_or(usize::MAX)),
        idle: positive(args.wait_timeout).map(|seconds| Duration::from_secs(seconds).min(MAX_WAIT)),
    };
    let exit_with_pid = i32::try_from(std::process::id()).ok();
    let host = Host { state_dir, user: None, exit_with_pid, open_files };
    Ok(manage(Work { settings, source: None, store, host, quota }, signals).await?)
}

/// The one runner, as a configuration of its own: what holds for `config.toml` holds for flags.
fn settings(args: &Args) -> Result<Settings, SingleError> {
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
    problems::tell(&loaded.problems, Path::new("run-single"));
    let around = SettingsContext {
        system_id: args.config.system_id(),
        user: None,
        certificates: Some(paths::certificates()),
        default_shell: None,
        find_plugin: None,
    };
    match loaded.config.as_ref().filter(|_| !loaded.has(Severity::Error)) {
        Some(config) => Ok(config::settings(config, &around)),
        None => Err(SingleError::Unusable),
    }
}

/// What the flags say, and else the named entry of the file.
fn entry(args: &Args, path: &Path) -> Result<Table, SingleError> {
    let mut entry = args.entry.table.clone();
    if let Some(name) = args.runner.as_ref().filter(|name| !name.is_empty()) {
        let runners = args.config.load()?.runners;
        let found = runners.iter().find(|runner| runner.name == *name).map(|runner| runner.index);
        let found =
            found.and_then(|index| entries(path).map(|all| all.into_iter().nth(index)).transpose()).transpose()?;
        let none = || SingleError::NoRunner { path: path.to_owned(), name: name.clone() };
        merge(&mut entry, &found.ok_or_else(none)?, "runners");
    }
    Ok(entry)
}

/// The state of this runner; of several processes that work for it each has its own, and a later start finds what an
/// earlier one left.
async fn open(args: &Args, runner: &str) -> Result<(std::path::PathBuf, Store), RunError> {
    let first = match flags::filled(&args.state_dir) {
        Some(path) => absolute(&path)?,
        None => state_dir::of_runner(runner).ok_or(RunError::NoStateDir)?,
    };
    for number in 1..=PROCESSES_MAX {
        let mut place = first.clone();
        if number > 1 {
            let name = first.file_name().unwrap_or_default().to_string_lossy();
            place.set_file_name(format!("{name}-{number}"));
        }
        match Store::open(&place).await {
            Err(StoreError::InUse(_)) if number < PROCESSES_MAX => {}
            opened => return Ok((place, opened?)),
        }
    }
    Err(StoreError::InUse(first).into())
}
