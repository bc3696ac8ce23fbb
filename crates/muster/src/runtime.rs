//! The asynchronous runtime of a subcommand.

use std::process::ExitCode;

/// Runs a subcommand to its end. A system that has no threads to give is reported, not a panic.
pub(crate) fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
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
