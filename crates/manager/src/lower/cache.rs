//! Cache keys: default, expansion, sanitising, fallbacks (job-execution 10.1).

use muster_agent_api::builtin::CacheEntry;
use muster_runner_api::payload::{Cache, JobPayload};
use sha2::{Digest, Sha256};

use super::paths::Paths;
use super::variables::Variables;
use super::{LowerError, flags};

/// The caches of the job that have a key, each with its `when`.
pub(super) fn entries(
    payload: &JobPayload,
    paths: &Paths,
    variables: &Variables,
    header: &mut Vec<String>,
) -> Result<Vec<(CacheEntry, String)>, LowerError> {
    let mut entries = Vec::new();
    for cache in payload.cache.iter().filter(|cache| cache.untracked || !cache.paths.is_empty()) {
        let raw = variables.expand(&key(payload, cache));
        let Some(key) = stored_key(&raw, variables, header) else {
            header.push("Skipping cache due to empty cache key".to_owned());
            continue;
        };
        let policy = variables.expand(&cache.policy);
        let policy = match policy.as_str() {
            "" => "pull-push".to_owned(),
            "pull-push" | "pull" | "push" => policy,
            unknown => return Err(LowerError::configuration(format!("unknown cache policy {unknown} for {raw}"))),
        };
        let entry = CacheEntry {
            key,
            fallback_keys: fallbacks(cache, variables, header),
            cache_dir: paths.cache_dir.clone(),
            paths: cache.paths.clone(),
            untracked: cache.untracked,
            policy,
        };
        entries.push((entry, cache.when.clone()));
    }
    Ok(entries)
}

fn key(payload: &JobPayload, cache: &Cache) -> String {
    if cache.key.is_empty() {
        format!("{}/{}", payload.job_info.name, payload.git_info.ref_name)
    } else {
        cache.key.clone()
    }
}

fn fallbacks(cache: &Cache, variables: &Variables, header: &mut Vec<String>) -> Vec<String> {
    let mut keys: Vec<String> = cache.fallback_keys.iter().map(|key| variables.expand(key)).collect();
    if let Some(key) = variables.get("CACHE_FALLBACK_KEY").filter(|key| !key.is_empty()) {
        if key.trim_end_matches(['.', ' ']).ends_with("-protected") {
            header.push(format!("WARNING: CACHE_FALLBACK_KEY \"{key}\" not allowed to end in \"-protected\""));
        } else {
            keys.push(key);
        }
    }
    keys.iter().filter_map(|key| stored_key(key, variables, header)).collect()
}

/// The key as it names a directory; none where nothing is left of it.
fn stored_key(raw: &str, variables: &Variables, header: &mut Vec<String>) -> Option<String> {
    if raw.is_empty() {
        return None;
    }
    if flags::is_on(variables, "FF_HASH_CACHE_KEYS") {
        return Some(Sha256::digest(raw).iter().map(|byte| format!("{byte:02x}")).collect());
    }
    let key = sanitize(raw);
    if key.is_none() {
        header.push(format!("WARNING: cache key \"{raw}\" could not be sanitized"));
    } else if key.as_deref() != Some(raw) {
        let key = key.as_deref().unwrap_or_default();
        header.push(format!("WARNING: cache key \"{raw}\" sanitized to \"{key}\""));
    }
    key
}

/// Resolves the path under a virtual root: no key leads out of the cache directory.
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
