//! Quota of the spool: the maximum size of the requests and logs of all jobs.
//!
//! Results do not count, so that a job can be ended even if the quota is used up.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Bytes a job may write after it exceeds the quota, so that its log can say why it failed.
const LAST_WORDS: u64 = 4096;

/// Bytes of all jobs.
#[derive(Debug)]
pub(super) struct Quota {
    limit: u64,
    used: AtomicU64,
    shares: Mutex<HashMap<String, Arc<Held>>>,
}

/// Bytes of one job.
#[derive(Debug, Default)]
struct Held {
    bytes: AtomicU64,
    /// Remaining bytes of [`LAST_WORDS`]. `None` means that the job has not exceeded the quota.
    last_words: Mutex<Option<u64>>,
}

/// Part of the quota that one job uses.
#[derive(Debug, Clone)]
pub(super) struct Share {
    quota: Arc<Quota>,
    held: Arc<Held>,
}

impl Quota {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0), shares: Mutex::default() })
    }

    /// Returns the part of a job. It is the same one until the job is deleted.
    pub(super) fn share(self: &Arc<Self>, id: &str) -> Share {
        let held = self.shares.lock().get(id).cloned().unwrap_or_default();
        Share { quota: Arc::clone(self), held }
    }

    /// Releases all bytes of a deleted job.
    pub(super) fn give_back(&self, id: &str) {
        if let Some(held) = self.shares.lock().remove(id) {
            self.used.fetch_sub(held.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Share {
    /// Counts the existing files of a job, even beyond the limit, and registers this part for its ID.
    pub(super) fn found(&self, id: &str, bytes: u64) {
        self.quota.shares.lock().insert(id.to_owned(), Arc::clone(&self.held));
        let before = self.held.bytes.swap(bytes, Ordering::Relaxed);
        self.quota.used.fetch_add(bytes, Ordering::Relaxed);
        self.quota.used.fetch_sub(before, Ordering::Relaxed);
    }

    /// Reserves bytes.
    ///
    /// # Errors
    /// `QuotaExceeded` if the quota is used up.
    pub(super) fn take(&self, bytes: u64) -> io::Result<()> {
        let used = self.quota.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.quota.limit && !self.are_last_words(bytes) {
            self.quota.used.fetch_sub(bytes, Ordering::Relaxed);
            let message = format!(
                "the jobs whose logs are not uploaded yet may keep {} bytes here together, and do (MUSTER_SPOOL_LIMIT, in MiB)",
                self.quota.limit
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
        }
        self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn are_last_words(&self, bytes: u64) -> bool {
        let mut left = self.held.last_words.lock();
        let room = left.unwrap_or_default();
        let fits = left.is_some() && bytes <= room;
        *left = Some(left.map_or(LAST_WORDS, |room| if fits { room - bytes } else { room }));
        fits
    }
}
