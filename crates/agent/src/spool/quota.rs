//! Quota of the spool: maximum size of all jobs' requests and logs. Results may exceed it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Bytes that a job may write beyond the quota, to log why it failed.
const FINAL_MESSAGE_BYTES: u64 = 4096;

#[derive(Debug)]
pub(super) struct Quota {
    limit: u64,
    used: AtomicU64,
    jobs: Mutex<HashMap<String, Arc<JobBytes>>>,
}

#[derive(Debug, Default)]
struct JobBytes {
    bytes: AtomicU64,
    /// Rest of [`FINAL_MESSAGE_BYTES`]. `None` means that the job has not exceeded the quota.
    final_message_remaining: Mutex<Option<u64>>,
}

#[derive(Debug, Clone)]
pub(super) struct JobQuota {
    quota: Arc<Quota>,
    job: Arc<JobBytes>,
}

impl Quota {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0), jobs: Mutex::default() })
    }

    /// Returns the quota of a job. All quotas of one job that are returned between [`JobQuota::count_existing`] and
    /// [`Self::release`] share one counter.
    pub(super) fn job(self: &Arc<Self>, id: &str) -> JobQuota {
        let job = self.jobs.lock().get(id).cloned().unwrap_or_default();
        JobQuota { quota: Arc::clone(self), job }
    }

    pub(super) fn release(&self, id: &str) {
        if let Some(job) = self.jobs.lock().remove(id) {
            self.used.fetch_sub(job.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl JobQuota {
    /// Counts a job's existing files, even beyond the limit, and registers the job.
    pub(super) fn count_existing(&self, id: &str, bytes: u64) {
        self.quota.jobs.lock().insert(id.to_owned(), Arc::clone(&self.job));
        let before = self.job.bytes.swap(bytes, Ordering::Relaxed);
        self.quota.used.fetch_add(bytes, Ordering::Relaxed);
        self.quota.used.fetch_sub(before, Ordering::Relaxed);
    }

    /// Reserves bytes for the job. Returns `QuotaExceeded` if the quota is used up.
    pub(super) fn reserve(&self, bytes: u64) -> io::Result<()> {
        let used = self.quota.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.quota.limit && !self.take_final_message_bytes(bytes) {
            self.quota.used.fetch_sub(bytes, Ordering::Relaxed);
            let message = format!(
                "the spool is full: all jobs may store {} bytes together until their logs are uploaded; raise MUSTER_SPOOL_LIMIT (in MiB)",
                self.quota.limit
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
        }
        self.job.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Takes bytes for final messages. Returns false if too few remain.
    ///
    /// The first call for a job returns false, and makes [`FINAL_MESSAGE_BYTES`] available.
    fn take_final_message_bytes(&self, bytes: u64) -> bool {
        let mut remaining = self.job.final_message_remaining.lock();
        let available = remaining.unwrap_or_default();
        let fits = remaining.is_some() && bytes <= available;
        *remaining = Some(match *remaining {
            None => FINAL_MESSAGE_BYTES,
            Some(_) if fits => available - bytes,
            Some(_) => available,
        });
        fits
    }
}
