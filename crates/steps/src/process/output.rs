//! Copies the output of a process to the log.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::pipe::fcntl_setpipe_size;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::log::{Log, Stream};

/// Maximum time to wait for output after a process has ended, if its children keep printing (docs/spec/steps.md,
/// section 1.4).
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without output after which an ended step is complete, although a child may still have the pipe open.
///
/// Later output is still written to the log.
const DRAIN_IDLE_TIMEOUT: Duration = Duration::from_millis(250);
const READ_BUFFER_BYTES: usize = 256 * 1024;
/// Minimum length of a large piece of output. After each large piece, other tasks run. The first one also enlarges the
/// pipe.
const LARGE_PIECE_BYTES: usize = 32 * 1024;
const LARGE_PIPE_BYTES: usize = 1024 * 1024;
const MAX_LARGE_PIECES: u32 = 64;
/// Time to wait for the next large piece before the task yields.
const LARGE_PIECE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

thread_local! {
    /// Buffer for all processes of a thread. Most print little, so separate buffers would waste memory.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BUFFER_BYTES]);
}

/// Channel that changes with each chunk of output, and closes when the task that reads the output ends.
pub(super) struct OutputProgress(pub(super) watch::Receiver<()>);

impl OutputProgress {
    /// Waits until all writers have closed the pipe, or there was no output for [`DRAIN_IDLE_TIMEOUT`].
    pub(super) async fn wait(mut self) {
        let idle = async { while let Ok(Ok(())) = timeout(DRAIN_IDLE_TIMEOUT, self.0.changed()).await {} };
        // A child that keeps printing delays the end only by this time.
        let _ = timeout(DRAIN_TIMEOUT, idle).await;
    }
}

/// Copies output while its pieces are large. Returns the result of the last read.
///
/// Meanwhile, an additional thread runs the other tasks of this thread. Copies only one piece if no such thread is
/// available.
fn copy_large_pieces(pipe: &Receiver, mut copy_piece: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    static OTHER_THREAD: Semaphore = Semaphore::const_new(1);
    let permit = OTHER_THREAD.try_acquire();
    if permit.is_err() || Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
        return copy_piece();
    }
    // Copies several pieces, because changing the thread takes longer than copying one.
    tokio::task::block_in_place(|| {
        let mut last = copy_piece();
        for _ in 1..MAX_LARGE_PIECES {
            match &last {
                Ok(length) if *length >= LARGE_PIECE_BYTES => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let pipe = PollFd::new(pipe, PollFlags::IN);
                    if poll(&mut [pipe], Some(&LARGE_PIECE_TIMEOUT)) != Ok(1) {
                        break;
                    }
                }
                _ => break,
            }
            last = copy_piece();
        }
        last
    })
}

/// Copies a pipe to the log until all writers have closed it. Notifies `read` of each chunk.
///
/// Yields after each large piece, because masking makes writes to the log expensive.
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
        let copy_piece = |read_bytes: &dyn Fn(&mut [u8]) -> io::Result<usize>| {
            READ_BUFFER.with_borrow_mut(|buffer| {
                let length = read_bytes(buffer)?;
                log.write(Stream::Output, buffer.get(..length).unwrap_or_default());
                if length > 0 {
                    read.send_replace(());
                }
                io::Result::Ok(length)
            })
        };
        let result = if last_length >= LARGE_PIECE_BYTES {
            // The runtime does not know of these reads. The next `try_read` reports an empty pipe to the runtime.
            copy_large_pieces(&pipe, || {
                copy_piece(&|buffer| Ok(retry_on_intr(|| rustix::io::read(&pipe, &mut *buffer))?))
            })
        } else {
            copy_piece(&|buffer| pipe.try_read(buffer))
        };
        last_length = *result.as_ref().unwrap_or(&0);
        match result {
            Ok(0) => return,
            Ok(length) => {
                if length >= LARGE_PIECE_BYTES {
                    if !has_large_pipe {
                        has_large_pipe = true;
                        // Fails if the user's pipes use too much memory. The pipe then keeps its size.
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
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// Lock for tests with large pieces: only one of them could have the additional thread.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    /// Log whose second write blocks until another task of the runtime has run.
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

    #[derive(Default)]
    struct MemoryLog(Mutex<Vec<u8>>);

    impl Log for MemoryLog {
        fn write(&self, _: Stream, bytes: &[u8]) {
            self.0.lock().extend_from_slice(bytes);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_and_small_pieces_arrive_once_and_in_order() {
        let _alone = ALONE.lock().await;
        let max_turn_bytes = usize::try_from(MAX_LARGE_PIECES).unwrap() * READ_BUFFER_BYTES;
        let lengths = [1, max_turn_bytes + 1, 10, LARGE_PIECE_BYTES, 2 * LARGE_PIECE_BYTES, 3];
        let bytes: Vec<u8> = (0..=250).cycle().take(lengths.iter().sum()).collect();
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let written = bytes.clone();
        let writer = tokio::task::spawn_blocking(move || {
            let mut file = std::fs::File::from(write_end);
            let mut rest = written.as_slice();
            for length in lengths {
                let (piece, others) = rest.split_at(length);
                rest = others;
                file.write_all(piece).unwrap();
                std::thread::yield_now();
            }
        });
        let log = Arc::new(MemoryLog::default());
        let (read, _progress) = watch::channel(());
        tokio::spawn(copy_to_log(read_end, Arc::<MemoryLog>::clone(&log), read)).await.unwrap();
        writer.await.unwrap();
        assert!(*log.0.lock() == bytes, "the log differs from the output");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_while_a_large_piece_is_written() {
        let _alone = ALONE.lock().await;
        let (report, other_task_ran) = mpsc::channel();
        let log = Arc::new(BlockingLog {
            writes: Mutex::new(0),
            second_write: tokio::sync::Notify::new(),
            other_task_ran: Mutex::new(other_task_ran),
        });
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(write_end);
        // The first read must find a large piece.
        file.write_all(&vec![b'x'; LARGE_PIECE_BYTES]).unwrap();
        let writer = tokio::task::spawn_blocking(move || file.write_all(&vec![b'x'; 3 * READ_BUFFER_BYTES]));
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
