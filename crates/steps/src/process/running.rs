//! The jobs of this process that may have processes.

use parking_lot::Mutex;

use super::table;

/// One for the whole process, as its children are.
pub(super) static RUNNING: Running = Running(Mutex::new(List { jobs: Vec::new(), numbers: 0 }));

/// The running jobs.
#[derive(Debug)]
pub(super) struct Running(Mutex<List>);

#[derive(Debug)]
struct List {
    jobs: Vec<Job>,
    numbers: u64,
}

#[derive(Debug)]
struct Job {
    number: u64,
    mark: String,
    /// When it began, in clock ticks since the system was started: not after any of its processes.
    since: u64,
}

impl Running {
    /// Adds a job. Returns the number by which it leaves.
    pub(super) fn enter(&self, mark: &str) -> u64 {
        let mut list = self.0.lock();
        list.numbers += 1;
        let number = list.numbers;
        list.jobs.push(Job { number, mark: mark.to_owned(), since: table::ticks_now() });
        number
    }

    /// Removes a job. Returns when each of the others began. A job may leave more than once.
    pub(super) fn leave(&self, number: u64) -> Vec<u64> {
        let mut list = self.0.lock();
        list.jobs.retain(|job| job.number != number);
        list.jobs.iter().map(|job| job.since).collect()
    }

    /// Whether a running job has this mark.
    pub(super) fn has(&self, mark: &[u8]) -> bool {
        self.0.lock().jobs.iter().any(|job| job.mark.as_bytes() == mark)
    }
}
