//! Asynchronous runtime of a command.

use std::pin::Pin;
use std::process::ExitCode;

use tokio::runtime::Builder;

const MAX_THREADS: usize = 8;

/// Runs `work` on this thread, and spawned tasks on worker threads.
///
/// There is one worker thread for every two processors, within limits, because jobs need the other processors.
pub(crate) fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads((processors / 2).clamp(1, MAX_THREADS));
    run(builder, Box::pin(work))
}

/// Runs a command on this thread alone.
///
/// For programs that mostly forward messages: waking a second thread for each message costs more than processing it.
pub(crate) fn block_on_one_thread(work: impl Future<Output = ExitCode>) -> ExitCode {
    run(Builder::new_current_thread(), Box::pin(work))
}

/// Runs a command. The future is a trait object, so that the runtime's code is compiled once and not for each command.
fn run(mut builder: Builder, work: Pin<Box<dyn Future<Output = ExitCode> + '_>>) -> ExitCode {
    match builder.enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(work);
            // Do not wait for blocking tasks: state on disk stays consistent even after a crash.
            runtime.shutdown_background();
            code
        }
        Err(error) => {
            tracing::error!(%error, "failed to start the asynchronous runtime");
            ExitCode::FAILURE
        }
    }
}
