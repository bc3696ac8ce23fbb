//! Commands that transfer files for jobs. gitlab-runner and scripts call them. Muster does not: its agent transfers the
//! files of a job itself.
//!
//! The working directory is the project directory.

mod artifacts;
mod cache;
mod context;
mod envfile;
mod meter;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use muster_builtins::Level;
use muster_builtins::artifacts::ArtifactEndpoint;
use muster_job::{JobId, TerminationCause};
use muster_runner_api::client::{Client, TlsFiles};
use muster_steps::stop::StopToken;
use tokio::signal::unix::{SignalKind, signal};
use url::Url;

use crate::flags::{go_bool, go_duration, go_int, path};
use crate::paths;

pub(super) use artifacts::{ArtifactsDownloadArgs, ArtifactsUploadArgs, download, upload};
pub(super) use cache::{CacheArchiveArgs, CacheExtractArgs, archive, extract};

/// Flags that identify the job.
#[derive(Debug, clap::Args)]
struct JobArgs {
    /// ID of the job.
    #[arg(long, env = "CI_JOB_ID", hide_env_values = true, value_parser = go_int, allow_hyphen_values = true)]
    #[arg(default_value = "0", hide_default_value = true)]
    id: i64,
    /// Token of the job.
    #[arg(long, env = "CI_JOB_TOKEN", hide_env_values = true, default_value = "", hide_default_value = true)]
    token: String,
    /// URL of the coordinator.
    #[arg(long, env = "CI_SERVER_URL", hide_env_values = true, default_value = "", hide_default_value = true)]
    url: String,
    #[command(flatten)]
    tls: super::tls::TlsArgs,
}

/// Flags that select files.
#[derive(Debug, clap::Args)]
struct FileArgs {
    /// Pattern of files to include, relative to the working directory. Can be repeated.
    #[arg(long = "path", value_name = "PATTERN", allow_hyphen_values = true)]
    paths: Vec<String>,
    /// Pattern of files to exclude. Can be repeated.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    exclude: Vec<String>,
    /// Also include files that git does not track.
    #[arg(long, value_parser = go_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(default_value = "false", hide_default_value = true, value_name = "BOOL")]
    untracked: bool,
    /// Has no effect; output is always verbose.
    #[arg(long, value_parser = go_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(default_value = "false", hide = true, value_name = "BOOL")]
    verbose: bool,
}

/// Flags for retries.
#[derive(Debug, clap::Args)]
struct RetryArgs {
    /// Number of retries.
    #[arg(long, value_name = "NUMBER", value_parser = go_int, default_value = "2", allow_hyphen_values = true)]
    retry: i64,
    /// Delay before each retry.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, default_value = "1s")]
    retry_time: Duration,
}

impl RetryArgs {
    fn retries(&self) -> u32 {
        u32::try_from(self.retry.max(0)).unwrap_or(u32::MAX)
    }
}

/// Flags for progress output.
#[derive(Debug, clap::Args)]
struct MeterArgs {
    /// Interval for showing the progress on standard output, at least one second; 0 shows none.
    #[arg(long, env = "TRANSFER_METER_FREQUENCY", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = duration_or_zero, default_value = "0s")]
    transfer_meter_frequency: Duration,
}

#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error("{0}")]
    Usage(String),
    #[error("failed to determine the working directory")]
    WorkingDirectory(#[source] std::io::Error),
    #[error("failed to install a signal handler")]
    Signals(#[source] std::io::Error),
    #[error("failed to read {}", path.display())]
    EnvFile { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Failure(#[from] muster_steps::failure::Failure),
    #[error(transparent)]
    Remote(#[from] muster_builtins::cache::remote::RemoteError),
}

impl JobArgs {
    fn artifact_endpoint(&self) -> Result<ArtifactEndpoint, TransferError> {
        let url =
            Url::parse(&self.url).map_err(|error| TransferError::Usage(format!("--url {}: {error}", self.url)))?;
        let tls = TlsFiles::from(&self.tls).or_from(&paths::certificates(), url.host_str().unwrap_or_default());
        let client = Client::with_tls(&url, &tls).map_err(|error| TransferError::Usage(error.to_string()))?;
        Ok(ArtifactEndpoint { client, job: JobId(self.id), token: self.token.clone() })
    }
}

/// Parses a duration. An empty text, which is the value of an empty environment variable, means 0.
fn duration_or_zero(text: &str) -> Result<Duration, crate::flags::FlagError> {
    if text.is_empty() { Ok(Duration::ZERO) } else { go_duration(text) }
}

/// Logs a warning and returns the default if the name is unknown.
fn compression_level(name: &str) -> Level {
    Level::parse(name).unwrap_or_else(|| {
        tracing::warn!("compression level {name:?} is invalid, falling back to default");
        Level::Default
    })
}

/// Runs a command to its end. SIGTERM and SIGINT cancel the command cleanly, so that no partial archive remains.
fn run(work: impl AsyncFnOnce(&StopToken) -> Result<ExitCode, TransferError>) -> ExitCode {
    crate::runtime::block_on_one_thread(async {
        match run_until_signal(work).await {
            Ok(code) => code,
            Err(error) => super::error::exit_code(Err(error)),
        }
    })
}

async fn run_until_signal(
    work: impl AsyncFnOnce(&StopToken) -> Result<ExitCode, TransferError>,
) -> Result<ExitCode, TransferError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(TransferError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(TransferError::Signals)?;
    let stop = StopToken::new();
    let mut running = std::pin::pin!(work(&stop));
    tokio::select! {
        result = &mut running => return result,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.stop(TerminationCause::CanceledByUser);
    running.await
}
