//! Reports about the instances of one runner, and operator actions.

use std::sync::Arc;

use muster_fleeting::model::InstanceId;
use muster_taskscaler::fleet::{Explanation, Report, ReportSource, Subject, explain};
use muster_taskscaler::history;
use muster_taskscaler::operator::{OperatorAction, OperatorError, OperatorOutcome, OperatorTarget};
use muster_taskscaler::types::GroupId;
use prometheus::proto::MetricFamily;

use super::lease::SCALER_ENDED;
use super::plugin_metrics;
use super::provider::InstanceExecutor;

impl InstanceExecutor {
    /// Returns the current state of the scaler, its instances and its plugins.
    pub async fn report(&self) -> Report {
        let (runner, requests_paused_reason) = (self.shared.options.name.clone(), self.shared.requests_paused_reason());
        let status = match self.scaler() {
            Some(scaler) => scaler.status().await,
            None => None,
        };
        let unavailable_reason =
            status.is_none().then(|| requests_paused_reason.clone().unwrap_or_else(|| SCALER_ENDED.to_owned()));
        let groups = status.as_ref().map(|status| status.groups.as_slice()).unwrap_or_default();
        let resources = self.shared.usage.current(&groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>());
        Report { runner, unavailable_reason, requests_paused_reason, status, resources }
    }

    /// Explains the scaler's decisions about `subject`: the fleet, a group, an instance or a job.
    ///
    /// `now_unix_s` is the current time in seconds since 1970.
    ///
    /// # Errors
    /// An I/O error if the recorded decisions cannot be read.
    pub async fn explain(&self, subject: &Subject, now_unix_s: i64) -> std::io::Result<Explanation> {
        let report = self.report().await;
        let (ledger, subject) = (self.shared.options.ledger.clone(), subject.clone());
        // Reading up to a hundred thousand lines must not block a thread that serves jobs.
        let read = tokio::task::spawn_blocking(move || {
            explain(&subject, &report, ReportSource::Manager, now_unix_s, &|since, limit, wanted| {
                history::read(&ledger, since, limit, wanted)
            })
        });
        read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    /// Applies an operator's action to an instance or to a group. `by` is the operator's name and reason.
    ///
    /// Returns once the action is stored in the ledger. `None` means that the scaler does not run or did not answer in
    /// time; it may still apply the action.
    pub async fn operate(
        &self,
        target: &OperatorTarget,
        action: OperatorAction,
        by: String,
    ) -> Option<Result<OperatorOutcome, OperatorError>> {
        let id = target.instance.clone().map(InstanceId::new);
        self.scaler()?.apply_operator_action(GroupId(target.group), id, action, by).await
    }

    /// Returns the metrics of the plugins and the instances, of the scaler if it runs, and of virtual machines if
    /// `vm_isolation` is set.
    #[must_use]
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut families = self.scaler().map(|scaler| Arc::clone(scaler.metrics()).families()).unwrap_or_default();
        families.extend(plugin_metrics::families(&self.shared.plugin_counts()));
        families.extend(self.shared.usage.families());
        if self.shared.settings().isolation.is_some() {
            families.extend(self.shared.isolation.families());
        }
        families
    }
}
