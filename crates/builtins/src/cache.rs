//! `builtin://cache/restore` and `builtin://cache/save`: archives in a directory of this machine (job-execution 10).
//!
//! Neither ever fails the job. An archive is written beside its place and then renamed, so a reader sees a whole one.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use muster_agent_api::builtin::CacheEntry;
use muster_steps::stop::Stop;

use crate::context::Context;
use crate::failure::Failure;
use crate::files::pack::Level;
use crate::files::select::{Wanted, select};
use crate::files::{extract, pack};
use crate::trace::style;

/// Caches are kept on this machine.
const NO_DOWNLOAD: &str = "No URL provided, cache will not be downloaded from shared cache server. \
                           Instead a local version of cache will be extracted.\n";
const NO_UPLOAD: &str =
    "No URL provided, cache will not be uploaded to shared cache server. Cache will be stored only locally.\n";

/// Unpacks the first archive that there is for the key or one of its fallbacks.
pub(crate) async fn restore(context: &Context, cache: &CacheEntry, stop: &Stop) -> Result<(), Failure> {
    if cache.key.is_empty() {
        context.say(&style::info("Skipping cache extraction due to empty cache key"));
        return Ok(());
    }
    if !policy_allows(context, cache, "pull") {
        context.say(&style::info(&format!("Not downloading cache {} due to policy", name(cache, 0))));
        return Ok(());
    }
    for (index, key) in [&cache.key].into_iter().chain(&cache.fallback_keys).enumerate() {
        context.say(&style::info(&format!("Checking cache for {}...", name(cache, index))));
        let Some(path) = archive_path(cache, key) else {
            context.say(&style::warning(&format!("cache key \"{key}\" leads out of the cache directory")));
            continue;
        };
        context.say(NO_DOWNLOAD);
        let alternate = archive_path(cache, &cache.alternate).filter(|_| index == 0);
        let archive = match File::open(&path).or_else(|error| alternate.map_or(Err(error), File::open)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                context.say(&style::warning("Cache file does not exist"));
                context.say(&style::warning("Failed to extract cache"));
                continue;
            }
            Err(error) => {
                context.say(&style::warning(&format!("Failed to extract cache: {error}")));
                continue;
            }
        };
        let (root, watch) = (context.project_dir.clone(), stop.clone());
        match Context::blocking(move || extract::zip(archive, &root, &watch)).await {
            Ok(()) => {
                context.say(&style::info("Successfully extracted cache"));
                return Ok(());
            }
            Err(Failure::Stopped(cause)) => return Err(Failure::Stopped(cause)),
            Err(failure) => {
                context.say(&style::warning(&format!("Failed to extract cache: {failure}")));
                if cache.clean_up_failed {
                    remove_extracted(context, cache, stop).await?;
                }
            }
        }
    }
    Ok(())
}

/// Half a cache is worse than none, to some tools (FF_CLEAN_UP_FAILED_CACHE_EXTRACT).
async fn remove_extracted(context: &Context, cache: &CacheEntry, stop: &Stop) -> Result<(), Failure> {
    let found = select(context, Wanted { paths: &cache.paths, ..Wanted::default() }, stop).await?;
    let root = context.project_dir.clone();
    for path in &cache.paths {
        context.say(&format!("Removing {path}\n"));
    }
    Context::blocking(move || {
        // What is inside stands behind its directory: from the back, directories are empty when their turn comes.
        for path in found.iter().rev().map(|path| root.join(path)) {
            let _ = if path.is_dir() && !path.is_symlink() { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
        Ok(())
    })
    .await
}

/// Packs the files, if one of them is newer than the archive.
pub(crate) async fn save(context: &Context, cache: &CacheEntry, stop: &Stop) -> Result<(), Failure> {
    let Some(archive) = archive_path(cache, &cache.key) else {
        context.say(&style::info("Skipping cache archiving due to empty cache key"));
        return Ok(());
    };
    if !policy_allows(context, cache, "push") {
        context.say(&style::info(&format!("Not uploading cache {} due to policy", name(cache, 0))));
        return Ok(());
    }
    context.say(&style::info(&format!("Creating cache {}...", name(cache, 0))));
    let format = context.variables.get("CACHE_COMPRESSION_FORMAT").unwrap_or_default();
    if !matches!(format, "" | "zip") {
        context.say(&style::warning(&format!("CACHE_COMPRESSION_FORMAT `{format}` is not known here: `zip` is used")));
    }
    match archive_files(context, cache, archive, stop).await {
        Ok(message) => {
            if let Some(message) = message {
                context.say(&format!("{message}\n"));
            }
            context.say(NO_UPLOAD);
            context.say(&style::info("Created cache"));
        }
        Err(Failure::Stopped(cause)) => return Err(Failure::Stopped(cause)),
        Err(failure) => context.say(&style::warning(&format!("Failed to create cache: {failure}"))),
    }
    Ok(())
}

/// The key as people know it: the job's own, then its fallbacks.
fn name(cache: &CacheEntry, index: usize) -> &str {
    let key = if index == 0 { Some(&cache.key) } else { cache.fallback_keys.get(index - 1) };
    cache.names.get(index).or(key).map(String::as_str).unwrap_or_default()
}

async fn archive_files(
    context: &Context,
    cache: &CacheEntry,
    archive: PathBuf,
    stop: &Stop,
) -> Result<Option<&'static str>, Failure> {
    let wanted = Wanted { paths: &cache.paths, untracked: cache.untracked, ..Wanted::default() };
    let files = select(context, wanted, stop).await?;
    if files.is_empty() {
        return Ok(Some("No files to cache."));
    }
    let level = Level::from_name(context.variables.get("CACHE_COMPRESSION_LEVEL"));
    let (root, watch, key) = (context.project_dir.clone(), stop.clone(), name(cache, 0).to_owned());
    let alternate = archive_path(cache, &cache.alternate);
    Context::blocking(move || {
        take_over(alternate.as_deref(), &archive);
        if is_up_to_date(&archive, &root, &files) {
            return Ok(Some("Archive is up to date!"));
        }
        let problem = || Failure::io(format!("cannot write `{}`", archive.display()));
        let directory = archive.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(problem())?;
        let part = tempfile::Builder::new().prefix("archive_").tempfile_in(directory).map_err(problem())?;
        pack::zip(&root, &files, level, part.as_file(), &watch)?;
        part.persist(&archive).map_err(|error| problem()(error.error))?;
        let metadata = serde_json::json!({ "cachekey": key }).to_string();
        fs::write(directory.join("metadata.json"), metadata).map_err(problem())?;
        Ok(None)
    })
    .await
}

/// An archive that was kept under the other form of the key is this cache's.
fn take_over(alternate: Option<&Path>, archive: &Path) {
    let Some(alternate) = alternate.filter(|path| path.is_file() && !archive.exists()) else { return };
    let moved = archive.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::rename(alternate, archive));
    if let Err(error) = moved {
        tracing::warn!(%error, "a cache stays under the other form of its key");
    }
}

/// Whether nothing has changed since the archive was made.
fn is_up_to_date(archive: &Path, root: &Path, files: &[PathBuf]) -> bool {
    let modified = |path: &Path| fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    let Ok(made) = modified(archive) else { return false };
    let newest = files.iter().filter_map(|file| modified(&root.join(file)).ok()).max();
    newest.unwrap_or(SystemTime::UNIX_EPOCH) <= made
}

/// `pull-push` allows both; any other word is a mistake of the author's, and allows none.
fn policy_allows(context: &Context, cache: &CacheEntry, action: &str) -> bool {
    match cache.policy.as_str() {
        "" | "pull-push" => true,
        "pull" | "push" => cache.policy == action,
        other => {
            context.say(&style::warning(&format!("unknown cache policy {other} for {}", cache.key)));
            false
        }
    }
}

/// Where the archive of a key is; none for a key that leads out of the cache directory.
fn archive_path(cache: &CacheEntry, key: &str) -> Option<PathBuf> {
    let inside = Path::new(key).components().all(|part| matches!(part, Component::Normal(_)));
    (inside && !key.is_empty()).then(|| Path::new(&cache.cache_dir).join(key).join("cache.zip"))
}
