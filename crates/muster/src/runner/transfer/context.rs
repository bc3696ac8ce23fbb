use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use muster_archive::Limits;
use muster_builtins::{Extraction, LimitsFrom, MessageLevel, Meter, TransferContext};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use super::{MeterArgs, TransferError, meter};

/// Context of a command that runs in the project directory.
pub(super) struct CommandContext {
    root: PathBuf,
    staging: PathBuf,
    meter_interval: Duration,
    limits: Limits,
}

impl CommandContext {
    /// Temporary archives are written to `staging`, or else to the system's temporary directory.
    pub(super) fn new(staging: Option<&Path>, meter: &MeterArgs, limits: Limits) -> Result<Self, TransferError> {
        let root = std::env::current_dir().map_err(TransferError::WorkingDirectory)?;
        let staging = staging.filter(|path| !path.as_os_str().is_empty());
        let staging = staging.map_or_else(std::env::temp_dir, Path::to_owned);
        Ok(Self { root, staging, meter_interval: meter.transfer_meter_frequency, limits })
    }
}

#[async_trait::async_trait]
impl TransferContext for CommandContext {
    fn root(&self) -> &Path {
        &self.root
    }

    fn extraction(&self) -> Extraction {
        Extraction { limits: self.limits, limits_from: LimitsFrom::Flags, ..Extraction::new(self.root.clone()) }
    }

    fn staging(&self) -> &Path {
        &self.staging
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        std::env::vars_os().collect()
    }

    fn report(&self, level: MessageLevel, line: &str) {
        match level {
            MessageLevel::Plain | MessageLevel::Notice => tracing::info!("{line}"),
            MessageLevel::Warning => tracing::warn!("{line}"),
            MessageLevel::Error => tracing::error!("{line}"),
        }
    }

    fn meter(&self, label: &str, total: Option<u64>) -> Meter {
        if self.meter_interval.is_zero() {
            return Box::new(|_| {});
        }
        let mut progress = meter::TransferProgress::start(label, total, self.meter_interval);
        Box::new(move |bytes| progress.add(bytes))
    }

    async fn git(&self, args: &[&str], out: Arc<File>, stop: &StopToken) -> Result<bool, Failure> {
        let git_error = || Failure::io("failed to run git");
        let out = out.try_clone().map_err(git_error())?;
        let mut command = tokio::process::Command::new("git");
        command.args(args).current_dir(&self.root).stdin(Stdio::null()).stdout(out).kill_on_drop(true);
        let mut git = match command.spawn() {
            Ok(git) => git,
            Err(error) => {
                tracing::warn!(%error, "failed to start git");
                return Ok(false);
            }
        };
        tokio::select! {
            cause = stop.stopped() => Err(Failure::Stopped(cause)),
            status = git.wait() => Ok(status.map_err(git_error())?.success()),
        }
    }
}
