//! Threads that work on the parts of an archive at the same time, and return their results in the order of the parts.
//!
//! ```text
//! submit --> tasks --> threads --> results --> receive, in the order of `submit`
//! ```
//!
//! Memory is bounded, because the number of tasks whose results have not been received is limited.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};

/// Maximum number of threads.
const MAX_THREADS: usize = 16;
/// Maximum number of tasks per thread whose results have not been received.
const TASKS_PER_THREAD: usize = 4;

/// Threads that work on tasks of type `T` and return results of type `R`. The threads end when this value is dropped.
#[derive(Debug)]
pub struct Workers<T, R> {
    tasks: SyncSender<(usize, T)>,
    results: Receiver<(usize, thread::Result<R>)>,
    /// Results that arrived before the result of an earlier task.
    early: BTreeMap<usize, thread::Result<R>>,
    submitted: usize,
    received: usize,
    max_unreceived: usize,
}

impl<T: Send, R: Send> Workers<T, R> {
    /// Starts one thread for each processor that this process may use, at most 16. `worker` is called once for each thread and returns the
    /// function that works on the tasks.
    ///
    /// # Errors
    /// The error of the system if it cannot start any thread.
    pub fn start<'scope, W>(scope: &'scope Scope<'scope, '_>, worker: impl Fn() -> W) -> io::Result<Self>
    where
        W: FnMut(T) -> R + Send + 'scope,
        T: 'scope,
        R: 'scope,
    {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_THREADS);
        let max_unreceived = threads * TASKS_PER_THREAD;
        let (tasks, queue) = sync_channel(max_unreceived);
        let (sender, results) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let mut started = 0;
        for _ in 0..threads {
            let (queue, sender, worker) = (Arc::clone(&queue), sender.clone(), worker());
            match thread::Builder::new().spawn_scoped(scope, move || run(&queue, &sender, worker)) {
                Ok(_) => started += 1,
                // The limit on processes is reached. The threads that were started do the work.
                Err(_) if started > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Self { tasks, results, early: BTreeMap::new(), submitted: 0, received: 0, max_unreceived })
    }

    /// Returns whether a result must be received with [`Workers::receive`] before the next task can be submitted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.submitted - self.received >= self.max_unreceived
    }

    /// Submits a task. Has no effect if all threads have ended, which they do only when this value is dropped.
    pub fn submit(&mut self, task: T) {
        if self.tasks.send((self.submitted, task)).is_ok() {
            self.submitted += 1;
        }
    }

    /// Waits for the result of the earliest task whose result was not received. Returns `None` if there is no such task.
    ///
    /// # Panics
    /// If the thread panicked while it worked on the task.
    pub fn receive(&mut self) -> Option<R> {
        if self.received == self.submitted {
            return None;
        }
        while !self.early.contains_key(&self.received) {
            let (index, result) = self.results.recv().ok()?;
            self.early.insert(index, result);
        }
        let result = self.early.remove(&self.received)?;
        self.received += 1;
        Some(result.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// Works on tasks until the queue is closed.
fn run<T, R>(
    queue: &Mutex<Receiver<(usize, T)>>,
    results: &Sender<(usize, thread::Result<R>)>,
    mut worker: impl FnMut(T) -> R,
) {
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((index, task)) = task else { return };
        // A panic is a result, because the caller would otherwise wait for the result forever.
        let result = catch_unwind(AssertUnwindSafe(|| worker(task)));
        if results.send((index, result)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_tasks_and_are_bounded() {
        thread::scope(|scope| {
            let mut workers = Workers::start(scope, || |task: u32| task * 2).unwrap();
            let mut results = Vec::new();
            for task in 0..1000 {
                if workers.is_full() {
                    results.extend(workers.receive());
                }
                workers.submit(task);
                assert!(workers.submitted - workers.received <= workers.max_unreceived);
            }
            results.extend(std::iter::from_fn(|| workers.receive()));
            assert_eq!(results, (0..1000).map(|task| task * 2).collect::<Vec<_>>());
        });
    }

    #[test]
    #[should_panic(expected = "task 3")]
    fn panic_of_a_thread_reaches_the_caller() {
        thread::scope(|scope| {
            let mut workers =
                Workers::start(scope, || |task: u32| if task == 3 { panic!("task 3") } else { task }).unwrap();
            (0..4).for_each(|task| workers.submit(task));
            while workers.receive().is_some() {}
        });
    }
}
