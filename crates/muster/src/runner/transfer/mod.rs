//! The commands that move files for jobs: `artifacts-uploader`, `artifacts-downloader`, `cache-archiver` and
//! `cache-extractor`. Muster's own jobs do not call them, scripts and foreign runners may: each is what the built-in step
//! does, with the working directory as the project.

mod artifacts;
mod cache;
mod envfile;
mod meter;
mod site;

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

pub(super) use artifacts::{DownloadArgs, UploadArgs, download, upload};
pub(super) use cache::{ArchiveArgs, ExtractArgs, archive, extract};

/// Whose artifacts.
#[derive(Debug, clap::Args)]
struct JobArgs {
    /// The job's id.
    #[arg(long, env = "CI_JOB_ID", hide_env_values = true, value_parser = go_int, allow_hyphen_values = true)]
    #[arg(default_value = "0", hide_default_value = true)]
    id: i64,
    /// The job's token.
    #[arg(long, env = "CI_JOB_TOKEN", hide_env_values = true, default_value = "", hide_default_value = true)]
    token: String,
    /// The coordinator.
    #[arg(long, env = "CI_SERVER_URL", hide_env_values = true, default_value = "", hide_default_value = true)]
    url: String,
    #[command(flatten)]
    tls: super::tls::TlsArgs,
}

/// Which files.
#[derive(Debug, clap::Args)]
struct FileArgs {
    /// A pattern of files, relative to the working directory; may be given again.
    #[arg(long = "path", value_name = "PATTERN", allow_hyphen_values = true)]
    paths: Vec<String>,
    /// A pattern of files to leave out; may be given again.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    exclude: Vec<String>,
    /// Also what git does not track.
    #[arg(long, value_parser = go_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(default_value = "false", hide_default_value = true, value_name = "BOOL")]
    untracked: bool,
    /// Without effect; what is done is always told.
    #[arg(long, value_parser = go_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(default_value = "false", hide = true, value_name = "BOOL")]
    verbose: bool,
}

/// How often to try.
#[derive(Debug, clap::Args)]
struct RetryArgs {
    /// How often to try again.
    #[arg(long, value_name = "NUMBER", value_parser = go_int, default_value = "2", allow_hyphen_values = true)]
    retry: i64,
    /// The wait before.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, default_value = "1s")]
    retry_time: Duration,
}

impl RetryArgs {
    fn retries(&self) -> u32 {
        u32::try_from(self.retry.max(0)).unwrap_or(u32::MAX)
    }
}

/// How to show what goes on.
#[derive(Debug, clap::Args)]
struct MeterArgs {
    /// Show on standard output how far a transfer is, so often; 0 for not at all, and never more often than each second.
    #[arg(long, env = "TRANSFER_METER_FREQUENCY", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = or_zero, default_value = "0s")]
    transfer_meter_frequency: Duration,
}

/// Why there is no transfer.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error("{0}")]
    Usage(String),
    #[error("cannot find the working directory")]
    WorkingDirectory(#[source] std::io::Error),
    #[error("cannot watch for signals")]
    Signals(#[source] std::io::Error),
    #[error("cannot read {}", path.display())]
    EnvFile { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Failure(#[from] muster_steps::failure::Failure),
    #[error(transparent)]
    Remote(#[from] muster_builtins::cache::remote::RemoteError),
}

impl JobArgs {
    /// The job's artifacts at its coordinator.
    fn door(&self) -> Result<ArtifactEndpoint, TransferError> {
        let url =
            Url::parse(&self.url).map_err(|error| TransferError::Usage(format!("--url {}: {error}", self.url)))?;
        let tls = TlsFiles::from(&self.tls).or_from(&paths::certificates(), url.host_str().unwrap_or_default());
        let client = Client::with_tls(&url, &tls).map_err(|error| TransferError::Usage(error.to_string()))?;
        Ok(ArtifactEndpoint { client, job: JobId(self.id), token: self.token.clone() })
    }
}

/// An empty variable of the environment is as good as none.
fn or_zero(text: &str) -> Result<Duration, String> {
    if text.is_empty() { Ok(Duration::ZERO) } else { go_duration(text) }
}

/// The level of a name; one that is none is told of.
fn level(name: &str) -> Level {
    Level::known(name).unwrap_or_else(|| {
        tracing::warn!("compression level {name:?} is invalid, falling back to default");
        Level::Default
    })
}

/// Does the work of a command; SIGTERM and SIGINT end it in order, so that no half archive stays behind.
fn run(work: impl AsyncFnOnce(&StopToken) -> Result<ExitCode, TransferError>) -> ExitCode {
    crate::runtime::block_on_one_thread(async {
        match stoppable(work).await {
            Ok(code) => code,
            Err(error) => super::error::ended(Err(error)),
        }
    })
}

async fn stoppable(
    work: impl AsyncFnOnce(&StopToken) -> Result<ExitCode, TransferError>,
) -> Result<ExitCode, TransferError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(TransferError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(TransferError::Signals)?;
    let stop = StopToken::new();
    let mut working = std::pin::pin!(work(&stop));
    tokio::select! {
        ended = &mut working => return ended,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.stop(TerminationCause::CanceledByUser);
    working.await
}
