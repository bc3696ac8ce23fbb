//! Inputs for steps of the operator that replace the steps for caches (docs/reference/replaceable-steps.md).

use std::collections::BTreeMap;

use muster_agent_api::builtin::{CacheEntry, CacheRestore, CacheSave};
use muster_steps::builtin::Offer;
use serde_json::{Map, Value, json};

use super::archive_path;
use crate::offer::map;

pub(super) fn restore(step: &CacheRestore) -> Offer {
    let mut sensitive = Vec::new();
    let cache = |entry: &CacheEntry| {
        let mut cache = cache_fields(entry);
        let alternate = Some(&entry.alternate).filter(|key| !key.is_empty());
        let keys = [&entry.key].into_iter().chain(alternate).chain(&entry.fallback_keys);
        let mut downloads = Vec::new();
        for key in keys {
            let url = entry.objects.get(key).map(|object| object.download.expose()).filter(|url| !url.is_empty());
            if let Some(url) = url {
                sensitive.extend(secrets_of(url));
                downloads.push(json!({ "key": key, "url": url }));
            }
        }
        cache.insert("downloads".to_owned(), downloads.into());
        Value::Object(cache)
    };
    let caches = step.caches.iter().map(cache).collect();
    Offer { inputs: map([("caches", caches)]), sensitive }
}

pub(super) fn save(step: &CacheSave) -> Offer {
    let mut sensitive = Vec::new();
    let cache = |entry: &CacheEntry| {
        let mut cache = cache_fields(entry);
        let object = entry.objects.get(&entry.key);
        let url = object.map(|object| object.upload.expose()).unwrap_or_default();
        sensitive.extend(secrets_of(url));
        let headers = object.map(|object| object.upload_headers.iter().cloned().collect::<BTreeMap<_, _>>());
        cache.extend(map([
            ("upload_url", json!(url)),
            ("upload_headers", json!(headers.unwrap_or_default())),
            ("max_upload_bytes", json!(entry.max_upload_bytes)),
        ]));
        Value::Object(cache)
    };
    let caches = step.caches.iter().map(cache).collect();
    Offer { inputs: map([("caches", caches)]), sensitive }
}

/// Returns the texts to mask: a signed URL and its query, which programs may print alone.
fn secrets_of(url: &str) -> Vec<String> {
    let query = url.split_once('?').map(|(_, query)| query);
    [Some(url), query].into_iter().flatten().filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

fn cache_fields(entry: &CacheEntry) -> Map<String, Value> {
    let file = archive_path(entry, &entry.key).unwrap_or_default();
    map([
        ("key", json!(entry.key)),
        ("name", json!(entry.names.first().unwrap_or(&entry.key))),
        ("fallback_keys", json!(entry.fallback_keys)),
        ("paths", json!(entry.paths)),
        ("untracked", json!(entry.untracked)),
        ("policy", json!(if entry.policy.is_empty() { "pull-push" } else { &entry.policy })),
        ("file", json!(file.to_string_lossy())),
    ])
}
