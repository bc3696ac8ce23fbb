//! Commands that restore and save caches with `gitlab-runner` in the environment (docs/spec/job-execution.md, section
//! 10).
//!
//! The commands use only flags that old versions of `gitlab-runner` have, too.

use muster_agent_api::builtin::{CacheEntry, CacheObject, CacheRestore, CacheSave};

use super::frame::{Body, command};
use super::{Target, begin_transfer, end_transfer};
use crate::shell_text::quote;

pub(super) fn restore(body: &mut Body, target: &Target<'_>, caches: &CacheRestore) {
    begin_transfer(body, target);
    for cache in &caches.caches {
        if cache.key.is_empty() {
            body.notice("Skipping cache extraction due to empty cache key");
            continue;
        }
        if !allows(cache, "pull") {
            body.notice(&format!("Not downloading cache {} due to policy", name(cache, 0)));
            continue;
        }
        restore_one(body, cache);
    }
    end_transfer(body, "Extracting cache");
}

pub(super) fn save(body: &mut Body, target: &Target<'_>, caches: &CacheSave) {
    begin_transfer(body, target);
    for cache in &caches.caches {
        if cache.key.is_empty() {
            body.notice("Skipping cache archiving due to empty cache key");
            continue;
        }
        if !allows(cache, "push") {
            body.notice(&format!("Not uploading cache {} due to policy", name(cache, 0)));
            continue;
        }
        save_one(body, cache);
    }
    end_transfer(body, "Creating cache");
}

/// Adds commands that try the keys in order.
fn restore_one(body: &mut Body, cache: &CacheEntry) {
    body.line("_runner_extracted=");
    for (index, key) in [&cache.key].into_iter().chain(&cache.fallback_keys).enumerate() {
        body.line("if [ -z \"$_runner_extracted\" ]; then");
        body.notice(&format!("Checking cache for {}...", name(cache, index)));
        let mut words =
            vec!["gitlab-runner", "cache-extractor", "--file"].into_iter().map(str::to_owned).collect::<Vec<_>>();
        words.push(archive(cache, key));
        let download = cache.objects.get(key).map(|object| object.download.expose());
        if let Some(url) = download.filter(|url| !url.is_empty()) {
            words.extend(["--url".to_owned(), url.to_owned()]);
        }
        body.line(&format!("if {}; then _runner_extracted=1", command(&words)));
        body.notice("Successfully extracted cache");
        body.line("else");
        body.warning("Failed to extract cache");
        body.line("fi\nfi");
    }
}

fn save_one(body: &mut Body, cache: &CacheEntry) {
    body.notice(&format!("Creating cache {}...", name(cache, 0)));
    let mut words = ["gitlab-runner", "cache-archiver", "--file"].map(str::to_owned).to_vec();
    words.push(archive(cache, &cache.key));
    for pattern in &cache.paths {
        words.extend(["--path".to_owned(), pattern.clone()]);
    }
    if cache.untracked {
        words.push("--untracked".to_owned());
    }
    if let Some(CacheObject { upload, upload_headers, .. }) = cache.objects.get(&cache.key)
        && !upload.expose().is_empty()
    {
        words.extend(["--url".to_owned(), upload.expose().to_owned()]);
        for (header, value) in upload_headers {
            words.extend(["--header".to_owned(), format!("{header}: {value}")]);
        }
        if cache.max_upload_bytes > 0 {
            words.extend(["--max-uploaded-archive-size".to_owned(), cache.max_upload_bytes.to_string()]);
        }
    }
    let metadata = quote(&serde_json::json!({ "cachekey": name(cache, 0) }).to_string());
    body.line(&format!("if CACHE_METADATA={metadata} {}; then", command(&words)));
    body.notice("Created cache");
    body.line("else");
    body.warning("Failed to create cache");
    body.line("fi");
}

fn archive(cache: &CacheEntry, key: &str) -> String {
    format!("{}/{key}/cache.zip", cache.cache_dir)
}

fn name(cache: &CacheEntry, index: usize) -> &str {
    let key = || [&cache.key].into_iter().chain(&cache.fallback_keys).nth(index);
    cache.names.get(index).or_else(key).map_or("", String::as_str)
}

fn allows(cache: &CacheEntry, direction: &str) -> bool {
    cache.policy.is_empty() || cache.policy.split('-').any(|part| part == direction)
}
