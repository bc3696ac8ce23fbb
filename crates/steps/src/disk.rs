//! Limit of the disk space of a job's directories.
//!
//! The kernel has no such limit. Therefore the directories are measured during each step and at its end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_files::{DiskUsage, Unmeasured};
use muster_job::TerminationCause;
use tokio_util::sync::CancellationToken;

use crate::log::{Log, Stream};
use crate::stop::StopToken;
use crate::style;

/// Minimum pause between two measurements.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Ratio of the pause to the duration of a measurement. Measuring takes at most 5 % of a CPU.
const INTERVAL_RATIO: u32 = 20;
/// Permitted growth of directories that exceed the limit when a step starts. When a file system writes a file back, it
/// may allocate further blocks for the list of the file's extents.
const GROWTH_TOLERANCE_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Clone)]
pub(crate) struct DiskLimit {
    /// Maximum space in bytes of all directories together.
    pub(crate) bytes: u64,
    pub(crate) directories: Vec<PathBuf>,
    /// Whether the directories may exceed the limit when the step starts. If they do, they must not grow by more than
    /// [`GROWTH_TOLERANCE_BYTES`].
    pub(crate) may_start_above: bool,
}

/// Reason why a step does not comply with its disk limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The directories hold more than the limit.
    #[error(
        "the directories of the job hold more than {}, the disk limit of the runner's step policy; delete files that are not needed, or ask the \
         operator of the runner for a higher limit",
        size_text(*.0)
    )]
    Exceeded(u64),
    /// The step left something that cannot be measured.
    #[error(
        "the disk limit of the runner's step policy cannot be checked: {0}; delete the directory or make it readable at the end of the step"
    )]
    Unmeasured(String),
}

impl DiskLimit {
    /// Runs `work`, and stops it if the directories hold more than the limit. Returns the result of `work`, and why the
    /// limit is violated. `None` means that it is not.
    pub(crate) async fn enforce<T, E>(
        &self,
        stop: &StopToken,
        log: &Arc<dyn Log>,
        work: impl Future<Output = Result<T, E>>,
    ) -> (Result<T, E>, Option<DiskError>) {
        let mut allowed = self.bytes;
        if self.may_start_above {
            tokio::select! {
                biased;
                _ = stop.stopped() => {}
                usage = self.measure(u64::MAX) => {
                    if usage.bytes > self.bytes {
                        allowed = usage.bytes.saturating_add(GROWTH_TOLERANCE_BYTES);
                    }
                }
            }
        }
        let mut error = None;
        let watch = async {
            let exceeded = self.wait_until_exceeded(allowed).await;
            // If the job was stopped earlier, such as by its timeout, that stop is the reason.
            if stop.cause().is_none() {
                error = Some(exceeded);
            }
        };
        let result = stop.stop_on(watch, TerminationCause::ResourceExhausted, work).await;
        if result.is_ok() && error.is_none() {
            error = tokio::select! {
                biased;
                _ = stop.stopped() => None,
                error = self.check_at_end(allowed, log) => error,
            };
        }
        (result, error)
    }

    async fn wait_until_exceeded(&self, allowed: u64) -> DiskError {
        loop {
            let start = Instant::now();
            if self.measure(allowed).await.bytes > allowed {
                return DiskError::Exceeded(self.bytes);
            }
            tokio::time::sleep(MIN_INTERVAL.max(start.elapsed() * INTERVAL_RATIO)).await;
        }
    }

    /// Measures the directories after the work.
    ///
    /// An unreadable directory is an error only after the work, because a job may make directories unreadable for a
    /// while.
    async fn check_at_end(&self, allowed: u64, log: &Arc<dyn Log>) -> Option<DiskError> {
        let usage = self.measure(allowed).await;
        if usage.bytes > allowed {
            return Some(DiskError::Exceeded(self.bytes));
        }
        let Unmeasured { is_own, .. } = usage.unmeasured.as_ref()?;
        let message = usage.unmeasured.as_ref()?.to_string();
        if *is_own {
            return Some(DiskError::Unmeasured(message));
        }
        // The agent may lack permission for files of other users.
        log.write(Stream::Runner, style::warning(&format!("{message}; the disk limit does not include it")).as_bytes());
        None
    }

    /// Measures the directories until the size exceeds `limit`. Cancel-safe.
    async fn measure(&self, limit: u64) -> DiskUsage {
        let token = CancellationToken::new();
        let _stops_thread = token.clone().drop_guard();
        let directories = self.directories.clone();
        let measured = tokio::task::spawn_blocking(move || {
            let mut usage = DiskUsage::default();
            for directory in &directories {
                usage.add(directory, limit, &|| token.is_cancelled());
            }
            usage
        });
        measured.await.unwrap_or_else(|error| {
            tracing::error!(%error, "failed to measure the directories of a job");
            DiskUsage::default()
        })
    }
}

/// Returns a number of bytes in the largest unit that needs no fraction.
fn size_text(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} bytes"), |(shift, name)| format!("{} {name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_has_the_largest_unit_without_a_fraction() {
        let texts = [10 << 30, 1536 << 20, 3 << 10, 1000].map(size_text);
        assert_eq!(texts, ["10 GiB", "1536 MiB", "3 KiB", "1000 bytes"]);
    }

    struct NoLog;

    impl Log for NoLog {
        fn write(&self, _: Stream, _: &[u8]) {}
    }

    #[tokio::test]
    async fn step_that_exceeds_the_limit_after_another_stop_ends_for_the_reason_of_that_stop() {
        let dir = tempfile::tempdir().unwrap();
        let limit = DiskLimit { bytes: 1000, directories: vec![dir.path().to_owned()], may_start_above: false };
        let (stop, measured) = (StopToken::new(), CancellationToken::new());
        let work = async {
            stop.stop(TerminationCause::TimedOut);
            std::fs::write(dir.path().join("late"), vec![1; 100_000]).unwrap();
            measured.cancelled().await;
            Err::<(), _>("stopped")
        };
        let log: Arc<dyn Log> = Arc::new(NoLog);
        let ended = limit.enforce(&stop, &log, work);
        let measure = async {
            assert_eq!(limit.wait_until_exceeded(1000).await, DiskError::Exceeded(1000));
            measured.cancel();
        };
        let (ended, ()) = tokio::join!(ended, measure);
        assert_eq!(ended, (Err("stopped"), None));
    }
}
