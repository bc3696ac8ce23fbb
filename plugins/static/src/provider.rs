//! Calls of the protocol, and background tasks.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    ConnectInfo, Error, Extension, Features, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
};
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::pool::{MachineTask, Pool};
use crate::probe;
use crate::store::Store;

const MAX_CONCURRENT_TASKS: usize = 64;
/// Maximum wait for the first checks. It is shorter than the host's timeout for `Init`, which is one minute.
const INITIAL_CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum wait for the first checks of the other machines, once one machine is healthy.
const STRAGGLER_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Static {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    settings: Settings,
    pool: Arc<Mutex<Pool>>,
    store: Arc<Store>,
    /// Limits the number of checks and cleanups that run at once.
    task_permits: Semaphore,
    /// Modification time of `machines_file` when it was last read. `None` if it could not be read.
    machines_modified: Mutex<Option<SystemTime>>,
}

impl Inner {
    /// Stores the leases on another thread. The pool is locked meanwhile, so that callers see only durable state.
    ///
    /// Reverts the change if storing fails.
    async fn save_leases(
        &self,
        mut pool: OwnedMutexGuard<Pool>,
        revert: impl FnOnce(&mut Pool) + Send + 'static,
    ) -> Result<(), Error> {
        let store = Arc::clone(&self.store);
        let task = tokio::task::spawn_blocking(move || {
            let result = store.save(pool.leases());
            if result.is_err() {
                revert(&mut pool);
            }
            result
        });
        Ok(task.await??)
    }

    async fn pool(&self) -> OwnedMutexGuard<Pool> {
        Arc::clone(&self.pool).lock_owned().await
    }

    async fn run_task(self: Arc<Self>, task: MachineTask) {
        let result = {
            let _permit = self.task_permits.acquire().await;
            probe::run(&task, &self.config, &self.settings.connector).await
        };
        let mut pool = self.pool().await;
        if pool.finish_task(&task, result)
            && let Err(error) = self.save_leases(pool, |_| ()).await
        {
            // After a restart, the machine would be cleaned up again, which is harmless.
            tracing::error!(%error, "failed to store the leases");
        }
    }

    /// Runs the tasks concurrently, because a cleanup can be slow.
    fn spawn_tasks(self: &Arc<Self>, tasks: Vec<MachineTask>) -> JoinSet<()> {
        tasks.into_iter().map(|task| Arc::clone(self).run_task(task)).collect()
    }

    /// Waits for the first checks, up to [`INITIAL_CHECK_TIMEOUT`].
    ///
    /// Once a machine is healthy, waits only briefly for the others.
    async fn wait_for_first_checks(&self, mut checks: JoinSet<()>) {
        let _ = tokio::time::timeout(INITIAL_CHECK_TIMEOUT, async {
            while checks.join_next().await.is_some() && !self.pool().await.has_available() {}
            let others = async { while checks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(STRAGGLER_TIMEOUT, others).await;
        })
        .await;
        // The remaining checks continue in the background.
        checks.detach_all();
    }

    async fn check_loop(self: Arc<Self>) {
        let interval = Duration::from_secs(self.config.health_interval_s);
        loop {
            tokio::time::sleep(interval).await;
            let tasks = self.pool().await.start_due_tasks();
            self.spawn_tasks(tasks).detach_all();
        }
    }

    async fn reload_machines(self: &Arc<Self>) {
        if self.config.machines_file.as_os_str().is_empty() {
            return;
        }
        let mut last_modified = self.machines_modified.lock().await;
        let modified = tokio::fs::metadata(&self.config.machines_file).await.and_then(|meta| meta.modified()).ok();
        if modified == *last_modified {
            return;
        }
        let text = match self.config.read_machines_file().await {
            Ok(text) => text,
            Err(error) => {
                *last_modified = None;
                tracing::error!(error, "failed to read the list of machines, retrying; using the previous list");
                return;
            }
        };
        match self.config.all_machines(&text) {
            Ok(machines) => {
                tracing::info!(machines = machines.len(), "list of machines reloaded");
                let mut pool = self.pool().await;
                pool.set_machines(machines);
                *last_modified = modified;
                self.spawn_tasks(pool.start_due_tasks()).detach_all();
            }
            Err(error) => {
                *last_modified = modified;
                tracing::error!(error, "invalid list of machines; using the previous list");
            }
        }
    }
}

#[async_trait]
impl Provider for Static {
    const NAME: &'static str = "static";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        config.check()?;
        let modified = std::fs::metadata(&config.machines_file).and_then(|meta| meta.modified()).ok();
        let machines = config.all_machines(&config.read_machines_file().await?)?;
        let machine_count = u32::try_from(machines.len()).unwrap_or(u32::MAX);
        let max_size = if config.max_size == 0 { machine_count.max(1) } else { config.max_size };
        let (store, next_lease, leases) = Store::open(config.state_path()?).await?;
        let pool = Pool::new(machines, next_lease, leases);
        let id = format!("static/{}", config.name);
        let inner = Arc::new(Inner {
            config,
            settings,
            pool: Arc::new(Mutex::new(pool)),
            store: Arc::new(store),
            task_permits: Semaphore::new(MAX_CONCURRENT_TASKS),
            machines_modified: Mutex::new(modified),
        });
        inner.save_leases(inner.pool().await, |_| ()).await?;
        let checks = inner.spawn_tasks(inner.pool().await.start_due_tasks());
        inner.wait_for_first_checks(checks).await;
        tokio::spawn(Arc::clone(&inner).check_loop());
        tracing::info!(group = id, machines = machine_count, "ready");
        Ok((Self { inner }, Init { id, max_size, can_suspend: false }))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        self.inner.reload_machines().await;
        Ok(self.inner.pool().await.instances())
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let mut pool = self.inner.pool().await;
        let leased = pool.lease(n);
        if leased.is_empty() && n > 0 {
            return Err(PartialFailure::none_succeeded(pool.no_machine_reason()));
        }
        let count = u32::try_from(leased.len())?;
        // The leases must be durable before they are reported.
        self.inner
            .save_leases(pool, move |pool| pool.revert_leases(&leased))
            .await
            .map_err(PartialFailure::none_succeeded)?;
        Ok(count)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let mut pool = self.inner.pool().await;
        let released: Vec<_> = ids.iter().filter_map(|id| pool.release(id)).collect();
        self.inner.save_leases(pool, |_| ()).await.map_err(PartialFailure::none_succeeded)?;
        let mut pool = self.inner.pool().await;
        let tasks: Vec<MachineTask> = released.iter().filter_map(|machine| pool.start_task(&machine.name)).collect();
        self.inner.spawn_tasks(tasks).detach_all();
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let machine = self.inner.pool().await.leased_machine(&id).ok_or_else(|| format!("unknown instance {id}"))?;
        Ok(probe::connect_info(&machine, &self.inner.settings.connector).await?)
    }

    fn extension(&self) -> Option<&dyn Extension> {
        Some(self)
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        let machine = self.inner.pool().await.leased_machine(&id).ok_or_else(|| format!("unknown instance {id}"))?;
        Ok(probe::check(&machine, &self.inner.config, &self.inner.settings.connector).await?)
    }
}

#[async_trait]
impl Extension for Static {
    fn features(&self) -> Features {
        Features { host_keys: true, ..Features::default() }
    }

    /// Returns the configured host key of the machine, or an empty list if none is configured.
    async fn host_keys(&self, id: InstanceId) -> Result<Vec<String>, Error> {
        let machine = self.inner.pool().await.leased_machine(&id).ok_or_else(|| format!("unknown instance {id}"))?;
        Ok(Some(machine.host_key).filter(|key| !key.is_empty()).into_iter().collect())
    }
}
