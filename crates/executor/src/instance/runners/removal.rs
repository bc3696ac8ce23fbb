//! Removal of runners that no longer use instances.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Fleet, Inner, RemainingUse, log_stopped};

/// Time after which a removal is logged as slow.
const SLOW_AFTER: Duration = Duration::from_secs(60);

/// Deletes the instances of a removed runner until none remains.
pub(super) struct Removal {
    pub(super) fleet: Fleet,
    /// Time within which the removal must end. `None` means no limit.
    limit: watch::Sender<Option<Duration>>,
}

impl Removal {
    /// Makes the removal end within about `timeout`, even if instances remain.
    pub(super) fn limit(&self, timeout: Duration) {
        self.limit.send_replace(Some(timeout));
    }

    /// Waits until the removal has ended.
    pub(super) async fn ended(&self) {
        self.limit.closed().await;
    }
}

impl Inner {
    /// Returns a removal, and the future that deletes the instances and the ledger.
    pub(super) fn removal(self: &Arc<Self>, fleet: Fleet) -> (Removal, impl Future<Output = ()> + Send + use<>) {
        let (limit, mut limited) = watch::channel(None);
        let (executors, removed) = (Arc::clone(self), fleet.clone());
        let remove = async move {
            let limit = async {
                let timeout = limited.wait_for(Option::is_some).await.ok().and_then(|timeout| *timeout);
                match timeout {
                    Some(timeout) => timeout,
                    None => std::future::pending().await,
                }
            };
            let Fleet { runner, executor } = &removed;
            let must_end = async {
                tokio::pin!(limit);
                if let Ok(timeout) = tokio::time::timeout(SLOW_AFTER, &mut limit).await {
                    return timeout;
                }
                let runner = &runner.name;
                tracing::warn!(
                    runner,
                    "the instances of a removed runner are not deleted yet; run `muster fleet status` to see the reason"
                );
                limit.await
            };
            let remaining = executor.remove_all_and_stop(must_end).await;
            let mut state = executors.state.lock();
            let is_configured = state.fleets.contains_key(&runner.key);
            let remaining_use = if is_configured { RemainingUse::NewExecutor } else { RemainingUse::None };
            log_stopped(&runner.name, remaining, remaining_use);
            if !is_configured {
                executors.ledger_dir().forget(&runner.key);
            }
            let listed = state.removals.len();
            state.removals.retain(|removal| !Arc::ptr_eq(&removal.fleet.executor, executor));
            // When the manager exits, the removals were already taken out of the list.
            if state.removals.len() < listed {
                executors.publish(&mut state);
            }
        };
        (Removal { fleet, limit }, remove)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use muster_config::settings::RunnerSettings;
    use muster_fleeting::model::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState};
    use muster_job::Secret;
    use muster_taskscaler::config::{Config, GroupConfig};
    use muster_taskscaler::driver::{
        Buckets, FileLedger, InstanceCallError, InstanceGroupPort, PluginAvailability, ReadyWhenReachable, Scaler,
    };
    use muster_taskscaler::policy::{IdleTarget, Policies};
    use parking_lot::Mutex;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::deploy::Executable;
    use crate::instance::runners::{InstanceExecutors, InstancesOptions};
    use crate::registry::ExecutorKind as _;

    /// Provider that fails to delete instances until `works` is set.
    #[derive(Default)]
    struct Cloud {
        instances: Mutex<BTreeSet<InstanceId>>,
        works: AtomicBool,
    }

    #[async_trait]
    impl InstanceGroupPort for Cloud {
        fn status(&self) -> watch::Receiver<PluginAvailability> {
            watch::Sender::new(PluginAvailability::Up { max_size: 0 }).subscribe()
        }

        async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String> {
            Ok(self.instances.lock().iter().map(|id| (id.clone(), InstanceState::Running)).collect())
        }

        async fn increase(&self, n: u32) -> Result<u32, String> {
            self.instances.lock().extend((0..n).map(|n| InstanceId::new(format!("i-{n}"))));
            Ok(n)
        }

        async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
            if !self.works.load(Ordering::Relaxed) {
                return Err("the provider's API is down".to_owned());
            }
            self.instances.lock().retain(|id| !ids.contains(id));
            Ok(ids.to_vec())
        }

        async fn connect_info(&self, _: &InstanceId) -> Result<ConnectInfo, InstanceCallError> {
            let (connector, internal_addr) = (ConnectorConfig::default(), "10.0.0.1".to_owned());
            Ok(ConnectInfo { connector, internal_addr, external_addr: String::new(), expires: None })
        }

        async fn heartbeat(&self, _: &InstanceId) -> Result<(), InstanceCallError> {
            Ok(())
        }

        async fn stop(self: Arc<Self>) {}
    }

    struct RemovedRunner {
        cloud: Arc<Cloud>,
        executors: InstanceExecutors,
        runner: Arc<RunnerSettings>,
        removed: JoinHandle<()>,
        dir: tempfile::TempDir,
    }

    impl RemovedRunner {
        /// Creates a runner with two instances, and starts to remove it.
        async fn start() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let executors = InstanceExecutors::new(InstancesOptions {
                ledgers: dir.path().join("instances"),
                executable: Arc::new(Executable::new("/nonexistent/muster")),
                find_plugin: |_| Err("no plugin".to_owned()),
            });
            let base = RunnerSettings::new("https://one.example/".parse().unwrap(), Secret::new("token"), 0);
            let runner = Arc::new(RunnerSettings { autoscaler: Some(Arc::default()), ..base });
            executors.leases_announced();
            executors.configure(&runner, std::slice::from_ref(&runner)).unwrap();
            executors.configured(std::slice::from_ref(&runner.key));
            let cloud = Arc::<Cloud>::default();
            start_scaler(&executors, &cloud).await;
            executors.configured(&[]);
            let removed = tokio::spawn(executors.remove(&runner.key).unwrap());
            executors.configured(&[]);
            // Longer than one attempt to delete an instance.
            tokio::time::sleep(Duration::from_secs(300)).await;
            Self { cloud, executors, runner, removed, dir }
        }

        fn files(&self) -> Vec<std::path::PathBuf> {
            let files = std::fs::read_dir(self.dir.path().join("instances")).unwrap();
            let files = files.map(|file| file.unwrap().path());
            files.filter(|file| file.extension().is_some_and(|name| name == "ledger" || name == "owner")).collect()
        }
    }

    /// Starts a scaler, which creates two instances, for the only executor.
    async fn start_scaler(executors: &InstanceExecutors, cloud: &Arc<Cloud>) {
        let fleet = executors.fleets().current().remove(0);
        let mut config = Config::new(GroupConfig::new("main", 2));
        let (idle_time, preemptive) = (Duration::from_secs(3600), true);
        config.policies =
            Policies::always(IdleTarget { idle_count: 2, idle_time, preemptive, ..IdleTarget::default() });
        let plugins: Vec<Arc<dyn InstanceGroupPort>> = vec![Arc::<Cloud>::clone(cloud)];
        let store = Box::new(FileLedger::new(&fleet.executor.shared.options.ledger));
        let (prepare, buckets) = (Arc::new(ReadyWhenReachable), Buckets::default());
        let scaler = Scaler::start(config, plugins, prepare, store, &buckets, || 0).await.unwrap();
        fleet.executor.shared.scaler_started(&scaler, &Arc::default());
        fleet.executor.shared.check_claims();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(cloud.instances.lock().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn removal_continues_until_the_provider_deletes_the_instances() {
        let mut removed = RemovedRunner::start().await;
        assert!(!removed.removed.is_finished());
        let report = removed.executors.fleets().current().remove(0).executor.report().await;
        assert_eq!((report.status.unwrap().instances.len(), removed.files().len()), (2, 2));
        removed.cloud.works.store(true, Ordering::Relaxed);
        tokio::time::timeout(Duration::from_secs(3600), &mut removed.removed).await.unwrap().unwrap();
        assert_eq!((removed.cloud.instances.lock().len(), removed.files().len()), (0, 0));
        assert!(removed.executors.fleets().current().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn exit_of_the_manager_ends_a_removal() {
        let mut removed = RemovedRunner::start().await;
        tokio::time::timeout(Duration::from_secs(70), removed.executors.stop(Duration::from_secs(60))).await.unwrap();
        (&mut removed.removed).await.unwrap();
        assert_eq!((removed.files().len(), removed.cloud.instances.lock().len()), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn runner_that_is_added_again_uses_the_remaining_instances() {
        let mut removed = RemovedRunner::start().await;
        let runner = Arc::clone(&removed.runner);
        removed.executors.configure(&runner, std::slice::from_ref(&runner)).unwrap();
        removed.executors.configured(std::slice::from_ref(&runner.key));
        tokio::time::timeout(Duration::from_secs(30), &mut removed.removed).await.unwrap().unwrap();
        assert_eq!((removed.files().len(), removed.cloud.instances.lock().len()), (2, 2));
        assert_eq!(removed.executors.fleets().current().len(), 1);
    }
}
