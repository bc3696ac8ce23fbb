//! List of the running jobs of this agent.

use parking_lot::Mutex;

use super::procfs;

/// Static, because the orphans of all jobs become children of this one process.
pub(super) static RUNNING: Running = Running(Mutex::new(List { jobs: Vec::new(), last_number: 0 }));

#[derive(Debug)]
pub(super) struct Running(Mutex<List>);

#[derive(Debug)]
struct List {
    jobs: Vec<Job>,
    last_number: u64,
}

#[derive(Debug)]
struct Job {
    number: u64,
    tag: String,
    /// Time of [`Running::add`], in clock ticks since boot, before any process of the job starts.
    added_ticks: u64,
}

impl Running {
    /// Adds a job. Returns its number for [`Running::remove`].
    pub(super) fn add(&self, tag: &str) -> u64 {
        let mut list = self.0.lock();
        list.last_number += 1;
        let number = list.last_number;
        list.jobs.push(Job { number, tag: tag.to_owned(), added_ticks: procfs::current_ticks() });
        number
    }

    /// Removes a job, unless it was removed before. Returns the times when the remaining jobs were added.
    pub(super) fn remove(&self, number: u64) -> Vec<u64> {
        let mut list = self.0.lock();
        list.jobs.retain(|job| job.number != number);
        list.jobs.iter().map(|job| job.added_ticks).collect()
    }

    /// Whether a running job, or a set inside it, has this tag.
    pub(super) fn contains(&self, tag: &[u8]) -> bool {
        self.0.lock().jobs.iter().any(|job| procfs::is_within(tag, &job.tag))
    }
}
