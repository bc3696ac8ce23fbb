//! The asynchronous runtime of a subcommand.

use std::process::ExitCode;

use tokio::runtime::Builder;

/// The most threads of a runtime.
const THREADS_MAX: usize = 8;

/// Runs a subcommand to its end, `work` on this thread, and what it spawns on threads for half of the processors: the
/// other half is the jobs', and each further thread costs wake-ups. A system that has no threads to give is reported, not a
/// panic.
pub(crate) fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads((processors / 2).clamp(1, THREADS_MAX));
    run(builder, work)
}

/// The same on one thread: for a program that hands messages on and computes little, waking a second thread for each
/// of them costs more than the work itself.
pub(crate) fn block_on_one_thread(work: impl Future<Output = ExitCode>) -> ExitCode {
    run(Builder::new_current_thread(), work)
}

fn run(mut builder: Builder, work: impl Future<Output = ExitCode>) -> ExitCode {
    match builder.enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(work);
            // What still blocks a thread does not hold up the end: state on disk is always that of a crash (design 7).
            runtime.shutdown_background();
            code
        }
        Err(error) => {
            tracing::error!(%error, "cannot start the asynchronous runtime");
            ExitCode::FAILURE
        }
    }
}
