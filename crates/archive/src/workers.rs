//! Threads that work on parts of an archive, and return results in the order of the parts.
//!
//! The number of tasks without a received result is limited, and so is memory.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};

const MAX_THREADS: usize = 16;
/// Maximum number of tasks per thread without a received result.
const TASKS_PER_THREAD: usize = 4;

/// Threads that turn tasks of type `T` into results of type `R`, until this value is dropped.
#[derive(Debug)]
pub struct Workers<T, R> {
    tasks: SyncSender<(usize, T)>,
    results: Receiver<(usize, thread::Result<R>)>,
    /// Results that arrived before that of an earlier task.
    early: BTreeMap<usize, thread::Result<R>>,
    submitted: usize,
    received: usize,
    max_unreceived: usize,
}

impl<T: Send, R: Send> Workers<T, R> {
    /// Starts one thread per available processor, at most 16. `worker` returns the function of one thread.
    ///
    /// # Errors
    /// The error of the system if no thread can be started.
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
                // The limit on processes is reached. The started threads do the work.
                Err(_) if started > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Self { tasks, results, early: BTreeMap::new(), submitted: 0, received: 0, max_unreceived })
    }

    /// Returns whether [`Workers::receive`] must be called before the next task is submitted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.submitted - self.received >= self.max_unreceived
    }

    /// Submits a task.
    pub fn submit(&mut self, task: T) {
        if self.tasks.send((self.submitted, task)).is_ok() {
            self.submitted += 1;
        }
    }

    /// Waits for the result of the earliest task. `None` means that there is no task.
    ///
    /// # Panics
    /// If the thread panicked on the task.
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

fn run<T, R>(
    queue: &Mutex<Receiver<(usize, T)>>,
    results: &Sender<(usize, thread::Result<R>)>,
    mut worker: impl FnMut(T) -> R,
) {
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((index, task)) = task else { return };
        // A panic is sent as the result of the task. Otherwise, the caller would wait for this result forever.
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
