//! Cases about the life cycle of instances: creation, snapshots, connections, deletion.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;

use super::plan::Plan;
use super::plugin_process::{CallFailure, PluginUnderTest};
use super::tracker::{InstanceTracker, verdict};
use super::verdict::{Outcome, Run};
use crate::model::InstanceState;
use crate::protocol::SUSPEND_RESUME;
use crate::protocol::group::{ConnectInfoRequest, Empty, IncreaseRequest, InitResponse};

/// Id of an instance that does not exist.
pub(super) const UNKNOWN_ID: &str = "muster-no-such-instance";
/// Longest interval between two snapshots.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A process of the plugin, and the instances that its snapshots have listed.
pub(super) struct Life<'a> {
    pub(super) plan: &'a Plan,
    pub(super) plugin: PluginUnderTest,
    pub(super) tracker: InstanceTracker,
    pub(super) can_suspend: bool,
    max_size: u32,
}

pub(super) async fn run(run: &mut Run<'_>) {
    if run.has_failed("H1") {
        return;
    }
    let Some(mut life) = start_and_init(run).await else { return };
    if let Some(Err(error)) = run.plan.stop.run_until_cancelled(life.run_cases(run)).await {
        run.record("L2", Outcome::Fail(error));
    }
    life.remove_remaining(run).await;
    if run.plan.stop.is_cancelled() {
        life.plugin.end().await;
        return;
    }
    run.record_result("L2", verdict(&life.tracker.invalid_snapshots));
    run.record_result("L4", verdict(&life.tracker.invalid_transitions));
    run.record_result("L5", verdict(&life.tracker.lost));
    run.log.extend(life.plugin.end().await);
    if !run.has_failed("L3") && !run.has_failed("L6") && !run.has_failed("L10") {
        let outcome = restart(run.plan).await;
        run.record("L11", outcome);
    }
}

async fn start_and_init<'a>(run: &mut Run<'a>) -> Option<Life<'a>> {
    let plan = run.plan;
    match Life::start(plan).await {
        Ok((life, init)) => {
            let result = match (init.id.is_empty(), init.max_size) {
                (true, _) => Err("the group has no id, which logs need".to_owned()),
                (_, 0) => Err("max_size is 0; Go hosts create no instance then".to_owned()),
                _ => Ok(()),
            };
            run.record_result("L1", result);
            Some(life)
        }
        Err(error) => {
            run.record("L1", Outcome::Fail(error));
            None
        }
    }
}

impl<'a> Life<'a> {
    async fn start(plan: &'a Plan) -> Result<(Self, InitResponse), String> {
        let mut plugin = PluginUnderTest::start(plan, &[], |_| {}).await?;
        match plugin.init_as_planned(plan).await {
            Ok(init) => {
                let can_suspend = init.capabilities.iter().any(|capability| capability == SUSPEND_RESUME);
                let (max_size, tracker) = (init.max_size, InstanceTracker::default());
                Ok((Self { plan, plugin, tracker, can_suspend, max_size }, init))
            }
            Err(failure) => {
                plugin.end().await;
                Err(failure.text("Init"))
            }
        }
    }

    /// Runs the cases of one process. An error means that snapshots cannot be read.
    async fn run_cases(&mut self, run: &mut Run<'_>) -> Result<(), String> {
        self.read_snapshot().await?;
        if let Some(others) = self.tracker.preexisting() {
            run.record("L3", Outcome::Fail(format!(
                "the group already has instances ({others}), which the kit cannot distinguish from those that it creates and \
                 deletes; use a separate group for tests"
            )));
            return Ok(());
        }
        let outcome = self.error_message().await;
        run.record("P10", outcome);
        let accepted = match self.increase(self.plan.instances.min(self.max_size)).await {
            Ok(accepted) => accepted,
            Err(error) => {
                run.record("L3", Outcome::Fail(error));
                return Ok(());
            }
        };
        let are_up = self.wait_until_up(accepted).await?;
        let created = self.tracker.created_count();
        let count_result = if created == accepted {
            Ok(())
        } else {
            Err(format!("Increase accepted {accepted} instances, but {created} appeared"))
        };
        run.record_result("L3", count_result);
        let is_up = |id: &String| self.tracker.state(id) == Some(InstanceState::Running);
        let ids: Vec<String> = self.tracker.created().into_iter().filter(is_up).collect();
        run.record_result(
            "L6",
            if are_up {
                Ok(())
            } else {
                Err(format!(
                    "{} of {accepted} instances were running after {:.1} s",
                    ids.len(),
                    self.plan.create_timeout.as_secs_f64()
                ))
            },
        );
        if ids.is_empty() {
            return Ok(());
        }
        self.reach(run, &ids).await?;
        self.remove(run, &ids).await
    }

    /// Reads a complete snapshot and records it.
    pub(super) async fn read_snapshot(&mut self) -> Result<(), String> {
        let mut group = self.plugin.connection.group();
        let read = async move {
            let mut stream = group.update(Empty {}).await?.into_inner();
            let mut snapshot = Vec::new();
            while let Some(message) = stream.next().await {
                let message = message?;
                snapshot.push((message.instance, message.state));
            }
            Ok(snapshot)
        };
        let snapshot = self.plugin.call(read).await.map_err(|failure| failure.text("Update"))?;
        self.tracker.record_snapshot(&snapshot);
        Ok(())
    }

    /// Reads snapshots until the condition holds. Returns `false` if it does not hold in time.
    pub(super) async fn wait(
        &mut self,
        limit: Duration,
        until: impl Fn(&InstanceTracker) -> bool,
    ) -> Result<bool, String> {
        let (end, mut pause) = (Instant::now() + limit, self.plan.poll);
        loop {
            self.read_snapshot().await?;
            if until(&self.tracker) {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// Requests instances until `wanted` have been accepted.
    async fn increase(&mut self, wanted: u32) -> Result<usize, String> {
        let (end, mut pause, mut accepted) = (Instant::now() + self.plan.create_timeout, self.plan.poll, 0);
        while accepted < wanted {
            let n = wanted - accepted;
            let mut group = self.plugin.connection.group();
            let answer = self.plugin.call(async move { group.increase(IncreaseRequest { n }).await }).await;
            let succeeded = answer.map_err(|failure| failure.text("Increase"))?.into_inner().succeeded;
            if succeeded > n {
                return Err(format!("Increase accepted {succeeded} instances, but {n} were requested (P13)"));
            }
            accepted += succeeded;
            if accepted < wanted {
                if Instant::now() >= end {
                    return Err(format!(
                        "Increase accepted {accepted} of {wanted} within {:.1} s",
                        self.plan.create_timeout.as_secs_f64()
                    ));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_POLL_INTERVAL);
            }
        }
        Ok(accepted as usize)
    }

    /// Waits until all accepted instances are running, and a little longer in case there are too many.
    async fn wait_until_up(&mut self, accepted: usize) -> Result<bool, String> {
        let runs = |tracker: &InstanceTracker, id: &String| tracker.state(id) == Some(InstanceState::Running);
        let are_up = |tracker: &InstanceTracker| {
            let created = tracker.created();
            created.len() >= accepted && created.iter().all(|id| runs(tracker, id))
        };
        let up = self.wait(self.plan.create_timeout, are_up).await?;
        for _ in 0..3 {
            tokio::time::sleep(self.plan.poll).await;
            self.read_snapshot().await?;
        }
        Ok(up)
    }

    /// Checks that an error has a readable message.
    async fn error_message(&mut self) -> Outcome {
        let mut group = self.plugin.connection.group();
        let request = ConnectInfoRequest { instance: UNKNOWN_ID.to_owned() };
        match self.plugin.call(async move { group.connect_info(request).await }).await {
            Ok(_) => Outcome::Warn("ConnectInfo of an unknown instance is not an error".to_owned()),
            Err(failure @ (CallFailure::Timeout(_) | CallFailure::Disconnected(_))) => {
                Outcome::Fail(failure.text("ConnectInfo of an unknown instance"))
            }
            Err(failure) if failure.is_unimplemented() => Outcome::Fail("ConnectInfo is not implemented".to_owned()),
            Err(CallFailure::Error(status)) if status.message().trim().is_empty() => {
                Outcome::Fail("ConnectInfo of an unknown instance returns an error without a message".to_owned())
            }
            Err(CallFailure::Error(status)) if status.code() != tonic::Code::Unknown => Outcome::Warn(format!(
                "an error has the code {:?}; Go plugins use Unknown, and hosts show only the message",
                status.code()
            )),
            Err(CallFailure::Error(_)) => Outcome::Pass,
        }
    }
}

/// Creates an instance, kills the process, and checks the snapshot of a new process.
async fn restart(plan: &Plan) -> Outcome {
    let failed = |error: String| Outcome::Fail(error);
    let (mut life, _) = match Life::start(plan).await {
        Ok(started) => started,
        Err(error) => return failed(error),
    };
    let created = async {
        life.read_snapshot().await?;
        let accepted = life.increase(1).await?;
        if !life.wait_until_up(accepted).await? {
            return Err("the instance for this case did not start".to_owned());
        }
        Ok(life.tracker.created())
    };
    let created = plan.stop.run_until_cancelled(created).await.unwrap_or_else(|| Err("the run was stopped".to_owned()));
    let Life { plugin, mut tracker, .. } = life;
    plugin.end().await;
    let (started, refused) = match Life::start(plan).await {
        Ok(started) => (Ok(started), None),
        // Start it once more, because the created instance must be deleted.
        Err(error) => (Life::start(plan).await, Some(format!("after the process was killed: {error}"))),
    };
    let (mut life, _) = match (started, &refused) {
        (Ok(started), _) => started,
        (Err(error), first) => {
            let first = first.as_ref().unwrap_or(&error);
            let left = tracker.created().join(", ");
            return failed(if left.is_empty() {
                first.clone()
            } else {
                format!("{first}; delete the instances of this case manually: {left}")
            });
        }
    };
    tracker.ignore_missing();
    life.tracker = tracker;
    let outcome = match (created, life.read_snapshot().await) {
        (Ok(_), Ok(())) if refused.is_some() => failed(refused.unwrap_or_default()),
        (Err(error), _) | (_, Err(error)) => failed(error),
        (Ok(created), Ok(())) if created.iter().all(|id| life.tracker.exists(id)) => Outcome::Pass,
        (Ok(_), Ok(())) => Outcome::Skip("its instances ended with the process, or are not listed any more".to_owned()),
    };
    let left = life.remove_all().await;
    life.plugin.end().await;
    match left {
        Err(error) if !matches!(outcome, Outcome::Fail(_)) => failed(error),
        _ => outcome,
    }
}
