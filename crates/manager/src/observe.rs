//! Metrics of the runners, and a [`JobWatch`] for each job. Nothing in this module blocks.

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

use crate::admission::{Notice, RunnerStats};
use crate::store::StoredJob;

pub(crate) use watch::JobWatch;

pub(crate) struct Observer {
    telemetry: Arc<Telemetry>,
    /// Metrics of each runner. A runner's metric series are exposed only while its [`EntryMetrics`] is held, here or
    /// elsewhere.
    entries: Mutex<HashMap<RunnerKey, Arc<EntryMetrics>>>,
    has_logged_unsupported: AtomicBool,
}

impl Observer {
    pub(crate) fn new(telemetry: Arc<Telemetry>) -> Arc<Self> {
        Arc::new(Self { telemetry, entries: Mutex::default(), has_logged_unsupported: AtomicBool::new(false) })
    }

    pub(crate) fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    /// Applies the settings. The metric series of a removed runner disappear after its last job.
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

    /// Counts a request of the runner as open until the result is dropped.
    pub(crate) fn open_request(&self, runner: &RunnerSettings) -> OpenRequest {
        let entry = self.entry(runner);
        entry.poll_started();
        entry.token().count_open_request()
    }

    /// Records the answer to a request. `has_capacity`: whether the manager could send another request.
    pub(crate) fn answered(
        &self,
        runner: &RunnerSettings,
        notice: Option<Notice>,
        stats: &RunnerStats,
        has_capacity: bool,
    ) {
        let entry = self.entry(runner);
        match notice {
            Some(Notice::Refused { unhealthy, .. }) => {
                entry.health_check_failed();
                if unhealthy {
                    entry.poll_skipped();
                }
            }
            Some(Notice::Failed { .. }) => entry.health_check_failed(),
            Some(Notice::Recovered { .. }) | None => {}
        }
        let used = stats.requests_adaptive.min(stats.requests_hard);
        entry.token().set_request_limits(stats.requests_hard, stats.requests_adaptive as f64, used);
        if has_capacity && stats.requests >= used {
            entry.token().request_prevented();
        }
    }

    pub(crate) fn counting_client(&self, client: Client, runner: &RunnerSettings) -> Client {
        client.with_observer(Arc::new(Calls(Arc::clone(self.entry(runner).token()))))
    }

    pub(crate) fn watch_job(
        self: &Arc<Self>,
        runner: &Arc<RunnerSettings>,
        job: &StoredJob,
        recovered: bool,
    ) -> Arc<JobWatch> {
        JobWatch::new(self, runner, job, recovered)
    }

    /// Counts a job that cannot continue in this manager.
    pub(crate) fn job_lost(&self, runner: &RunnerKey) {
        if let Some(entry) = self.entries.lock().get(runner) {
            entry.failed_to_process(ProcessingFailure::Other);
        }
    }

    /// Returns the metrics of a runner. Their series are exposed while the result is held.
    pub(crate) fn entry(&self, runner: &RunnerSettings) -> Arc<EntryMetrics> {
        let known = self.entries.lock().get(&runner.key).cloned();
        known.unwrap_or_else(|| self.telemetry.metrics.entry(&labels(runner)))
    }

    /// Logs that a coordinator requests a `feature` of span export that is not supported. Only the first call logs.
    fn warn_unsupported(&self, feature: &str) {
        if !self.has_logged_unsupported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                feature,
                "coordinator requests an unsupported export of spans; jobs are not affected, and this is logged once"
            );
        }
    }
}

/// Returns the labels that identify a runner's series.
#[must_use]
pub fn labels(runner: &RunnerSettings) -> EntryLabels {
    EntryLabels {
        runner: short_token(runner.token.expose()),
        runner_name: runner.name.clone(),
        system_id: runner.system_id.clone(),
    }
}

struct Calls(Arc<TokenMetrics>);

impl CallObserver for Calls {
    fn ended(&self, call: &EndedCall) {
        self.0.record_call(call.endpoint, call.method, call.status, call.took);
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calls")
    }
}
