//! Copies the output of a process to the log.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::pipe::fcntl_setpipe_size;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::log::{Log, Stream};

/// Maximum time to wait for output after a process has ended, if its children keep printing.
///
/// See docs/spec/steps.md, section 1.4.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without output after which a step is complete.
///
/// A child such as a background server may still have the pipe open. Later output is still written to the log.
const DRAIN_IDLE_TIMEOUT: Duration = Duration::from_millis(250);
/// Bytes of output to read at once.
const READ_BUFFER_BYTES: usize = 256 * 1024;
/// Minimum length of a large piece of output.
///
/// Other tasks run after each large piece. A process that prints large pieces gets a larger pipe, so that it waits less.
const LARGE_PIECE_BYTES: usize = 32 * 1024;
/// Size of a large pipe.
const LARGE_PIPE_BYTES: usize = 1024 * 1024;

thread_local! {
    /// Buffer for the output of all processes: most of them print little, so a buffer for each would be most of the memory of a job.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BUFFER_BYTES]);
}

/// Progress of reading the output of a process. It changes with each chunk, and closes when the reader ends.
pub(super) struct OutputProgress(pub(super) watch::Receiver<()>);

impl OutputProgress {
    /// Waits until all writers have closed the pipe, or until there was no output for [`DRAIN_IDLE_TIMEOUT`].
    pub(super) async fn wait(mut self) {
        let idle = async { while let Ok(Ok(())) = timeout(DRAIN_IDLE_TIMEOUT, self.0.changed()).await {} };
        // A child that keeps printing delays the end by at most this time.
        let _ = timeout(DRAIN_TIMEOUT, idle).await;
    }
}

/// Runs `work` on this thread.
///
/// Meanwhile, the other tasks of this thread run on one additional thread, unless another call uses it.
fn beside_other_tasks<T>(work: impl FnOnce() -> T) -> T {
    static OTHER_THREAD: Semaphore = Semaphore::const_new(1);
    let permit = OTHER_THREAD.try_acquire();
    // A runtime with one thread has no other one.
    if permit.is_ok() && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// Copies a pipe to the log until all writers have closed it. Notifies `read` of each chunk.
///
/// Masking makes writing to the log expensive, so this function yields to other tasks after each large piece.
pub(super) async fn copy_to_log(pipe: OwnedFd, log: Arc<dyn Log>, read: watch::Sender<()>) {
    let pipe = match Receiver::from_owned_fd(pipe) {
        Ok(pipe) => pipe,
        Err(error) => {
            tracing::error!(%error, "failed to read the output of a process");
            return;
        }
    };
    let mut last_length = 0;
    let mut has_large_pipe = false;
    while pipe.readable().await.is_ok() {
        let copy_piece = || {
            READ_BUFFER.with_borrow_mut(|buffer| {
                let length = pipe.try_read(buffer)?;
                log.write(Stream::Output, buffer.get(..length).unwrap_or_default());
                io::Result::Ok(length)
            })
        };
        let length = if last_length >= LARGE_PIECE_BYTES { beside_other_tasks(copy_piece) } else { copy_piece() };
        match length {
            Ok(0) => return,
            Ok(length) => {
                read.send_replace(());
                last_length = length;
                if length >= LARGE_PIECE_BYTES {
                    if !has_large_pipe {
                        has_large_pipe = true;
                        // Fails if the user's pipes need too much memory already. The pipe then keeps its size.
                        let _ = fcntl_setpipe_size(&pipe, LARGE_PIPE_BYTES);
                    }
                    tokio::task::yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc;

    use parking_lot::Mutex;
    use rustix::pipe::pipe;

    use super::*;

    /// Log that blocks in its second write until another task of the runtime has run.
    struct BlockingLog {
        writes: Mutex<u32>,
        second_write: tokio::sync::Notify,
        other_task_ran: Mutex<mpsc::Receiver<()>>,
    }

    impl Log for BlockingLog {
        fn write(&self, _: Stream, _: &[u8]) {
            *self.writes.lock() += 1;
            if *self.writes.lock() == 2 {
                self.second_write.notify_one();
                self.other_task_ran.lock().recv_timeout(Duration::from_secs(60)).unwrap();
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_while_a_large_piece_is_written() {
        let (report, other_task_ran) = mpsc::channel();
        let log = Arc::new(BlockingLog {
            writes: Mutex::new(0),
            second_write: tokio::sync::Notify::new(),
            other_task_ran: Mutex::new(other_task_ran),
        });
        let (read_end, write_end) = pipe().unwrap();
        let writer = tokio::task::spawn_blocking(move || {
            std::fs::File::from(write_end).write_all(&vec![b'x'; 3 * READ_BUFFER_BYTES])
        });
        let other_log = Arc::clone(&log);
        let other_task = tokio::spawn(async move {
            other_log.second_write.notified().await;
            report.send(())
        });
        let (read, _progress) = watch::channel(());
        tokio::spawn(copy_to_log(read_end, log, read)).await.unwrap();
        other_task.await.unwrap().unwrap();
        writer.await.unwrap().unwrap();
    }
}
