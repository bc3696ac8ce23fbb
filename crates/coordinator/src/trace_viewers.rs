//! The traces that users are reading. Runners send these more often (docs/spec/runner-api.md, section 3.2).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use parking_lot::Mutex;

use crate::clock::{Clock, Timestamp};

/// Time after the last request for a trace during which a user counts as viewing it, as on GitLab.
const VIEW_TTL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct TraceViewers {
    clock: Arc<dyn Clock>,
    /// End of the time for which each trace counts as being read.
    viewed_until: Mutex<HashMap<JobId, Timestamp>>,
}

impl TraceViewers {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, viewed_until: Mutex::default() }
    }

    /// Records that the trace of `job` is viewed. Also removes expired entries, which bounds the size of the map.
    pub(crate) fn record(&self, job: JobId) {
        let now = self.clock.now();
        let mut viewed_until = self.viewed_until.lock();
        viewed_until.retain(|_, end| *end > now);
        viewed_until.insert(job, now + VIEW_TTL);
    }

    pub(crate) fn is_viewed(&self, job: JobId) -> bool {
        let now = self.clock.now();
        self.viewed_until.lock().get(&job).is_some_and(|end| *end > now)
    }
}
