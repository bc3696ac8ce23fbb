//! Who reads which trace just now: such traces are sent more often (runner-api 3.2).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use parking_lot::Mutex;

use crate::clock::{Clock, Timestamp};

/// How long a look at a trace counts, as on GitLab.
const READING: Duration = Duration::from_secs(10);

/// The traces that were looked at a moment ago.
#[derive(Debug)]
pub(crate) struct Readers {
    clock: Arc<dyn Clock>,
    /// Until when each of them counts as read.
    until: Mutex<HashMap<JobId, Timestamp>>,
}

impl Readers {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, until: Mutex::default() }
    }

    /// Somebody looks at the trace of a job. Looks that are over are forgotten: there are never more than those of the
    /// last moment.
    pub(crate) fn note(&self, job: JobId) {
        let now = self.clock.now();
        let mut until = self.until.lock();
        until.retain(|_, end| *end > now);
        until.insert(job, now + READING);
    }

    /// Whether somebody does.
    pub(crate) fn reads(&self, job: JobId) -> bool {
        let now = self.clock.now();
        self.until.lock().get(&job).is_some_and(|end| *end > now)
    }
}
