//! List of the jobs of this process that may have processes.

use parking_lot::Mutex;

use super::table;

/// List of running jobs. It is a static variable, because a process has only one list of children.
pub(super) static RUNNING: Running = Running(Mutex::new(List { jobs: Vec::new(), numbers: 0 }));

/// List of running jobs.
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
    /// Time when the job was added, in clock ticks since boot. All its processes start later.
    since: u64,
}

impl Running {
    /// Adds a job. Returns its number for [`Running::leave`].
    pub(super) fn enter(&self, mark: &str) -> u64 {
        let mut list = self.0.lock();
        list.numbers += 1;
        let number = list.numbers;
        list.jobs.push(Job { number, mark: mark.to_owned(), since: table::ticks_now() });
        number
    }

    /// Removes a job. Returns the times when the remaining jobs were added. Removing a job twice has no effect.
    pub(super) fn leave(&self, number: u64) -> Vec<u64> {
        let mut list = self.0.lock();
        list.jobs.retain(|job| job.number != number);
        list.jobs.iter().map(|job| job.since).collect()
    }

    /// Returns whether a running job has this mark.
    pub(super) fn has(&self, mark: &[u8]) -> bool {
        self.0.lock().jobs.iter().any(|job| job.mark.as_bytes() == mark)
    }
}
