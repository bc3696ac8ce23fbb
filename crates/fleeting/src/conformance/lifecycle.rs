//! Cases about the lifecycle of instances: creation, listing, connections, deletion.
//! A snapshot is the list of all instances and their states, as `Update` returns it.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;

use super::plan::Plan;
use super::plugin_process::{CallFailure, PluginUnderTest};
use super::tracker::{InstanceTracker, problems_to_result};
use super::verdict::{Outcome, Run};
use crate::model::InstanceState;
use crate::protocol::SUSPEND_RESUME;
use crate::protocol::group::{ConnectInfoRequest, Empty, IncreaseRequest, InitResponse};

pub(super) const UNKNOWN_ID: &str = "muster-no-such-instance";
/// Longest interval between two snapshots.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

pub(super) struct LifecycleRun<'a> {
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
    let Some(mut lifecycle) = start_and_init(run).await else { return };
    if let Some(Err(error)) = run.plan.stop.run_until_cancelled(lifecycle.run_cases(run)).await {
        run.record("L2", Outcome::Fail(error));
    }
    lifecycle.remove_remaining(run).await;
    if run.plan.stop.is_cancelled() {
        lifecycle.plugin.kill().await;
        return;
    }
    run.record_result("L2", problems_to_result(&lifecycle.tracker.invalid_snapshots));
    run.record_result("L4", problems_to_result(&lifecycle.tracker.invalid_transitions));
    run.record_result("L5", problems_to_result(&lifecycle.tracker.lost));
    run.log.extend(lifecycle.plugin.kill().await);
    if !run.has_failed("L3") && !run.has_failed("L6") && !run.has_failed("L10") {
        let outcome = check_restart(run.plan).await;
        run.record("L11", outcome);
    }
}

async fn start_and_init<'a>(run: &mut Run<'a>) -> Option<LifecycleRun<'a>> {
    let plan = run.plan;
    match LifecycleRun::start(plan).await {
        Ok((lifecycle, init)) => {
            let result = match (init.id.is_empty(), init.max_size) {
                (true, _) => Err("the group has no ID, which hosts need for their logs".to_owned()),
                (_, 0) => Err("max_size is 0; Go hosts create no instance then".to_owned()),
                _ => Ok(()),
            };
            run.record_result("L1", result);
            Some(lifecycle)
        }
        Err(error) => {
            run.record("L1", Outcome::Fail(error));
            None
        }
    }
}

impl<'a> LifecycleRun<'a> {
    async fn start(plan: &'a Plan) -> Result<(Self, InitResponse), String> {
        let mut plugin = PluginUnderTest::start(plan, &[], |_| {}).await?;
        match plugin.init_as_planned(plan).await {
            Ok(init) => {
                let can_suspend = init.capabilities.iter().any(|capability| capability == SUSPEND_RESUME);
                let (max_size, tracker) = (init.max_size, InstanceTracker::default());
                Ok((Self { plan, plugin, tracker, can_suspend, max_size }, init))
            }
            Err(failure) => {
                plugin.kill().await;
                Err(failure.text("Init"))
            }
        }
    }

    /// Runs the cases that need only one process of the plugin.
    /// Returns an error if the list of instances cannot be read.
    async fn run_cases(&mut self, run: &mut Run<'_>) -> Result<(), String> {
        self.read_snapshot().await?;
        if let Some(preexisting) = self.tracker.preexisting() {
            run.record("L3", Outcome::Fail(format!(
                "the group already has instances ({preexisting}), which the kit cannot distinguish from those that it creates and \
                 deletes; use a separate group for tests"
            )));
            return Ok(());
        }
        let outcome = self.check_error_message().await;
        run.record("P10", outcome);
        let accepted = match self.increase(self.plan.instances.min(self.max_size)).await {
            Ok(accepted) => accepted,
            Err(error) => {
                run.record("L3", Outcome::Fail(error));
                return Ok(());
            }
        };
        let are_all_running = self.wait_until_running(accepted).await?;
        let created = self.tracker.created_count();
        let count_result = if created == accepted {
            Ok(())
        } else {
            Err(format!("Increase accepted {accepted} instances, but {created} appeared"))
        };
        run.record_result("L3", count_result);
        let is_running = |id: &String| self.tracker.state(id) == Some(InstanceState::Running);
        let ids: Vec<String> = self.tracker.existing_created().into_iter().filter(is_running).collect();
        run.record_result(
            "L6",
            if are_all_running {
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
        self.run_connection_cases(run, &ids).await?;
        self.run_removal_cases(run, &ids).await
    }

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

    /// Reads snapshots until the condition holds. Returns `false` after the timeout.
    pub(super) async fn wait_for(
        &mut self,
        timeout: Duration,
        condition: impl Fn(&InstanceTracker) -> bool,
    ) -> Result<bool, String> {
        let (deadline, mut delay) = (Instant::now() + timeout, self.plan.poll);
        loop {
            self.read_snapshot().await?;
            if condition(&self.tracker) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_POLL_INTERVAL);
        }
    }

    async fn increase(&mut self, wanted: u32) -> Result<usize, String> {
        let (deadline, mut delay, mut accepted) = (Instant::now() + self.plan.create_timeout, self.plan.poll, 0);
        while accepted < wanted {
            let n = wanted - accepted;
            let mut group = self.plugin.connection.group();
            let answer = self.plugin.call(async move { group.increase(IncreaseRequest { n }).await }).await;
            let succeeded = answer.map_err(|failure| failure.text("Increase"))?.into_inner().succeeded;
            if succeeded > n {
                return Err(format!("Increase accepted {succeeded} instances, but only {n} were requested"));
            }
            accepted += succeeded;
            if accepted < wanted {
                if Instant::now() >= deadline {
                    return Err(format!(
                        "Increase accepted {accepted} of {wanted} instances within {:.1} s",
                        self.plan.create_timeout.as_secs_f64()
                    ));
                }
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(MAX_POLL_INTERVAL);
            }
        }
        Ok(accepted as usize)
    }

    /// Waits until all accepted instances are running, and a little longer to see surplus instances. Returns `false` after the timeout.
    async fn wait_until_running(&mut self, accepted: usize) -> Result<bool, String> {
        let is_running = |tracker: &InstanceTracker, id: &String| tracker.state(id) == Some(InstanceState::Running);
        let are_all_running = |tracker: &InstanceTracker| {
            let created = tracker.existing_created();
            created.len() >= accepted && created.iter().all(|id| is_running(tracker, id))
        };
        let all_running = self.wait_for(self.plan.create_timeout, are_all_running).await?;
        for _ in 0..3 {
            tokio::time::sleep(self.plan.poll).await;
            self.read_snapshot().await?;
        }
        Ok(all_running)
    }

    async fn check_error_message(&mut self) -> Outcome {
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

/// Creates an instance, kills the process, and checks that a new process lists the instance.
async fn check_restart(plan: &Plan) -> Outcome {
    let (mut lifecycle, _) = match LifecycleRun::start(plan).await {
        Ok(started) => started,
        Err(error) => return Outcome::Fail(error),
    };
    let created = async {
        lifecycle.read_snapshot().await?;
        let accepted = lifecycle.increase(1).await?;
        if !lifecycle.wait_until_running(accepted).await? {
            return Err("the instance for this case did not start".to_owned());
        }
        Ok(lifecycle.tracker.existing_created())
    };
    let created = plan.stop.run_until_cancelled(created).await.unwrap_or_else(|| Err("the run was stopped".to_owned()));
    let LifecycleRun { plugin, mut tracker, .. } = lifecycle;
    plugin.kill().await;
    let (started, restart_error) = match LifecycleRun::start(plan).await {
        Ok(started) => (Ok(started), None),
        // Another start is needed to delete the created instance.
        Err(error) => (LifecycleRun::start(plan).await, Some(format!("after the process was killed: {error}"))),
    };
    let (mut lifecycle, _) = match (started, &restart_error) {
        (Ok(started), _) => started,
        (Err(error), restart_error) => {
            let first_error = restart_error.as_ref().unwrap_or(&error);
            let remaining = tracker.existing_created().join(", ");
            return Outcome::Fail(if remaining.is_empty() {
                first_error.clone()
            } else {
                format!("{first_error}; delete the instances of this case manually: {remaining}")
            });
        }
    };
    tracker.ignore_missing();
    lifecycle.tracker = tracker;
    let outcome = match (created, lifecycle.read_snapshot().await) {
        (Ok(_), Ok(())) if restart_error.is_some() => Outcome::Fail(restart_error.unwrap_or_default()),
        (Err(error), _) | (_, Err(error)) => Outcome::Fail(error),
        (Ok(created), Ok(())) if created.iter().all(|id| lifecycle.tracker.exists(id)) => Outcome::Pass,
        (Ok(_), Ok(())) => {
            Outcome::Skip("the instances were deleted with the process, or are no longer listed".to_owned())
        }
    };
    let removal = lifecycle.remove_all().await;
    lifecycle.plugin.kill().await;
    match removal {
        Err(error) if !matches!(outcome, Outcome::Fail(_)) => Outcome::Fail(error),
        _ => outcome,
    }
}
