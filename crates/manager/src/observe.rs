//! What the manager tells of itself: the metrics of its runners, and a [`JobWatch`] for each job.
//!
//! Nothing here waits, and nothing depends on it: the manager works alike whether anyone looks on or not.

mod stages;
#[cfg(test)]
mod tests;
mod trace;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_config::settings::{RunnerKey, RunnerSettings, Settings};
use muster_job::short_token;
use muster_runner_api::client::{CallObserver, Client, EndedCall};
use muster_telemetry::Telemetry;
use muster_telemetry::metrics::{EntryLabels, EntryMetrics, OpenRequest, ProcessingFailure, TokenMetrics};
use parking_lot::Mutex;

use crate::admission::{Notice, RunnerFigures};
use crate::store::StoredJob;

pub(crate) use watch::JobWatch;

/// The manager's side of telemetry.
pub(crate) struct Observer {
    telemetry: Arc<Telemetry>,
    /// Of the runners in the file: while they stand here, their series are exposed.
    entries: Mutex<HashMap<RunnerKey, Arc<EntryMetrics>>>,
    /// A job asked for a way to send spans that is not there, and this was told.
    told_unsupported: AtomicBool,
}

impl Observer {
    pub(crate) fn new(telemetry: Arc<Telemetry>) -> Arc<Self> {
        Arc::new(Self { telemetry, entries: Mutex::default(), told_unsupported: AtomicBool::new(false) })
    }

    pub(crate) fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    /// New settings: series of runners that left go with their last job.
    pub(crate) fn configure(&self, settings: &Settings) {
        self.telemetry.metrics.set_concurrent(settings.concurrent);
        let mut entries = HashMap::new();
        for runner in &settings.runners {
            let entry = self.telemetry.metrics.entry(&labels(runner));
            entry.set_limit(runner.limit.unwrap_or(0));
            entries.insert(runner.key.clone(), entry);
        }
        *self.entries.lock() = entries;
    }

    /// A job request of the runner is sent; it is open until the answer is dropped.
    pub(crate) fn asking(&self, runner: &RunnerSettings) -> OpenRequest {
        let entry = self.entry(runner);
        entry.fed();
        entry.token().request()
    }

    /// A job request was answered; `wanted` says that there is room for a further one.
    pub(crate) fn answered(&self, runner: &RunnerSettings, notice: Option<Notice>, now: &RunnerFigures, wanted: bool) {
        let entry = self.entry(runner);
        match notice {
            Some(Notice::Refused { unhealthy, .. }) => {
                entry.unhealthy();
                if unhealthy {
                    entry.left_out();
                }
            }
            Some(Notice::Failed { .. }) => entry.unhealthy(),
            Some(Notice::Recovered { .. }) | None => {}
        }
        let used = now.requests_adaptive.min(now.requests_hard);
        entry.token().set_request_limits(now.requests_hard, now.requests_adaptive as f64, used);
        if wanted && now.requests >= used {
            entry.token().request_refused();
        }
    }

    /// The client, whose calls are counted for the runner.
    pub(crate) fn counted(&self, client: Client, runner: &RunnerSettings) -> Client {
        client.with_observer(Arc::new(Calls(Arc::clone(self.entry(runner).token()))))
    }

    /// A job of the runner is under way.
    pub(crate) fn job(
        self: &Arc<Self>,
        runner: &Arc<RunnerSettings>,
        job: &StoredJob,
        recovered: bool,
    ) -> Arc<JobWatch> {
        JobWatch::new(self, runner, job, recovered)
    }

    /// A job of the runner cannot go on in this manager.
    pub(crate) fn job_lost(&self, runner: &RunnerKey) {
        if let Some(entry) = self.entries.lock().get(runner) {
            entry.failed_to_process(ProcessingFailure::Other);
        }
    }

    /// The runner's series: they are exposed while somebody holds this.
    pub(crate) fn entry(&self, runner: &RunnerSettings) -> Arc<EntryMetrics> {
        let known = self.entries.lock().get(&runner.key).cloned();
        known.unwrap_or_else(|| self.telemetry.metrics.entry(&labels(runner)))
    }

    /// Something that a job asked for is not there: told once.
    fn tell_unsupported(&self, what: &str) {
        if !self.told_unsupported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                what,
                "a server asks for spans in a way that is not supported; jobs are not affected, and this is told once"
            );
        }
    }
}

/// What tells the series of a runner from those of others.
#[must_use]
pub fn labels(runner: &RunnerSettings) -> EntryLabels {
    EntryLabels {
        runner: short_token(runner.token.expose()),
        runner_name: runner.name.clone(),
        system_id: runner.system_id.clone(),
    }
}

/// Counts calls.
struct Calls(Arc<TokenMetrics>);

impl CallObserver for Calls {
    fn ended(&self, call: &EndedCall) {
        self.0.called(call.endpoint, call.method, call.status, call.took);
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calls")
    }
}
