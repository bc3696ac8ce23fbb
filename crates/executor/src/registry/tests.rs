use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use muster_job::Secret;

use super::*;
use crate::{EnvironmentRequest, ExecutorError, Lease, LeaseRecord, Slot, SlotKey};

struct StubExecutor(watch::Sender<Capacity>);

impl StubExecutor {
    fn with(jobs: usize) -> Arc<dyn Executor> {
        Arc::new(Self(watch::Sender::new(Capacity::of(jobs))))
    }
}

#[async_trait]
impl Executor for StubExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.0.subscribe()
    }

    async fn acquire(&self, _: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        Err(ExecutorError::NotAcquired("no environments".to_owned()))
    }

    async fn restore(&self, _: &LeaseRecord) -> Result<Lease, ExecutorError> {
        Err(ExecutorError::NotAcquired("no environments".to_owned()))
    }
}

fn runner(token: &str, executor: &str) -> Arc<RunnerSettings> {
    let base = RunnerSettings::new("https://one.example/".parse().unwrap(), Secret::new(token), 0);
    Arc::new(RunnerSettings { executor: executor.to_owned(), ..base })
}

#[tokio::test]
async fn runner_has_an_executor_until_its_last_job_ends() {
    let created = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&created);
    let mut registry = Registry::new().register_shared("shell", StubExecutor::with(7)).register("chroot", move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(StubExecutor::with(3))
    });
    let runners = [runner("a", "shell"), runner("b", "chroot"), runner("c", "chroot"), runner("d", "unknown")];
    registry.configure(&runners, |_| false);
    assert_eq!(runners.each_ref().map(|runner| registry.has(runner)), [true, true, true, false]);
    let jobs: Vec<usize> = registry.capacities(&runners).into_iter().map(|(_, capacity)| capacity.jobs).collect();
    assert_eq!(jobs, [7, 3, 3, 0]);
    assert!(registry.capacities(&runners).is_empty(), "no capacities must be returned if none has changed");
    registry.configure(&runners, |_| false);
    assert_eq!(created.load(Ordering::Relaxed), 2, "an unchanged runner must keep its executor");

    let executor = registry.executor(&runners[1], &runners[1].key);
    registry.configure(&runners[..1], |_| true);
    assert!(
        Arc::ptr_eq(&executor, &registry.executor(&runners[1], &runners[1].key)),
        "a runner with jobs must keep its executor"
    );
    registry.remove_unused(|_| false);
    assert!(registry.has(&runners[0]) && !registry.has(&runners[1]));
}

#[tokio::test]
async fn runner_whose_new_settings_are_unusable_only_finishes_its_jobs() {
    let create = |runner: &RunnerSettings| {
        if runner.name == "bad" { Err("no root".into()) } else { Ok(StubExecutor::with(3)) }
    };
    let mut registry = Registry::new().register("chroot", create);
    let good = [runner("a", "chroot")];
    let bad = [Arc::new(RunnerSettings { name: "bad".to_owned(), ..(*good[0]).clone() })];
    registry.configure(&good, |_| true);
    let executor = registry.executor(&good[0], &good[0].key);
    registry.configure(&bad, |_| true);
    assert!(!registry.has(&bad[0]));
    assert_eq!(registry.capacities(&bad), [(bad[0].key.clone(), Capacity::of(0))]);
    let of_running_jobs = registry.executor(&good[0], &good[0].key);
    assert!(Arc::ptr_eq(&executor, &of_running_jobs), "running jobs must keep their executor");
    registry.configure(&good, |_| true);
    assert!(registry.has(&good[0]));
    assert_eq!(registry.capacities(&good), [(good[0].key.clone(), Capacity::of(3))]);
}

/// Gives the same executor to all runners, and counts removed runners.
struct OneExecutor(Arc<dyn Executor>, Arc<AtomicU32>);

impl ExecutorKind for OneExecutor {
    fn configure(
        &self,
        _: &Arc<RunnerSettings>,
        _: &[Arc<RunnerSettings>],
    ) -> Result<Arc<dyn Executor>, ConfigureError> {
        Ok(Arc::clone(&self.0))
    }

    fn remove(&self, _: &RunnerKey) -> Option<futures::future::BoxFuture<'static, ()>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[tokio::test]
async fn runner_keeps_its_executor_when_the_configuration_names_it_by_an_alias() {
    let removed = Arc::new(AtomicU32::new(0));
    let mut registry = Registry::new()
        .register_shared("shell", StubExecutor::with(7))
        .register_kind("instance", Arc::new(OneExecutor(StubExecutor::with(3), Arc::clone(&removed))))
        .alias("docker", "shell")
        .alias("docker-autoscaler", "instance");
    let runners = [runner("a", "docker"), runner("b", "instance"), runner("c", "kubernetes")];
    registry.configure(&runners, |_| false);
    let jobs: Vec<usize> = registry.capacities(&runners).into_iter().map(|(_, capacity)| capacity.jobs).collect();
    assert_eq!(jobs, [7, 3, 0]);
    let executor = registry.executor(&runners[1], &runners[1].key);
    let renamed = [runner("b", "docker-autoscaler")];
    registry.configure(&renamed, |_| false);
    assert!(Arc::ptr_eq(&executor, &registry.executor(&renamed[0], &renamed[0].key)));
    assert_eq!(removed.load(Ordering::Relaxed), 0, "the executor of the runner must not be removed");
}

#[tokio::test]
async fn restoring_a_lease_without_an_executor_fails() {
    let registry = Registry::new();
    let slot = Slot { id: 0, project_slot: 0, key: SlotKey { runner: "r".to_owned(), project_id: 1 } };
    let removed = runner("a", "instance");
    let lost = registry
        .executor(&removed, &removed.key)
        .restore(&LeaseRecord::remote("g", "i-1", slot, "key"))
        .await
        .unwrap_err();
    let expected = "instance i-1 was lost: its runner was removed from the configuration, or has another executor";
    assert_eq!(lost.to_string(), expected);
}
