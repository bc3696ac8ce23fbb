//! The asynchronous runtime of a subcommand.

use std::process::ExitCode;

use tokio::runtime::Builder;

/// Runs a subcommand to its end. A system that has no threads to give is reported, not a panic.
pub(crate) fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    run(Builder::new_multi_thread(), work)
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
