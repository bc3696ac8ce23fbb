//! Cases about deleting instances.

use std::time::Duration;

use tokio::time::Instant;

use super::lifecycle::{LifecycleRun, UNKNOWN_ID};
use super::plugin_process::CallFailure;
use super::verdict::{Outcome, Run};
use crate::model::InstanceState;
use crate::protocol::group::DecreaseRequest;

const RETRY_DELAY: Duration = Duration::from_millis(200);

impl LifecycleRun<'_> {
    /// Runs the cases about deletion. Returns an error if the list of instances cannot be read.
    pub(super) async fn run_removal_cases(&mut self, run: &mut Run<'_>, ids: &[String]) -> Result<(), String> {
        let Some(first) = ids.first() else { return Ok(()) };
        let result = self.remove_one(first).await?;
        if !run.record_result("L9", result) {
            return Ok(());
        }
        let outcome = match self.decrease(std::slice::from_ref(first)).await {
            Ok(accepted) if accepted.contains(first) => Outcome::Pass,
            Ok(_) => Outcome::Warn(
                "the response does not contain the instance; hosts repeat such requests indefinitely".to_owned(),
            ),
            Err(failure @ CallFailure::Error(_)) => Outcome::Warn(format!(
                "{}; hosts repeat such requests indefinitely: return the instance as deleted",
                failure.text("Decrease")
            )),
            Err(failure) => Outcome::Fail(failure.text("Decrease of a deleted instance")),
        };
        run.record("P14", outcome);
        match ids.get(1) {
            Some(second) => {
                let outcome = self.remove_with_unknown(second).await?;
                run.record("P12", outcome);
            }
            None => run.skip(&["P12"], "needs two instances"),
        }
        Ok(())
    }

    /// Deletes one instance. The inner error is the reason why the case fails.
    /// The outer error means that the list of instances cannot be read.
    async fn remove_one(&mut self, id: &String) -> Result<Result<(), String>, String> {
        let others: Vec<String> = self.tracker.existing_created().into_iter().filter(|other| other != id).collect();
        let accepted = match self.decrease(std::slice::from_ref(id)).await {
            Ok(accepted) => accepted,
            Err(failure) => return Ok(Err(failure.text("Decrease"))),
        };
        if accepted != [id.clone()] {
            return Ok(Err(format!("Decrease accepted {accepted:?}, but {id} was requested")));
        }
        let timeout = self.plan.delete_timeout;
        if !self.wait_for(timeout, |tracker| !tracker.exists(id)).await? {
            return Ok(Err(format!("{id} still existed {:.1} s after Decrease accepted it", timeout.as_secs_f64())));
        }
        let was_deleted =
            |other: &&String| self.tracker.state(other).is_none_or(|state| state == InstanceState::Deleting);
        let lost: Vec<&str> = others.iter().filter(was_deleted).map(String::as_str).collect();
        Ok(if lost.is_empty() { Ok(()) } else { Err(format!("Decrease of {id} also deleted {}", lost.join(", "))) })
    }

    async fn remove_with_unknown(&mut self, id: &String) -> Result<Outcome, String> {
        let failure = match self.decrease(&[id.clone(), UNKNOWN_ID.to_owned()]).await {
            Ok(accepted) if accepted.contains(id) => return Ok(Outcome::Pass),
            Ok(_) => {
                return Ok(Outcome::Fail(format!("Decrease of {id} and an unknown instance does not return {id}")));
            }
            Err(failure @ CallFailure::Error(_)) => failure,
            Err(failure) => return Ok(Outcome::Fail(failure.text("Decrease with an unknown instance"))),
        };
        self.read_snapshot().await?;
        let is_deleting = self.tracker.state(id).is_none_or(|state| state == InstanceState::Deleting);
        Ok(if is_deleting {
            Outcome::Warn(format!(
                "{}; {id} was deleted, but the host does not learn this from an error; return the accepted instances",
                failure.text("Decrease")
            ))
        } else {
            Outcome::Pass
        })
    }

    async fn decrease(&mut self, ids: &[String]) -> Result<Vec<String>, CallFailure> {
        self.tracker.record_deletion_request(ids);
        let mut group = self.plugin.connection.group();
        let request = DecreaseRequest { instances: ids.to_vec() };
        let answer = self.plugin.call(async move { group.decrease(request).await }).await;
        Ok(answer?.into_inner().succeeded)
    }

    /// Deletes all instances that the kit created, also after failed cases.
    pub(super) async fn remove_remaining(&mut self, run: &mut Run<'_>) {
        let result = self.remove_all().await;
        if self.tracker.created_count() > 0 || result.is_err() {
            run.record_result("L10", result);
        }
    }

    pub(super) async fn remove_all(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + self.plan.delete_timeout;
        let mut last_error = String::new();
        loop {
            // If the snapshot cannot be read, instances that are not known yet may exist.
            let snapshot = self.read_snapshot().await;
            let existing = self.tracker.existing_created();
            if snapshot.is_ok() && existing.is_empty() {
                return Ok(());
            }
            let is_deleting = |id: &String| self.tracker.state(id) == Some(InstanceState::Deleting);
            let remaining: Vec<String> = existing.iter().filter(|id| !is_deleting(id)).cloned().collect();
            if !remaining.is_empty()
                && let Err(failure) = self.decrease(&remaining).await
            {
                last_error = format!(": {}", failure.text("Decrease"));
            }
            // If snapshots cannot be read, the known instances are deleted with a single attempt.
            snapshot?;
            if Instant::now() >= deadline {
                let names = existing.join(", ");
                return Err(format!(
                    "not deleted within {:.1} s: {names}{last_error}; delete them manually",
                    self.plan.delete_timeout.as_secs_f64()
                ));
            }
            tokio::time::sleep(RETRY_DELAY.min(self.plan.poll * 4)).await;
        }
    }
}
