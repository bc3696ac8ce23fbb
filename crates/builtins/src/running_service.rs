//! A service of a job on this machine, and the end of its output.

use std::collections::VecDeque;
use std::sync::Arc;

use muster_steps::log::{Log, Stream};
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Maximum number of bytes of a service's output that are kept for a message about its failure.
const MAX_OUTPUT_BYTES: usize = 4096;

/// A service that was started.
#[derive(Debug)]
pub(crate) struct RunningService {
    pub(crate) title: String,
    pub(crate) stop: StopToken,
    pub(crate) output: Arc<Tail>,
    /// Description of how the process ended. `None` means that it is running.
    pub(crate) ended: watch::Receiver<Option<String>>,
    pub(crate) watcher: JoinHandle<()>,
    /// Whether the step that started the service has already reported that it failed.
    pub(crate) is_reported: bool,
}

/// End of the output of a service.
#[derive(Debug, Default)]
pub(crate) struct Tail(Mutex<VecDeque<u8>>);

impl Log for Tail {
    fn write(&self, _: Stream, bytes: &[u8]) {
        let mut tail = self.0.lock();
        tail.extend(bytes);
        let excess = tail.len().saturating_sub(MAX_OUTPUT_BYTES);
        tail.drain(..excess);
    }
}

impl Tail {
    /// Returns a message with the end of the output.
    pub(crate) fn after(&self, message: &str) -> String {
        let bytes: Vec<u8> = self.0.lock().iter().copied().collect();
        match String::from_utf8_lossy(&bytes).trim() {
            "" => format!("{message}; it printed nothing"),
            output => format!("{message}; the end of its output:\n{output}"),
        }
    }
}

impl RunningService {
    /// Waits until the process has ended. Returns a description of how it ended. Cancel-safe.
    pub(crate) async fn end(&self) -> String {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| "it is no longer watched".to_owned())
    }
}
