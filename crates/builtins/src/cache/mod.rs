//! `builtin://cache/restore` and `builtin://cache/save` (docs/spec/job-execution.md, section 10).
//!
//! Caches are in a directory of this machine. With signed URLs, [`store`] also transfers the archives to and from an
//! object store.

mod archive;
mod chunks;
mod download;
mod offer;
pub mod remote;
mod remote_error;
mod store;
mod unchanged;

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::{CacheEntry, CacheRestore, CacheSave, ChunkCache};
use muster_steps::builtin::{Builtin, Offer};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use crate::blocking::blocking;
use crate::context::Context;
use crate::files::extract::extract;
use crate::files::format::{Format, Level};
use crate::files::select::{FileSelection, select};
use crate::restored_cache::Restored;
use crate::transfer::{MessageLevel, TransferContext};
use store::ObjectStore;

use remote::RemoteError;

pub use archive::{Archive, ArchiveOutcome, NO_FILES, UP_TO_DATE};
pub use unchanged::Baseline;

/// Message of a restore without an object store.
pub const NO_DOWNLOAD: &str = "No URL provided, cache will not be downloaded from shared cache server. \
                               Instead a local version of cache will be extracted.";
/// Message of a save without an object store.
pub const NO_UPLOAD: &str =
    "No URL provided, cache will not be uploaded to shared cache server. Cache will be stored only locally.";

#[async_trait]
impl Builtin<Context> for CacheRestore {
    fn is_idle(&self) -> bool {
        self.caches.is_empty()
    }

    fn offer(&self, _context: &Context) -> Option<Offer> {
        Some(offer::restore(self))
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        for cache in &self.caches {
            restore(context, cache, stop).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Builtin<Context> for CacheSave {
    fn is_idle(&self) -> bool {
        self.caches.is_empty()
    }

    fn offer(&self, _context: &Context) -> Option<Offer> {
        Some(offer::save(self))
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        for cache in &self.caches {
            save(context, cache, stop).await?;
        }
        Ok(())
    }
}

/// Restores the first cache that can be restored. Tries the key, and then each fallback key in order.
async fn restore(context: &Context, cache: &CacheEntry, stop: &StopToken) -> Result<(), Failure> {
    if cache.key.is_empty() {
        context.report(MessageLevel::Notice, "Skipping cache extraction due to empty cache key");
        return Ok(());
    }
    if !policy_allows(context, cache, "pull") {
        context.report(MessageLevel::Notice, &format!("Not downloading cache {} due to policy", name(cache, 0)));
        return Ok(());
    }
    for (index, key) in [&cache.key].into_iter().chain(&cache.fallback_keys).enumerate() {
        context.report(MessageLevel::Notice, &format!("Checking cache for {}...", name(cache, index)));
        let Some(path) = archive_path(cache, key) else {
            context.report(MessageLevel::Warning, &format!("cache key \"{key}\" points outside the cache directory"));
            continue;
        };
        if let Some(chunks) = &cache.chunks {
            if restore_chunks(context, cache, chunks, key, stop).await? {
                return Ok(());
            }
            continue;
        }
        if !fetch(context, cache, key, &path, stop).await? {
            continue;
        }
        let alternate = archive_path(cache, &cache.alternate).filter(|_| index == 0);
        let found = path.clone();
        let opened = muster_files::run_blocking(&path, move || {
            muster_files::open(&found).or_else(|error| alternate.map_or(Err(error), |path| muster_files::open(&path)))
        });
        let archive = match opened.await {
            Ok(file) => file,
            Err(error) if error.is_missing() => {
                context.report(MessageLevel::Warning, "Cache file does not exist");
                context.report(MessageLevel::Warning, "Failed to extract cache");
                continue;
            }
            Err(error) => {
                context.report(MessageLevel::Warning, &format!("Failed to extract cache: {error}"));
                continue;
            }
        };
        let found = archive.metadata();
        match extract(context, archive, stop).await {
            Ok(()) => {
                record_restore(context, &path, found, stop).await?;
                context.report(MessageLevel::Notice, "Successfully extracted cache");
                return Ok(());
            }
            Err(Failure::Stopped(cause)) => return Err(Failure::Stopped(cause)),
            Err(failure) => {
                context.report(MessageLevel::Warning, &format!("Failed to extract cache: {failure}"));
                if cache.clean_up_failed {
                    remove_extracted(context, cache, stop).await?;
                }
            }
        }
    }
    Ok(())
}

/// Records the time at which a restore ended, so that the save need not compare the contents of unchanged files.
async fn record_restore(
    context: &Context,
    path: &Path,
    archive: std::io::Result<std::fs::Metadata>,
    stop: &StopToken,
) -> Result<(), Failure> {
    let directory = context.temp_dir.clone();
    let restored = blocking(context, "recording the restored cache", stop, move || {
        Ok(archive.and_then(|archive| Restored::now(&archive, &directory)))
    });
    match restored.await? {
        Ok(restored) => drop(context.restored_caches.lock().insert(path.to_owned(), restored)),
        Err(error) => tracing::debug!(%error, "failed to record the restore of a cache, comparing all contents later"),
    }
    Ok(())
}

/// Restores a cache from chunks. Returns whether it was restored.
async fn restore_chunks(
    context: &Context,
    cache: &CacheEntry,
    chunks: &ChunkCache,
    key: &str,
    stop: &StopToken,
) -> Result<bool, Failure> {
    if chunks.store.is_none() {
        context.report(MessageLevel::Plain, NO_DOWNLOAD);
    }
    match chunks::restore(context, cache, chunks, key, stop).await {
        Ok(true) => {
            context.report(MessageLevel::Notice, "Successfully extracted cache");
            return Ok(true);
        }
        Ok(false) => {
            context.report(MessageLevel::Warning, "Cache does not exist");
            context.report(MessageLevel::Warning, "Failed to extract cache");
        }
        Err(Failure::Stopped(cause)) => return Err(Failure::Stopped(cause)),
        Err(failure) => {
            context.report(MessageLevel::Warning, &format!("Failed to extract cache: {failure}"));
            if cache.clean_up_failed {
                remove_extracted(context, cache, stop).await?;
            }
        }
    }
    Ok(false)
}

/// Downloads the archive of a key to `path`, if there is an object store. Returns false if the download failed.
async fn fetch(
    context: &Context,
    cache: &CacheEntry,
    key: &str,
    path: &Path,
    stop: &StopToken,
) -> Result<bool, Failure> {
    let Some(store) = ObjectStore::for_download(context, cache, key) else {
        context.report(MessageLevel::Plain, NO_DOWNLOAD);
        return Ok(true);
    };
    match store.download(context, path, stop).await {
        Ok(()) => Ok(true),
        Err(RemoteError::Stopped(cause)) => Err(Failure::Stopped(cause)),
        Err(error) => {
            context.report(MessageLevel::Warning, &muster_job::error_chain(&error));
            context.report(MessageLevel::Warning, "Failed to extract cache");
            Ok(false)
        }
    }
}

/// Removes the files that match the paths of the cache (`FF_CLEAN_UP_FAILED_CACHE_EXTRACT`).
async fn remove_extracted(context: &Context, cache: &CacheEntry, stop: &StopToken) -> Result<(), Failure> {
    let found = select(context, FileSelection { paths: &cache.paths, ..FileSelection::default() }, stop).await?;
    let extraction = context.extraction();
    for path in &cache.paths {
        context.report(MessageLevel::Plain, &format!("Removing {path}"));
    }
    blocking(context, "removing a damaged cache", stop, move || {
        // If the root is a symbolic link, the archive was not unpacked.
        let Ok(root) = extraction.open_root() else { return Ok(()) };
        // A directory is listed before its content. In reverse order, it is empty when it is removed.
        for path in found.iter().rev() {
            let _ = root.remove_file(path).or_else(|_| root.remove_dir(path));
        }
        Ok(())
    })
    .await
}

async fn save(context: &Context, cache: &CacheEntry, stop: &StopToken) -> Result<(), Failure> {
    let Some(path) = archive_path(cache, &cache.key) else {
        match cache.key.as_str() {
            "" => context.report(MessageLevel::Notice, "Skipping cache archiving due to empty cache key"),
            key => context
                .report(MessageLevel::Warning, &format!("cache key \"{key}\" points outside the cache directory")),
        }
        return Ok(());
    };
    if !policy_allows(context, cache, "push") {
        context.report(MessageLevel::Notice, &format!("Not uploading cache {} due to policy", name(cache, 0)));
        return Ok(());
    }
    context.report(MessageLevel::Notice, &format!("Creating cache {}...", name(cache, 0)));
    let created = match &cache.chunks {
        Some(chunks) => chunks::save(context, cache, chunks, stop).await,
        None => save_archive(context, cache, &path, stop).await,
    };
    match created {
        Ok(()) => context.report(MessageLevel::Notice, "Created cache"),
        Err(Failure::Stopped(cause)) => return Err(Failure::Stopped(cause)),
        Err(failure) => context.report(MessageLevel::Warning, &format!("Failed to create cache: {failure}")),
    }
    Ok(())
}

async fn save_archive(context: &Context, cache: &CacheEntry, path: &Path, stop: &StopToken) -> Result<(), Failure> {
    let format = context.variables.get("CACHE_COMPRESSION_FORMAT").unwrap_or_default();
    let known = Format::of_cache(format);
    if known.is_none() {
        context.report(
            MessageLevel::Warning,
            &format!("CACHE_COMPRESSION_FORMAT `{format}` is not supported; using `zip`"),
        );
    }
    let metadata = serde_json::json!({ "cachekey": name(cache, 0) }).to_string();
    let alternate = archive_path(cache, &cache.alternate);
    let archive = Archive {
        files: FileSelection { paths: &cache.paths, untracked: cache.untracked, ..FileSelection::default() },
        file: path,
        alternate: alternate.as_deref(),
        format: known.unwrap_or(Format::Zip),
        level: Level::from_name(context.variables.get("CACHE_COMPRESSION_LEVEL")),
        baseline: context.restored_caches.lock().get(path).copied().map_or(Baseline::Unknown, Baseline::Restored),
        metadata: Some(&metadata),
    };
    let written = archive.write(context, stop).await?;
    match written {
        ArchiveOutcome::Written { .. } => {}
        ArchiveOutcome::UpToDate => context.report(MessageLevel::Plain, UP_TO_DATE),
        ArchiveOutcome::NoFiles => context.report(MessageLevel::Plain, NO_FILES),
    }
    match ObjectStore::for_upload(context, cache) {
        Some(store) => store.upload(context, path, written, stop).await.map_err(Failure::from),
        None => {
            context.report(MessageLevel::Plain, NO_UPLOAD);
            Ok(())
        }
    }
}

/// Returns the human-readable cache key (index 0) or fallback key (index 1 and later).
fn name(cache: &CacheEntry, index: usize) -> &str {
    let key = if index == 0 { Some(&cache.key) } else { cache.fallback_keys.get(index - 1) };
    cache.names.get(index).or(key).map(String::as_str).unwrap_or_default()
}

fn policy_allows(context: &Context, cache: &CacheEntry, action: &str) -> bool {
    match cache.policy.as_str() {
        "" | "pull-push" => true,
        "pull" | "push" => cache.policy == action,
        other => {
            context.report(MessageLevel::Warning, &format!("unknown cache policy {other} for {}", cache.key));
            false
        }
    }
}

/// Returns the path of the archive. `None` means that the key is empty or points outside the cache directory.
fn archive_path(cache: &CacheEntry, key: &str) -> Option<PathBuf> {
    let inside = Path::new(key).components().all(|part| matches!(part, Component::Normal(_)));
    (inside && !key.is_empty()).then(|| Path::new(&cache.cache_dir).join(key).join("cache.zip"))
}
