//! Lowers caches: default key, expansion, sanitizing and fallbacks, as in gitlab-runner.

use std::collections::BTreeMap;

use muster_agent_api::builtin::{CacheEntry, ChunkCache};
use muster_job::short_token;
use muster_runner_api::payload::{Cache, JobPayload};
use sha2::{Digest, Sha256};

use super::flags::Flags;
use super::paths::Paths;
use super::variables::Variables;
use super::{JobContext, LowerError, driver, protection};

/// Number of leading digits of a hashed key that form a segment of the object's name.
const SHARD_DIGITS: usize = 2;
/// Value of `CACHE_COMPRESSION_FORMAT` for caches that are stored as chunks.
const CHUNKS: &str = "chunks";

/// Returns the caches with paths or untracked files, each with its value of `when`.
pub(super) fn entries(
    payload: &JobPayload,
    context: &JobContext,
    paths: &Paths,
    variables: &Variables,
    flags: &Flags,
    warnings: &mut Vec<String>,
) -> Result<Vec<(CacheEntry, String)>, LowerError> {
    let mut keys = Keys { hash: flags.is_on("FF_HASH_CACHE_KEYS"), warnings };
    let uses_chunks = uses_chunks(context, variables);
    let mut entries = Vec::new();
    for cache in payload.cache.iter().filter(|cache| cache.untracked || !cache.paths.is_empty()) {
        let raw = variables.expand(&key(payload, cache));
        // The step that uses the cache warns about an empty key.
        let key = keys.directory_name(&raw).unwrap_or_default();
        let policy = variables.expand(&cache.policy);
        let policy = match policy.as_str() {
            "" => "pull-push".to_owned(),
            "pull-push" | "pull" | "push" => policy,
            unknown => return Err(LowerError::configuration(format!("unknown cache policy {unknown} for {raw}"))),
        };
        let mut fallbacks = fallbacks(cache, variables, keys.warnings);
        let level = level(payload, &raw);
        if uses_chunks {
            fallbacks.retain(|fallback| self::level(payload, fallback) == level);
        }
        let named_fallbacks: Vec<(String, String)> = fallbacks
            .into_iter()
            .filter_map(|raw| keys.directory_name(&raw).map(|key| (key, keys.name(&raw))))
            .collect();
        let mut entry = CacheEntry {
            names: [keys.name(&raw)].into_iter().chain(named_fallbacks.iter().map(|(_, name)| name.clone())).collect(),
            alternate: keys.alternate(&raw).unwrap_or_default(),
            key,
            fallback_keys: named_fallbacks.into_iter().map(|(key, _)| key).collect(),
            cache_dir: paths.cache_dir.clone(),
            paths: cache.paths.clone(),
            untracked: cache.untracked,
            policy,
            clean_up_failed: flags.is_on("FF_CLEAN_UP_FAILED_CACHE_EXTRACT"),
            objects: BTreeMap::new(),
            chunks: None,
            max_upload_bytes: context.runner.cache.max_archive_bytes,
        };
        if uses_chunks {
            let store = context.cache_chunks.get(&entry.key).cloned();
            entry.chunks = Some(ChunkCache { level: level.to_owned(), store });
            // The alternate key only finds archives that were saved with the other value of `FF_HASH_CACHE_KEYS`.
            entry.alternate.clear();
        }
        let keys = [&entry.key, &entry.alternate].into_iter().chain(&entry.fallback_keys);
        entry.objects = keys.filter_map(|key| Some((key.clone(), context.cache_objects.get(key)?.clone()))).collect();
        entries.push((entry, cache.when.clone()));
    }
    Ok(entries)
}

/// Returns whether the job's caches are stored as chunks.
///
/// They are not if the driver of a custom executor runs the job, because drivers only store archives.
fn uses_chunks(context: &JobContext, variables: &Variables) -> bool {
    let format = variables.get("CACHE_COMPRESSION_FORMAT").unwrap_or_default();
    let is_chosen = if format.is_empty() { context.runner.cache.chunks } else { format.eq_ignore_ascii_case(CHUNKS) };
    is_chosen && !driver::runs_job(context)
}

/// Returns the protection level. Caches of different levels share no chunks.
fn level(payload: &JobPayload, key: &str) -> &'static str {
    if protection::of_cache(payload, key) { "protected" } else { "unprotected" }
}

fn key(payload: &JobPayload, cache: &Cache) -> String {
    if cache.key.is_empty() {
        format!("{}/{}", payload.job_info.name, payload.git_info.ref_name)
    } else {
        cache.key.clone()
    }
}

/// Returns the expanded keys in the order of the payload, and then `CACHE_FALLBACK_KEY`.
///
/// A job of an unprotected ref must not read protected caches. For the payload's keys, the coordinator ensures this.
fn fallbacks(cache: &Cache, variables: &Variables, warnings: &mut Vec<String>) -> Vec<String> {
    let mut keys: Vec<String> = cache.fallback_keys.iter().map(|key| variables.expand(key)).collect();
    if let Some(key) = variables.get("CACHE_FALLBACK_KEY").filter(|key| !key.is_empty()) {
        let directory = sanitize(&key).unwrap_or_default();
        if [&key, &directory].into_iter().any(|key| protection::is_protected_key(key)) {
            warnings.push(format!("CACHE_FALLBACK_KEY \"{key}\" not allowed to end in \"-protected\""));
        } else if is_hash(&directory) {
            warnings.push(format!("CACHE_FALLBACK_KEY \"{key}\" not allowed to be the hash of a key"));
        } else {
            keys.push(key);
        }
    }
    keys
}

/// Returns whether the name has the form of a hashed key. A hash does not show whether its key ends in `-protected`.
fn is_hash(directory: &str) -> bool {
    directory.len() == hashed("").len() && directory.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// How a job uses one archive in the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheUse {
    /// Cache key in the form of [`CacheEntry::key`].
    pub(crate) key: String,
    pub(crate) name: String,
    pub(crate) object: String,
    pub(crate) download: bool,
    pub(crate) upload: bool,
}

/// How a job uses the chunks of one cache in the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkUse {
    pub(crate) key: String,
    /// Used if nothing was saved under `key`.
    pub(crate) fallback_keys: Vec<String>,
    /// Human-readable key.
    pub(crate) name: String,
    pub(crate) prefix: String,
    /// Whether the job may restore the cache.
    pub(crate) download: bool,
    /// Whether the job may save the cache.
    pub(crate) upload: bool,
}

/// Each key occurs once in each list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CacheUses {
    pub(crate) archives: Vec<CacheUse>,
    pub(crate) chunks: Vec<ChunkUse>,
}

pub(super) fn list_uses(
    payload: &JobPayload,
    context: &JobContext,
    paths: &Paths,
    variables: &Variables,
    flags: &Flags,
) -> Result<CacheUses, LowerError> {
    let is_hashed = flags.is_on("FF_HASH_CACHE_KEYS");
    let mut archives: Vec<CacheUse> = Vec::new();
    let mut chunks: Vec<ChunkUse> = Vec::new();
    let mut add = |key: &str, name: &str, is_hashed: bool, download: bool, upload: bool| {
        if key.is_empty() || !(download || upload) {
            return;
        }
        if let Some(known) = archives.iter_mut().find(|known| known.key == key) {
            known.download |= download;
            known.upload |= upload;
            return;
        }
        let object = object_name(payload, context, key, is_hashed);
        archives.push(CacheUse { key: key.to_owned(), name: name.to_owned(), object, download, upload });
    };
    for (entry, _) in entries(payload, context, paths, variables, flags, &mut Vec::new())? {
        let (download, upload) = (entry.policy != "push", entry.policy != "pull");
        if let Some(ChunkCache { level, .. }) = &entry.chunks {
            add_chunks(&mut chunks, &entry, chunk_prefix(payload, context, level), download, upload);
            continue;
        }
        let mut keys = [&entry.key].into_iter().chain(&entry.fallback_keys).zip(&entry.names);
        if let Some((key, name)) = keys.next() {
            add(key, name, is_hashed, download, upload);
            add(&entry.alternate, name, !is_hashed, download, false);
        }
        for (key, name) in keys {
            add(key, name, is_hashed, download, false);
        }
    }
    Ok(CacheUses { archives, chunks })
}

fn add_chunks(uses: &mut Vec<ChunkUse>, entry: &CacheEntry, prefix: String, download: bool, upload: bool) {
    if entry.key.is_empty() {
        return;
    }
    if let Some(known) = uses.iter_mut().find(|known| known.key == entry.key) {
        known.download |= download;
        known.upload |= upload;
        let more = entry.fallback_keys.iter().filter(|key| !known.fallback_keys.contains(key));
        let more: Vec<String> = more.cloned().collect();
        known.fallback_keys.extend(more);
        return;
    }
    let name = entry.names.first().cloned().unwrap_or_default();
    let fallback_keys = entry.fallback_keys.clone();
    uses.push(ChunkUse { key: entry.key.clone(), fallback_keys, name, prefix, download, upload });
}

/// Returns the prefix of the names of chunks.
///
/// No archive has a name with this prefix, whatever its key is: archives have `project` in place of `chunks`.
fn chunk_prefix(payload: &JobPayload, context: &JobContext, level: &str) -> String {
    let mut segments = prefix(context);
    segments.extend(["chunks".to_owned(), payload.job_info.project_id.to_string(), level.to_owned()]);
    segments.join("/")
}

/// See docs/spec/job-execution.md, section 10.2.
fn object_name(payload: &JobPayload, context: &JobContext, key: &str, is_hashed: bool) -> String {
    let mut segments = prefix(context);
    segments.extend(["project".to_owned(), payload.job_info.project_id.to_string()]);
    // Object stores limit requests per prefix, so hashed keys are spread over several prefixes.
    segments.extend(key.get(..SHARD_DIGITS).filter(|_| is_hashed).map(str::to_owned));
    segments.push(key.to_owned());
    segments.join("/")
}

/// Returns the segments that begin the names of all objects of a runner.
fn prefix(context: &JobContext) -> Vec<String> {
    let settings = &context.runner.cache;
    let path = settings.path.split('/').filter(|segment| !matches!(*segment, "" | "." | ".."));
    let mut segments: Vec<String> = path.map(str::to_owned).collect();
    if !settings.shared {
        segments.extend(["runner".to_owned(), short_token(context.runner.token.expose())]);
    }
    segments
}

/// Derives directory names from cache keys.
struct Keys<'a> {
    hash: bool,
    warnings: &'a mut Vec<String>,
}

impl Keys<'_> {
    /// `None` means that nothing remains after sanitizing.
    fn directory_name(&mut self, raw: &str) -> Option<String> {
        if raw.is_empty() {
            return None;
        }
        if self.hash {
            return Some(hashed(raw));
        }
        let key = sanitize(raw);
        match &key {
            None => self.warnings.push(format!("cache key \"{raw}\" could not be sanitized")),
            Some(key) if key != raw => self.warnings.push(format!("cache key \"{raw}\" sanitized to \"{key}\"")),
            Some(_) => {}
        }
        key
    }

    /// Returns the name that the cache has with the other value of `FF_HASH_CACHE_KEYS`.
    fn alternate(&self, raw: &str) -> Option<String> {
        if self.hash { sanitize(raw) } else { Some(hashed(raw)).filter(|_| !raw.is_empty()) }
    }

    /// Returns the key for messages.
    fn name(&self, raw: &str) -> String {
        if self.hash { raw.to_owned() } else { sanitize(raw).unwrap_or_default() }
    }
}

fn hashed(raw: &str) -> String {
    format!("{:x}", Sha256::digest(raw))
}

/// Resolves the key under a virtual root, so that it stays in the cache directory.
fn sanitize(raw: &str) -> Option<String> {
    let slashes = raw.replace("%2f", "/").replace("%2F", "/").replace("%2e", ".").replace("%2E", ".");
    let mut segments: Vec<&str> = Vec::new();
    for segment in slashes.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    while let Some(last) = segments.pop() {
        let trimmed = last.trim_end();
        if !trimmed.is_empty() && trimmed != "." && trimmed != ".." {
            segments.push(trimmed);
            break;
        }
    }
    (!segments.is_empty()).then(|| segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_below_the_cache_directory() {
        for (raw, key) in [
            ("test/main", Some("test/main")),
            ("/abs//x/", Some("abs/x")),
            ("../../etc", Some("etc")),
            ("a%2F..%2fb", Some("b")),
            ("a\\b", Some("a/b")),
            ("a/b  ", Some("a/b")),
            ("a/  ", Some("a")),
            ("..", None),
            ("%2e%2e/ ", None),
        ] {
            assert_eq!(sanitize(raw).as_deref(), key, "{raw}");
        }
    }
}
