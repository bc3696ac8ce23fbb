//! A running service of a job on this machine.

use std::collections::VecDeque;
use std::sync::Arc;

use muster_steps::log::{Log, Stream};
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Maximum number of bytes from the end of a service's output that a message quotes.
const MAX_OUTPUT_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct RunningService {
    pub(crate) title: String,
    pub(crate) stop: StopToken,
    pub(crate) output: Arc<Tail>,
    /// Reason why the process ended. `None` means that it is running.
    pub(crate) ended: watch::Receiver<Option<String>>,
    pub(crate) watcher: JoinHandle<()>,
    /// Whether a step has already reported the failure of the service.
    pub(crate) is_reported: bool,
}

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
    /// Appends the end of the output to a message.
    pub(crate) fn append_to(&self, message: &str) -> String {
        let bytes: Vec<u8> = self.0.lock().iter().copied().collect();
        match String::from_utf8_lossy(&bytes).trim() {
            "" => format!("{message}; it printed nothing"),
            output => format!("{message}; the end of its output:\n{output}"),
        }
    }
}

impl RunningService {
    /// Waits until the process has ended, and returns the reason why it ended. Cancel-safe.
    pub(crate) async fn wait_until_ended(&self) -> String {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| "it is no longer watched".to_owned())
    }
}
