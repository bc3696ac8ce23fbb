//! Output of the build container: first of the image's entrypoint, for the job's log, and then of the agent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error as ApiError;
use bollard::query_parameters::AttachContainerOptions;
use futures::{Stream as FutureStream, StreamExt};
use muster_agent_api::container::{READY, STARTED};
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::engine::failed;

/// Maximum number of bytes from the end of the agent's output that a message quotes.
const TAIL_BYTES: usize = 2048;
/// Maximum number of bytes of a line in which [`STARTED`] or [`READY`] is recognized. Longer lines are split.
const MAX_LINE_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// The entrypoint of the image runs.
    Entrypoint,
    /// The agent has started.
    Started,
    /// The agent accepts connections.
    Ready,
}

/// Output of a build container until its end.
#[derive(Debug)]
pub(super) struct Output {
    progress: watch::Receiver<Progress>,
    tail: Arc<Mutex<Vec<u8>>>,
    /// Whether the connection was lost before the container ended.
    is_lost: Arc<AtomicBool>,
    reading: JoinHandle<()>,
}

impl Drop for Output {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Output {
    /// Attaches to a created container. `log` gets the output of the image's entrypoint.
    pub(super) async fn attach(engine: &Docker, id: &str, log: Arc<dyn Log>) -> Result<Self, Failure> {
        let options =
            AttachContainerOptions { stream: true, stdout: true, stderr: true, ..AttachContainerOptions::default() };
        let attached = engine.attach_container(id, Some(options)).await;
        let attached = attached.map_err(failed("failed to attach to the build container"))?;
        Ok(Self::read(attached.output, log))
    }

    /// Reads an output. `log` gets the output of the image's entrypoint.
    pub(super) fn read(output: OutputStream, log: Arc<dyn Log>) -> Self {
        let (report, progress) = watch::channel(Progress::Entrypoint);
        let (tail, is_lost) = (Arc::default(), Arc::default());
        let reader = Reader { log, progress: report, tail: Arc::clone(&tail), is_lost: Arc::clone(&is_lost) };
        let reading = tokio::spawn(reader.read(output));
        Self { progress, tail, is_lost, reading }
    }

    pub(super) fn mark_lost(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection was lost, so that [`Self::progress`] may be out of date.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Waits for this progress. Cancel-safe.
    ///
    /// Returns false if the output ended: the container has ended, or the connection was lost.
    pub(super) async fn wait_for(&self, progress: Progress) -> bool {
        self.progress.clone().wait_for(|reached| *reached >= progress).await.is_ok()
    }

    pub(super) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Returns the end of the agent's output as one line.
    pub(super) fn tail(&self) -> String {
        String::from_utf8_lossy(&self.tail.lock()).trim().replace('\n', "; ")
    }
}

pub(super) type OutputStream = Pin<Box<dyn FutureStream<Item = Result<LogOutput, ApiError>> + Send>>;

/// Splits both streams of a container into lines.
struct Reader {
    log: Arc<dyn Log>,
    progress: watch::Sender<Progress>,
    tail: Arc<Mutex<Vec<u8>>>,
    is_lost: Arc<AtomicBool>,
}

#[derive(Default)]
struct Lines {
    incomplete: Vec<u8>,
    /// Whether [`STARTED`] was read.
    from_agent: bool,
}

impl Reader {
    async fn read(self, mut output: OutputStream) {
        let (mut stdout, mut stderr) = (Lines::default(), Lines::default());
        while let Some(chunk) = output.next().await {
            match chunk {
                Ok(LogOutput::StdErr { message }) => self.add(&mut stderr, &message),
                Ok(chunk) => self.add(&mut stdout, &chunk.into_bytes()),
                Err(error) => {
                    tracing::warn!(%error, "failed to read the output of the build container");
                    self.is_lost.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
        for lines in [stdout, stderr] {
            self.handle_line(&lines.incomplete, lines.from_agent);
        }
    }

    fn add(&self, lines: &mut Lines, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            lines.incomplete.extend_from_slice(piece);
            if piece.ends_with(b"\n") || lines.incomplete.len() > MAX_LINE_BYTES {
                let line = std::mem::take(&mut lines.incomplete);
                let text = line.trim_ascii_end();
                if text == STARTED.as_bytes() {
                    lines.from_agent = true;
                    self.advance(Progress::Started);
                } else if lines.from_agent && text == READY.as_bytes() {
                    self.advance(Progress::Ready);
                } else {
                    self.handle_line(&line, lines.from_agent);
                }
            }
        }
    }

    fn advance(&self, progress: Progress) {
        self.progress.send_if_modified(|known| {
            let is_further = progress > *known;
            *known = progress.max(*known);
            is_further
        });
    }

    /// Writes a line of the entrypoint to the log. Adds a line of the agent to the tail.
    fn handle_line(&self, line: &[u8], from_agent: bool) {
        if !from_agent {
            self.log.write(Stream::Output, line);
            return;
        }
        let mut tail = self.tail.lock();
        tail.extend_from_slice(line);
        let excess = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..excess);
    }
}
