//! Runs work of a step that blocks its thread, such as reading and writing files.

use std::time::Duration;

use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use tokio::time::timeout;

/// Maximum time for work to end after a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Receiver of the warning that work was abandoned.
pub(crate) trait ReportAbandoned {
    /// Prints the warning `line`, which names the work.
    fn abandoned(&self, line: &str);
}

/// Runs work that blocks its thread in a separate thread. Long work must check `stop` often.
///
/// After a stop, the work has five seconds to end. Then its thread is abandoned, with a warning that begins with `description`. A system
/// call that hangs thus does not keep the job from ending.
///
/// # Errors
/// The error of the work, [`Failure::Stopped`] if it was abandoned, or [`Failure::System`] if it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    report: &(impl ReportAbandoned + Sync + ?Sized),
    description: &str,
    stop: &StopToken,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let mut work = tokio::task::spawn_blocking(work);
    let done = tokio::select! {
        biased;
        done = &mut work => done,
        cause = stop.stopped() => match timeout(STOP_TIMEOUT, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                let seconds = STOP_TIMEOUT.as_secs();
                report.abandoned(&format!("{description} did not end within {seconds} s after the stop and was abandoned"));
                return Err(Failure::Stopped(cause));
            }
        },
    };
    done.unwrap_or_else(|error| Err(Failure::System(format!("a built-in step panicked: {error}"))))
}
