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

/// Maximum number of concurrent checks.
const MAX_CONCURRENT_CHECKS: usize = 64;
/// Timeout for the first check of all machines. The host's timeout for `Init` is one minute.
const INITIAL_CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait for the other machines once one is healthy.
const STRAGGLER_TIMEOUT: Duration = Duration::from_secs(1);

/// A pool of machines.
pub(crate) struct Static {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    settings: Settings,
    pool: Arc<Mutex<Pool>>,
    store: Arc<Store>,
    checks: Semaphore,
    /// Modification time of the file with machines when it was last read.
    read: Mutex<Option<SystemTime>>,
}

impl Inner {
    /// Stores the leases, and unlocks the pool when they are on disk, so that callers see only durable state. Reverts
    /// the change if storing fails. Runs on another thread, because disks can be slow.
    async fn store(
        &self,
        mut pool: OwnedMutexGuard<Pool>,
        undo: impl FnOnce(&mut Pool) + Send + 'static,
    ) -> Result<(), Error> {
        let store = Arc::clone(&self.store);
        let stored = tokio::task::spawn_blocking(move || {
            let stored = store.save(pool.leases());
            if stored.is_err() {
                undo(&mut pool);
            }
            stored
        });
        Ok(stored.await??)
    }

    async fn pool(&self) -> OwnedMutexGuard<Pool> {
        Arc::clone(&self.pool).lock_owned().await
    }

    /// Runs a task to its end.
    async fn work(self: Arc<Self>, work: MachineTask) {
        let result = {
            let _turn = self.checks.acquire().await;
            probe::run(&work, &self.config, &self.settings.connector).await
        };
        let mut pool = self.pool().await;
        if pool.done(&work, result)
            && let Err(error) = self.store(pool, |_| ()).await
        {
            // The machine would be cleaned up again after a restart, which is harmless.
            tracing::error!(%error, "failed to store the leases");
        }
    }

    /// Starts the tasks of machines concurrently, so that no task waits for another machine's cleanup.
    fn begin(self: &Arc<Self>, due: Vec<MachineTask>) -> JoinSet<()> {
        due.into_iter().map(|work| Arc::clone(self).work(work)).collect()
    }

    /// Waits until all machines have been checked. Once one of them is healthy, waits only briefly for the others.
    async fn initial_check(&self, mut first: JoinSet<()>) {
        let _ = tokio::time::timeout(INITIAL_CHECK_TIMEOUT, async {
            while first.join_next().await.is_some() && !self.pool().await.has_available() {}
            let others = async { while first.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(STRAGGLER_TIMEOUT, others).await;
        })
        .await;
        // The remaining checks continue in the background.
        first.detach_all();
    }

    /// Checks unused machines until the process ends.
    async fn check_loop(self: Arc<Self>) {
        let every = Duration::from_secs(self.config.health_interval_s);
        loop {
            tokio::time::sleep(every).await;
            let due = self.pool().await.due();
            self.begin(due).detach_all();
        }
    }

    /// Reloads the file with machines if it has changed.
    async fn read_machines(self: &Arc<Self>) {
        if self.config.machines_file.as_os_str().is_empty() {
            return;
        }
        let mut read = self.read.lock().await;
        let changed = tokio::fs::metadata(&self.config.machines_file).await.and_then(|meta| meta.modified()).ok();
        if changed == *read {
            return;
        }
        *read = changed;
        let inner = Arc::clone(self);
        match tokio::task::spawn_blocking(move || inner.config.all_machines()).await {
            Ok(Ok(machines)) => {
                tracing::info!(machines = machines.len(), "list of machines reloaded");
                let mut pool = self.pool().await;
                pool.set_machines(machines);
                self.begin(pool.due()).detach_all();
            }
            Ok(Err(error)) => {
                tracing::error!(error, "invalid list of machines, keeping the previous one")
            }
            Err(error) => tracing::error!(%error, "failed to read the list of machines"),
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
        let changed = std::fs::metadata(&config.machines_file).and_then(|meta| meta.modified()).ok();
        let machines = config.all_machines()?;
        let all = u32::try_from(machines.len()).unwrap_or(u32::MAX);
        let max_size = if config.max_size == 0 { all.max(1) } else { config.max_size };
        let (store, next, leases) = Store::open(config.state_path()?).await?;
        let pool = Pool::new(machines, next, leases);
        let id = format!("static/{}", config.name);
        let inner = Arc::new(Inner {
            config,
            settings,
            pool: Arc::new(Mutex::new(pool)),
            store: Arc::new(store),
            checks: Semaphore::new(MAX_CONCURRENT_CHECKS),
            read: Mutex::new(changed),
        });
        inner.store(inner.pool().await, |_| ()).await?;
        let first = inner.begin(inner.pool().await.due());
        inner.initial_check(first).await;
        tokio::spawn(Arc::clone(&inner).check_loop());
        tracing::info!(group = id, machines = all, "ready");
        Ok((Self { inner }, Init { id, max_size, can_suspend: false }))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        self.inner.read_machines().await;
        Ok(self.inner.pool().await.instances())
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let mut pool = self.inner.pool().await;
        let granted = pool.grant(n);
        if granted.is_empty() && n > 0 {
            return Err(PartialFailure::nothing(pool.no_machine_reason()));
        }
        let count = u32::try_from(granted.len())?;
        // The lease must be durable before it is granted.
        self.inner.store(pool, move |pool| pool.revert_grant(&granted)).await.map_err(PartialFailure::nothing)?;
        Ok(count)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let mut pool = self.inner.pool().await;
        let released: Vec<_> = ids.iter().filter_map(|id| pool.release(id)).collect();
        self.inner.store(pool, |_| ()).await.map_err(PartialFailure::nothing)?;
        let mut pool = self.inner.pool().await;
        let due: Vec<MachineTask> = released.iter().filter_map(|machine| pool.work(&machine.name)).collect();
        self.inner.begin(due).detach_all();
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let machine = self.inner.pool().await.leased(&id).ok_or_else(|| format!("unknown instance {id}"))?;
        Ok(probe::connect_info(&machine, &self.inner.settings.connector).await?)
    }

    fn extension(&self) -> Option<&dyn Extension> {
        Some(self)
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        let machine = self.inner.pool().await.leased(&id).ok_or_else(|| format!("unknown instance {id}"))?;
        Ok(probe::check(&machine, &self.inner.config, &self.inner.settings.connector).await?)
    }
}

#[async_trait]
impl Extension for Static {
    fn features(&self) -> Features {
        Features { host_keys: true, ..Features::default() }
    }

    /// Returns the host key in the list, if there is one.
    async fn host_keys(&self, id: InstanceId) -> Result<Vec<String>, Error> {
        let machine = self.inner.pool().await.leased(&id).ok_or_else(|| format!("unknown instance {id}"))?;
        Ok(Some(machine.host_key).filter(|key| !key.is_empty()).into_iter().collect())
    }
}
