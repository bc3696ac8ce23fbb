//! The calls of the protocol, and the work between them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::StreamExt;
use muster_fleeting::sdk::{
    ConnectInfo, Error, Extension, Features, Init, InstanceId, InstanceState, Partial, Provider, Settings,
};

use crate::config::Config;
use crate::pool::{Pool, Work};
use crate::probe;
use crate::store::{Store, StoreError};

/// Checks at the same time.
const CHECKS_AT_ONCE: usize = 64;
/// For the first look at all machines; the host waits a minute for `Init`.
const FIRST_LOOK: Duration = Duration::from_secs(30);

/// A pool of machines.
pub(crate) struct Static {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    settings: Settings,
    pool: Mutex<Pool>,
    store: Store,
    /// Of the file with machines, as it was read last.
    read: Mutex<Option<SystemTime>>,
}

impl Inner {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, pool: &Pool) -> Result<(), StoreError> {
        self.store.save(pool.leases())
    }

    /// One piece of work, to its end.
    async fn work(&self, work: Work) {
        let result = probe::run(&work, &self.config, &self.settings.connector).await;
        let mut pool = self.pool();
        if pool.done(&work, result)
            && let Err(error) = self.save(&pool)
        {
            // The machine would be cleaned once more after a restart, which does no harm.
            tracing::error!(error = &error as &dyn std::error::Error, "the leases could not be stored");
        }
    }

    async fn work_off(&self, due: Vec<Work>) {
        futures::stream::iter(due).for_each_concurrent(CHECKS_AT_ONCE, |work| self.work(work)).await;
    }

    /// Until the process ends: looks at every machine that nobody uses.
    async fn keep_looking(self: Arc<Self>) {
        let every = Duration::from_secs(self.config.health_interval_s);
        loop {
            tokio::time::sleep(every).await;
            let due = self.pool().due();
            // A clean-up may take minutes, and the others are looked at meanwhile; a machine that is busy is not due.
            let inner = Arc::clone(&self);
            tokio::spawn(async move { inner.work_off(due).await });
        }
    }

    /// Reads the file with machines again where it has changed.
    fn read_machines(self: &Arc<Self>) {
        if self.config.machines_file.as_os_str().is_empty() {
            return;
        }
        let changed = std::fs::metadata(&self.config.machines_file).and_then(|meta| meta.modified()).ok();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if changed == *read {
            return;
        }
        *read = changed;
        match self.config.all_machines() {
            Ok(machines) => {
                tracing::info!(machines = machines.len(), "the list of machines was read again");
                self.pool().set_machines(machines);
                let inner = Arc::clone(self);
                tokio::spawn(async move {
                    let due = inner.pool().due();
                    inner.work_off(due).await;
                });
            }
            Err(error) => {
                tracing::error!(error, "the list of machines has changed and cannot be used; the old one holds")
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
        let changed = std::fs::metadata(&config.machines_file).and_then(|meta| meta.modified()).ok();
        let machines = config.all_machines()?;
        let all = u32::try_from(machines.len()).unwrap_or(u32::MAX);
        let max_size = if config.max_size == 0 { all.max(1) } else { config.max_size };
        let (store, next, leases) = Store::open(config.state_path()?).await?;
        let (pool, lost) = Pool::new(machines, next, leases);
        for lease in lost {
            tracing::warn!(
                machine = lease.machine,
                lease = lease.lease,
                "a leased machine is not in the list any more"
            );
        }
        let id = format!("static/{}", config.name);
        let inner = Arc::new(Inner { config, settings, pool: Mutex::new(pool), store, read: Mutex::new(changed) });
        inner.save(&inner.pool())?;
        let first = Arc::clone(&inner);
        // In a task, so that what takes longer goes on.
        let look = tokio::spawn(async move {
            let due = first.pool().due();
            first.work_off(due).await;
        });
        let _ = tokio::time::timeout(FIRST_LOOK, look).await;
        tokio::spawn(Arc::clone(&inner).keep_looking());
        tracing::info!(group = id, machines = all, "ready");
        Ok((Self { inner }, Init { id, max_size, can_suspend: false }))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        self.inner.read_machines();
        Ok(self.inner.pool().instances())
    }

    async fn increase(&self, n: u32) -> Result<u32, Partial<u32>> {
        let mut pool = self.inner.pool();
        let granted = pool.grant(n);
        if granted.is_empty() && n > 0 {
            return Err(Partial::nothing(pool.shortage()));
        }
        // Durable before it is granted.
        if let Err(error) = self.inner.save(&pool) {
            pool.ungrant(&granted);
            return Err(error.into());
        }
        u32::try_from(granted.len()).map_err(Into::into)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        let mut pool = self.inner.pool();
        let released: Vec<_> = ids.iter().filter_map(|id| pool.release(id)).collect();
        self.inner.save(&pool)?;
        let due: Vec<Work> = released.iter().filter_map(|machine| pool.work(&machine.name)).collect();
        drop(pool);
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move { inner.work_off(due).await });
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let machine = self.inner.pool().leased(&id).ok_or_else(|| format!("there is no instance {id}"))?;
        Ok(probe::connect_info(&machine, &self.inner.settings.connector).await?)
    }

    fn extension(&self) -> Option<&dyn Extension> {
        Some(self)
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        let machine = self.inner.pool().leased(&id).ok_or_else(|| format!("there is no instance {id}"))?;
        Ok(probe::check(&machine, &self.inner.config, &self.inner.settings.connector).await?)
    }
}

#[async_trait]
impl Extension for Static {
    fn features(&self) -> Features {
        Features { host_keys: true, ..Features::default() }
    }

    /// That of the list, where it has one.
    async fn host_keys(&self, id: InstanceId) -> Result<Vec<String>, Error> {
        let machine = self.inner.pool().leased(&id).ok_or_else(|| format!("there is no instance {id}"))?;
        Ok(Some(machine.host_key).filter(|key| !key.is_empty()).into_iter().collect())
    }
}
