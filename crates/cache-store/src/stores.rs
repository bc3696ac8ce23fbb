use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_config::settings::CacheStoreSettings;
use parking_lot::Mutex;

use crate::{CacheStore, CacheStoreError};

/// Maximum time for opening a store and signing the URLs of one job.
pub(crate) const SIGN_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of open stores. Each reload of changed settings opens another store.
const MAX_OPEN: usize = 32;

/// Stores by their settings. They stay open, because they cache temporary credentials.
#[derive(Debug, Default)]
pub struct CacheStores {
    open: Mutex<VecDeque<(CacheStoreSettings, Arc<CacheStore>)>>,
}

impl CacheStores {
    /// Returns the store with these settings.
    ///
    /// # Errors
    /// [`CacheStoreError`] if the store cannot be opened.
    pub async fn get(&self, settings: &CacheStoreSettings) -> Result<Arc<CacheStore>, CacheStoreError> {
        if let Some((_, store)) = self.open.lock().iter().find(|(known, _)| known == settings) {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(CacheStore::open(settings).await?);
        let mut open = self.open.lock();
        if let Some((_, earlier)) = open.iter().find(|(known, _)| known == settings) {
            return Ok(Arc::clone(earlier));
        }
        if open.len() >= MAX_OPEN {
            open.pop_front();
        }
        open.push_back((settings.clone(), Arc::clone(&store)));
        Ok(store)
    }

    /// Calls `sign` with the store for these settings, within a time limit.
    ///
    /// # Errors
    /// The error of the store or of `sign`, or [`CacheStoreError::Timeout`].
    pub async fn sign_with<T>(
        &self,
        settings: &CacheStoreSettings,
        sign: impl AsyncFnOnce(&CacheStore) -> Result<T, CacheStoreError>,
    ) -> Result<T, CacheStoreError> {
        let signed = async { sign(&*self.get(settings).await?).await };
        tokio::time::timeout(SIGN_TIMEOUT, signed).await.map_err(|_| CacheStoreError::Timeout)?
    }
}
