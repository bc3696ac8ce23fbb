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

/// Unpacks the first archive that there is for the key or one of its fallbacks.
pub(crate) async fn restore(context: &Context, cache: &CacheEntry, stop: &Stop) -> Result<(), Failure> {
    if !policy_allows(context, cache, "pull") {
        context.say(&style::info(&format!("Not downloading cache {} due to policy", cache.key)));
        return Ok(());
    }
    if cache.key.is_empty() {
        context.say(&style::info("Skipping cache extraction due to empty cache key"));
        return Ok(());
    }
    for key in [&cache.key].into_iter().chain(&cache.fallback_keys) {
        context.say(&style::info(&format!("Checking cache for {key}...")));
        let archive = match archive_path(cache, key).map(File::open) {
            Some(Ok(file)) => file,
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                context.say(&style::warning("Cache file does not exist"));
                context.say(&style::warning("Failed to extract cache"));
                continue;
            }
            Some(Err(error)) => {
                context.say(&style::warning(&format!("Failed to extract cache: {error}")));
                continue;
            }
            None => {
                context.say(&style::warning(&format!("cache key \"{key}\" leads out of the cache directory")));
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
            Err(failure) => context.say(&style::warning(&format!("Failed to extract cache: {failure}"))),
        }
    }
    Ok(())
}

/// Packs the files, if one of them is newer than the archive.
pub(crate) async fn save(context: &Context, cache: &CacheEntry, stop: &Stop) -> Result<(), Failure> {
    if !policy_allows(context, cache, "push") {
        context.say(&style::info(&format!("Not uploading cache {} due to policy", cache.key)));
        return Ok(());
    }
    let Some(archive) = archive_path(cache, &cache.key) else {
        context.say(&style::info("Skipping cache archiving due to empty cache key"));
        return Ok(());
    };
    context.say(&style::info(&format!("Creating cache {}...", cache.key)));
    match archive_files(context, cache, archive, stop).await {
        Ok(message) => {
            if let Some(message) = message {
                context.say(&format!("{message}\n"));
            }
            context.say(&style::info("Created cache"));
        }
        Err(Failure::Stopped(cause)) => return Err(Failure::Stopped(cause)),
        Err(failure) => context.say(&style::warning(&format!("Failed to create cache: {failure}"))),
    }
    Ok(())
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
    let (root, watch, key) = (context.project_dir.clone(), stop.clone(), cache.key.clone());
    Context::blocking(move || {
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
