//! Runs work of a step that blocks its thread, such as reading and writing files.

use std::time::Duration;

use muster_steps::failure::Failure;
use muster_steps::stop::Stop;
use tokio::time::timeout;

/// Maximum time for work to end after a stop. Only a file system that does not respond takes longer.
const AFTER_STOP: Duration = Duration::from_secs(5);

/// Receiver of the warning that work was abandoned.
pub(crate) trait Report {
    /// Prints the warning `line`, which names the work.
    fn abandoned(&self, line: &str);
}

/// Runs work that blocks its thread in a separate thread. Long work must check `stop` often.
///
/// After a stop, the work has five seconds to end. Then its thread is abandoned, with a warning that begins with `doing`: a system call
/// that hangs must not keep a job from ending. When the call returns, the thread ends as soon as the work checks `stop`.
///
/// # Errors
/// The error of the work, [`Failure::Stopped`] if it was abandoned, or [`Failure::System`] if it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    report: &(impl Report + Sync + ?Sized),
    doing: &str,
    stop: &Stop,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let mut work = tokio::task::spawn_blocking(work);
    let done = tokio::select! {
        biased;
        done = &mut work => done,
        cause = stop.stopped() => match timeout(AFTER_STOP, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                let seconds = AFTER_STOP.as_secs();
                report.abandoned(&format!("{doing} did not end within {seconds} s after the stop, and is abandoned"));
                return Err(Failure::Stopped(cause));
            }
        },
    };
    done.unwrap_or_else(|error| Err(Failure::System(format!("a built-in step broke down: {error}"))))
}
