//! Saves a cache as chunks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_agent_api::builtin::{CacheEntry, ChunkCache, ChunkStore, ChunkUpload};
use muster_archive::Limits;
use muster_chunks::{Index, Known, Object, Reference, Save, SaveError, Saved, Store};
use muster_job::Secret;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use rand::Rng;

use super::objects::{Objects, Upload};
use super::{chunk_failure, client, megabytes, parse_reference, remote_failure, stop_check, store};
use crate::blocking::blocking;
use crate::cache::NO_UPLOAD;
use crate::cache::archive::{NO_FILES, UP_TO_DATE};
use crate::cache::remote::parse_headers;
use crate::context::Context;
use crate::files::format::Level;
use crate::files::select::{FileSelection, select};
use crate::transfer::{MessageLevel, TransferContext};

/// Minimum size of a complete pack in bytes. Larger packs need fewer requests, but retain more unused bytes.
const PACK_BYTES: u64 = 16 << 20;
const MAX_PACKS: usize = 4096;
/// If there is no object store, chunks of at most this number of recent references are reused.
const MAX_REFERENCES: usize = 8;

/// Saves the cache, and prints what was stored.
pub(in crate::cache) async fn save(
    context: &Context,
    cache: &CacheEntry,
    chunks: &ChunkCache,
    stop: &StopToken,
) -> Result<(), Failure> {
    let selection = FileSelection { paths: &cache.paths, untracked: cache.untracked, ..FileSelection::default() };
    let files = select(context, selection, stop).await?;
    if files.is_empty() {
        context.report(MessageLevel::Plain, NO_FILES);
        return Ok(());
    }
    let store = Arc::new(store(cache, chunks)?);
    let remote = chunks.store.as_ref().and_then(|store| Some((store, store.upload.as_ref()?)));
    SaveRun { context, cache, store, remote, stop }.run(files, chunks).await
}

struct SaveRun<'a> {
    context: &'a Context,
    cache: &'a CacheEntry,
    store: Arc<Store>,
    /// Object store, and the URLs for uploads. `None` means that the cache is stored only on this machine.
    remote: Option<(&'a ChunkStore, &'a ChunkUpload)>,
    stop: &'a StopToken,
}

impl SaveRun<'_> {
    async fn run(&self, files: Vec<PathBuf>, chunks: &ChunkCache) -> Result<(), Failure> {
        // A marked object will be deleted, so this save must not reuse it. Objects that are marked later are deleted
        // only after this save.
        let marks = self.store.marks().map_err(|error| chunk_failure(&error))?;
        let mut marked: Vec<String> = marks.names().map(str::to_owned).collect();
        marked.extend(self.remote.iter().flat_map(|(remote, _)| remote.marked.iter().cloned()));
        let mut references = self.references(&chunks.level).await?;
        references.retain(|reference| !marked.contains(&reference.index.name));
        self.fetch_indexes(&references).await?;
        let current = references.iter().find(|reference| reference.key == self.cache.key).cloned();
        let saved = self.save(files, references, marked).await?;
        let new: u64 = saved.packs.iter().map(|pack| pack.size).sum();
        let (bytes, is_new) = (saved.bytes, saved.reference.is_some());
        let Some(reference) = saved.reference.or(current) else { return Ok(()) };
        if !is_new {
            self.context.report(MessageLevel::Plain, UP_TO_DATE);
        }
        let max = self.cache.max_upload_bytes;
        let verb = match self.remote {
            Some(_) if max != 0 && new > max => {
                let message = format!(
                    "Cache archive size ({new}) is too big (Limit is set to {max}). Cache will be stored only locally."
                );
                self.context.report(MessageLevel::Plain, &message);
                "stored"
            }
            Some((_, upload)) => {
                self.upload(upload, &saved.packs, &reference, is_new).await?;
                "uploaded"
            }
            None => {
                self.context.report(MessageLevel::Plain, NO_UPLOAD);
                "stored"
            }
        };
        let store = Arc::clone(&self.store);
        let size = reference.index.size;
        blocking(self.context, "storing the cache", self.stop, move || {
            store.set_reference(&reference).map_err(|error| chunk_failure(&error))
        })
        .await?;
        let stored = if is_new { new + size } else { 0 };
        let line = format!("Cache of {}: {} were {verb}", megabytes(bytes), megabytes(stored));
        self.context.report(MessageLevel::Plain, &line);
        Ok(())
    }

    /// Returns references whose chunks this cache may reuse. Damaged references are skipped.
    async fn references(&self, level: &str) -> Result<Vec<Reference>, Failure> {
        if let Some((remote, _)) = self.remote {
            let parsed = remote.references.values().filter_map(|text| parse_reference(text, level).ok());
            return Ok(parsed.collect());
        }
        let (store, keys) = (Arc::clone(&self.store), self.cache.fallback_keys.clone());
        let own = self.cache.key.clone();
        blocking(self.context, "reading the caches", self.stop, move || {
            let of_keys = std::iter::once(&own).chain(&keys).filter_map(|key| store.reference(key).ok().flatten());
            let mut references: Vec<Reference> = of_keys.collect();
            for reference in store.latest_references(MAX_REFERENCES).map_err(|error| chunk_failure(&error))? {
                if !references.contains(&reference) {
                    references.push(reference);
                }
            }
            Ok(references)
        })
        .await
    }

    /// Downloads missing indexes. If a download fails, the chunks of that index are stored again.
    async fn fetch_indexes(&self, references: &[Reference]) -> Result<(), Failure> {
        let Some((remote, _)) = self.remote else { return Ok(()) };
        let objects = self.objects(&remote.downloads)?;
        for reference in references.iter().filter(|reference| !self.store.has(&reference.index)) {
            if let Err(error) = objects.fetch(&reference.index).await {
                if let Failure::Stopped(cause) = remote_failure(error) {
                    return Err(Failure::Stopped(cause));
                }
                tracing::info!(
                    index = reference.index.name,
                    "failed to download the index of a cache, storing its chunks again"
                );
            }
        }
        Ok(())
    }

    fn objects<'s>(&'s self, urls: &'s BTreeMap<String, Secret>) -> Result<Objects<'s>, Failure> {
        Ok(Objects {
            context: self.context,
            remote: client(self.context)?,
            store: &self.store,
            urls,
            stop: self.stop,
            lost: Mutex::default(),
        })
    }

    /// Stores the new chunks and the index on this machine.
    async fn save(
        &self,
        files: Vec<PathBuf>,
        references: Vec<Reference>,
        marked: Vec<String>,
    ) -> Result<Saved, Failure> {
        let (root, store, key) = (self.context.root().to_owned(), Arc::clone(&self.store), self.cache.key.clone());
        let limits = self.context.extraction().limits;
        let level = Level::from_name(self.context.variables.get("CACHE_COMPRESSION_LEVEL")).zstd();
        let (id, max_packs) = match self.remote {
            Some((_, upload)) => (upload.id.clone(), upload.packs.len()),
            None => (hex::encode(rand::rng().random::<[u8; 16]>()), MAX_PACKS),
        };
        let (is_remote, stop, token) = (self.remote.is_some(), stop_check(self.stop), self.stop.clone());
        blocking(self.context, "storing the cache", self.stop, move || {
            // A pack in an object store is usable without a copy on this machine.
            let is_usable = |pack: &Object| {
                !marked.contains(&pack.name) && store.trusts(&pack.name) && (is_remote || store.has(pack))
            };
            let (known, current) = load_known(&store, &references, &key, &limits, is_usable);
            let save = Save {
                root: &root,
                files: &files,
                key: &key,
                store: &store,
                known: &known,
                current: current.as_ref(),
                id: &id,
                pack_bytes: pack_bytes(&root, &files, max_packs),
                max_packs,
                level,
                stop: &stop,
            };
            save.run().map_err(|error| save_failure(error, &token))
        })
        .await
    }

    /// Uploads the new objects before the references.
    async fn upload(
        &self,
        upload: &ChunkUpload,
        packs: &[Object],
        reference: &Reference,
        is_new: bool,
    ) -> Result<(), Failure> {
        let headers: Vec<String> = upload.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let headers = parse_headers(&headers)?;
        let urls = BTreeMap::new();
        let objects = self.objects(&urls)?;
        if is_new {
            let mut uploads: Vec<Upload<'_>> = packs
                .iter()
                .zip(&upload.packs)
                .map(|(pack, url)| Upload { file: self.store.object(&pack.name), url })
                .collect();
            uploads.push(Upload { file: self.store.object(&reference.index.name), url: &upload.index });
            objects.upload(uploads, &headers).await.map_err(remote_failure)?;
        }
        let written = self.store.temporary().and_then(|mut file| {
            std::io::Write::write_all(&mut file, &reference.to_bytes())
                .map_err(|error| muster_chunks::ChunkError::Write(file.path().to_owned(), error))?;
            Ok(file)
        });
        let file = written.map_err(|error| chunk_failure(&error))?;
        // An unchanged reference is uploaded again, because its age shows whether it is in use.
        for url in [&upload.reference, &upload.last] {
            let upload = Upload { file: file.path().to_owned(), url };
            objects.upload(vec![upload], &headers).await.map_err(remote_failure)?;
        }
        Ok(())
    }
}

/// Returns the chunks that need not be stored again, and the index of the key if all its packs are usable.
fn load_known(
    store: &Store,
    references: &[Reference],
    key: &str,
    limits: &Limits,
    is_usable: impl Fn(&Object) -> bool,
) -> (Known, Option<Index>) {
    let (mut known, mut current) = (Known::default(), None);
    for reference in references {
        let Ok(index) = store.index(reference, limits) else {
            tracing::warn!(key = reference.key, "index of a cache is damaged, storing its chunks again");
            continue;
        };
        known.add_index(&index, &is_usable);
        if reference.key == key && index.packs().iter().all(&is_usable) {
            current = Some(index);
        }
    }
    (known, current)
}

fn pack_bytes(root: &Path, files: &[PathBuf], max_packs: usize) -> u64 {
    let sizes = files.iter().filter_map(|file| root.join(file).symlink_metadata().ok()).map(|found| found.len());
    let packs = u64::try_from(max_packs.max(1)).unwrap_or(1);
    PACK_BYTES.max(sizes.sum::<u64>().div_ceil(packs))
}

fn save_failure(error: SaveError, stop: &StopToken) -> Failure {
    match (stop.cause(), error) {
        (Some(cause), _) => Failure::Stopped(cause),
        (None, SaveError::Store(error)) => chunk_failure(&error),
        (None, error) => Failure::System(muster_job::error_chain(&error)),
    }
}
