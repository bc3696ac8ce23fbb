//! Restores a cache from chunks.

use std::sync::Arc;

use muster_agent_api::builtin::{CacheEntry, ChunkCache};
use muster_chunks::{
    ChunkError, Download, Index, Object, Reference, Restore, Restored, Spool, Store, downloads, missing_chunks,
};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use parking_lot::Mutex;

use super::objects::Objects;
use super::{chunk_failure, client, megabytes, parse_reference, remote_failure, stop_check, store};
use crate::blocking::blocking;
use crate::context::Context;
use crate::extraction::Extraction;
use crate::transfer::{MessageLevel, TransferContext};

/// Maximum number of attempts if there is an object store. The second attempt replaces damaged copies on this machine.
const ATTEMPTS: usize = 2;

/// Restores the cache of a key. Returns whether the key has a cache.
///
/// # Errors
/// If the cache is damaged or cannot be read. Files may then be unchanged, restored or removed.
pub(in crate::cache) async fn restore(
    context: &Context,
    cache: &CacheEntry,
    chunks: &ChunkCache,
    key: &str,
    stop: &StopToken,
) -> Result<bool, Failure> {
    let store = Arc::new(store(cache, chunks)?);
    let reference = match &chunks.store {
        Some(remote) => remote.references.get(key).map(|text| parse_reference(text, &chunks.level)).transpose(),
        None => {
            let (store, key) = (Arc::clone(&store), key.to_owned());
            blocking(context, "reading the cache", stop, move || Ok(store.reference(&key))).await?
        }
    };
    let Some(reference) = reference.map_err(|error| chunk_failure(&error))? else { return Ok(false) };
    if reference.key != key {
        return Err(Failure::Step("the cache is damaged: its reference belongs to another cache".to_owned()));
    }
    let mut run = RestoreRun { context, chunks, store, reference, stop, downloaded: 0, damaged: Vec::new() };
    let attempts = if chunks.store.is_some() { ATTEMPTS } else { 1 };
    for _ in 1..attempts {
        match run.attempt().await {
            Err(_) if !run.damaged.is_empty() => run.damaged.clear(),
            restored => return restored.map(|()| true),
        }
    }
    let restored = run.attempt().await;
    if chunks.store.is_some() {
        run.distrust();
    }
    restored.map(|()| true)
}

struct RestoreRun<'a> {
    context: &'a Context,
    chunks: &'a ChunkCache,
    store: Arc<Store>,
    reference: Reference,
    stop: &'a StopToken,
    downloaded: u64,
    /// Damaged objects that the last attempt found.
    damaged: Vec<Object>,
}

impl RestoreRun<'_> {
    async fn attempt(&mut self) -> Result<(), Failure> {
        let index = Arc::new(self.index().await?);
        let spool = self.fetch_missing(&index).await?;
        let extraction = self.context.extraction();
        let (store, restored_index, stop) = (Arc::clone(&self.store), Arc::clone(&index), stop_check(self.stop));
        let token = self.stop.clone();
        let restored = blocking(self.context, "restoring the cache", self.stop, move || {
            let (into, limits) = (extraction.open_root()?, extraction.limits);
            let restore = Restore { store: &store, index: &restored_index, spool: spool.as_ref(), limits, stop: &stop };
            Ok(restore.run(&into).map_err(|error| (extraction.failure(&error.error, &token), error.damaged)))
        });
        match restored.await? {
            Ok(restored) => {
                if self.chunks.store.is_some()
                    && let Err(error) = self.store.set_reference(&self.reference)
                {
                    tracing::warn!(%error, "failed to record the objects of a cache, which may be deleted early");
                }
                self.report(&restored, index.bytes());
                Ok(())
            }
            Err((failure, damaged)) => {
                self.remove(damaged);
                Err(failure)
            }
        }
    }

    fn report(&self, restored: &Restored, bytes: u64) {
        restored.skipped.lines().for_each(|line| self.context.report(MessageLevel::Warning, &line));
        let mut line = format!("Cache of {}: {} were restored", megabytes(bytes), megabytes(restored.loaded));
        if self.chunks.store.is_some() {
            line.push_str(&format!(", {} were downloaded", megabytes(self.downloaded)));
        }
        line.push_str("; the rest was already in place");
        self.context.report(MessageLevel::Plain, &line);
    }

    async fn index(&mut self) -> Result<Index, Failure> {
        let object = self.reference.index.clone();
        if self.chunks.store.is_some() && !self.store.has(&object) {
            let objects = self.objects()?;
            let (fetched, lost) = (objects.fetch(&object).await, objects.lost.into_inner());
            if let Err(error) = fetched {
                self.remove(lost);
                return Err(remote_failure(error));
            }
            self.downloaded += object.size;
        }
        let (store, reference) = (Arc::clone(&self.store), self.reference.clone());
        let limits = self.context.extraction().limits;
        let index =
            blocking(self.context, "reading the cache", self.stop, move || Ok(store.index(&reference, &limits)));
        index.await?.map_err(|error| {
            if matches!(error, ChunkError::Damaged(_)) {
                self.remove(vec![object]);
            }
            chunk_failure(&error)
        })
    }

    /// Downloads the chunks that are in neither the files nor the packs of this machine.
    async fn fetch_missing(&mut self, index: &Arc<Index>) -> Result<Option<Spool>, Failure> {
        if self.chunks.store.is_none() {
            return Ok(None);
        }
        let extraction: Extraction = self.context.extraction();
        let (compared, store, stop) = (Arc::clone(index), Arc::clone(&self.store), stop_check(self.stop));
        let token = self.stop.clone();
        let needed = blocking(self.context, "comparing the files with the cache", self.stop, move || {
            let missing = missing_chunks(&compared, &extraction.open_root()?, &stop);
            let missing = missing.map_err(|error| extraction.failure(&error, &token))?;
            Ok(downloads(&compared, &missing, |pack| store.has(pack)))
        });
        let needed = needed.await?;
        if needed.is_empty() {
            return Ok(None);
        }
        let objects = self.objects()?;
        let (fetched, lost) = (objects.fetch_chunks(&needed).await, objects.lost.into_inner());
        let spool = fetched.map_err(|error| {
            self.remove(lost);
            remote_failure(error)
        })?;
        self.downloaded += needed.iter().map(Download::bytes).sum::<u64>();
        Ok(Some(spool))
    }

    fn objects(&self) -> Result<Objects<'_>, Failure> {
        let urls = self.chunks.store.as_ref().map(|store| &store.downloads);
        let urls = urls.ok_or_else(|| Failure::Step("the cache has no object store".to_owned()))?;
        let remote = client(self.context)?;
        Ok(Objects { context: self.context, remote, store: &self.store, urls, stop: self.stop, lost: Mutex::default() })
    }

    fn remove(&mut self, damaged: Vec<Object>) {
        for object in &damaged {
            tracing::warn!(object = object.name, "object of a cache is damaged, removing it");
            if let Err(error) = self.store.remove(&object.name) {
                tracing::warn!(%error, "failed to remove a damaged object of a cache");
            }
        }
        self.damaged = damaged;
    }

    /// Excludes objects that are damaged in the object store from later saves on this machine.
    fn distrust(&self) {
        for object in &self.damaged {
            if let Err(error) = self.store.distrust(&object.name) {
                tracing::warn!(%error, "failed to record that an object of a cache is damaged");
            }
        }
    }
}
