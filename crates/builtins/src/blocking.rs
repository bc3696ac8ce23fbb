//! Runs work of a step that blocks its thread, such as reading and writing files.

use std::time::Duration;

use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use tokio::time::timeout;

/// Time after a stop until running work is abandoned.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) trait ReportAbandoned {
    /// Prints a warning about the abandoned work.
    fn warn_about_abandoned_work(&self, line: &str);
}

/// Runs blocking work in a separate thread. Long work must check `stop` often.
///
/// After a stop, work that hangs is abandoned after five seconds, with a warning that begins with `description`.
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
                let line = format!("{description} did not end within {seconds} s after the stop and was abandoned");
                report.warn_about_abandoned_work(&line);
                return Err(Failure::Stopped(cause));
            }
        },
    };
    done.unwrap_or_else(|error| Err(Failure::System(format!("a built-in step panicked: {error}"))))
}
