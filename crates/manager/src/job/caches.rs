//! Signs the URLs of a job's caches in the object store of its runner.
//!
//! A cache is one archive, or chunks (see `muster_chunks`): packs, an index of the packs, and a reference for each key.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_agent_api::builtin::{CacheObject, ChunkStore, ChunkUpload};
use muster_cache_store::{CacheStore, CacheStoreError, CacheStores, UploadOptions};
use muster_chunks::{MAX_MARKS_BYTES, MAX_REFERENCE_BYTES, Marks, Reference};
use muster_job::{JobId, Secret};
use muster_runner_api::payload::JobPayload;

use crate::lower::{CacheUse, ChunkUse, JobContext, cache_uses, job_timeout};

/// Number of packs with upload URLs, per cache. A larger cache has larger packs.
const PACKS: usize = 100;

/// Objects by cache key: archives, and chunks.
pub(super) type SignedCaches = (BTreeMap<String, CacheObject>, BTreeMap<String, ChunkStore>);

/// Returns no objects if the runner has no usable object store, or the job uses no cache.
pub(super) async fn sign(stores: &CacheStores, payload: &JobPayload, job: &JobContext) -> SignedCaches {
    let settings = &job.runner.cache;
    let Some(store) = &settings.store else { return SignedCaches::default() };
    let uses = cache_uses(payload, job);
    if uses.archives.is_empty() && uses.chunks.is_empty() {
        return SignedCaches::default();
    }
    let (expires_in, max_bytes) = (job_timeout(payload), settings.max_archive_bytes);
    let signed = stores.sign_with(store, async |store| {
        let mut objects = BTreeMap::new();
        for usage in &uses.archives {
            match object(store, usage, expires_in, max_bytes).await {
                Ok(object) => drop(objects.insert(usage.key.clone(), object)),
                // The job keeps this cache on its machine.
                Err(CacheStoreError::Name(name)) => tracing::warn!(name, "cache key is not a valid object name"),
                Err(error) => return Err(error),
            }
        }
        let mut chunks = BTreeMap::new();
        for usage in &uses.chunks {
            match chunk_store(store, usage, payload.id, expires_in, max_bytes).await {
                Ok(signed) => drop(chunks.insert(usage.key.clone(), signed)),
                Err(CacheStoreError::Name(name)) => tracing::warn!(name, "cache key is not a valid object name"),
                Err(error) => return Err(error),
            }
        }
        Ok((objects, chunks))
    });
    signed.await.unwrap_or_else(|error| {
        let error = muster_job::error_chain(&error);
        tracing::error!(error, "failed to sign the URLs of caches, using the caches of the job's machine");
        SignedCaches::default()
    })
}

/// Returns the URLs to query, download and upload an object, as the job needs them.
async fn object(
    store: &CacheStore,
    usage: &CacheUse,
    expires_in: Duration,
    max_bytes: u64,
) -> Result<CacheObject, CacheStoreError> {
    let secret = |url: url::Url| Secret::new(String::from(url));
    let mut object =
        CacheObject { head: secret(store.head_url(&usage.object, expires_in).await?), ..CacheObject::default() };
    if usage.download {
        object.download = secret(store.download_url(&usage.object, expires_in).await?);
    }
    if usage.upload {
        let options = UploadOptions { cache_key: &usage.name, max_bytes };
        let upload = store.upload_url(&usage.object, expires_in, options).await?;
        object.upload = secret(upload.url);
        object.upload_headers = upload.headers;
    }
    Ok(object)
}

/// Returns the references of a cache that is stored as chunks, and the URLs that the job needs.
///
/// The list of marks contains the names of unused objects ([`muster_chunks::Sweep`]). It is read before the references,
/// so that no save uses a marked object.
async fn chunk_store(
    store: &CacheStore,
    usage: &ChunkUse,
    job: JobId,
    expires_in: Duration,
    max_bytes: u64,
) -> Result<ChunkStore, CacheStoreError> {
    let object = |name: &str| format!("{}/objects/{name}", usage.prefix);
    let reference_name = |key: &str| match key {
        "" => format!("{}/last.json", usage.prefix),
        key => format!("{}/keys/{key}/reference.json", usage.prefix),
    };
    let secret = |url: url::Url| Secret::new(String::from(url));
    let mut signed = ChunkStore::default();
    let marks = store.read_object(&format!("{}/marks.json", usage.prefix), MAX_MARKS_BYTES).await?.unwrap_or_default();
    signed.marked = Marks::parse(&marks).names().map(str::to_owned).collect();
    let keys = [&usage.key].into_iter().chain(&usage.fallback_keys).map(String::as_str);
    // The empty key stands for the cache that was saved last, whose chunks a new key can share.
    let keys = keys.chain(usage.upload.then_some(""));
    let texts = keys.map(async |key| {
        Ok::<_, CacheStoreError>((key, store.read_object(&reference_name(key), MAX_REFERENCE_BYTES).await?))
    });
    for (key, text) in futures::future::try_join_all(texts).await? {
        let Some(text) = text.and_then(|text| String::from_utf8(text).ok()) else { continue };
        // The agent reports a damaged reference.
        if let Ok(reference) = Reference::parse(text.as_bytes()) {
            let packs = reference.packs.iter().filter(|_| usage.download && !key.is_empty());
            for name in [&reference.index].into_iter().chain(packs).map(|object| &object.name) {
                if !signed.downloads.contains_key(name) {
                    let url = store.download_url(&object(name), expires_in).await?;
                    signed.downloads.insert(name.clone(), secret(url));
                }
            }
        }
        signed.references.insert(key.to_owned(), text);
    }
    if !usage.upload {
        return Ok(signed);
    }
    let id = format!("{}-{:016x}", job.0, rand::random::<u64>());
    let options = UploadOptions { cache_key: &usage.name, max_bytes };
    let mut upload = ChunkUpload::default();
    for number in 0..PACKS {
        let pack = store.upload_url(&object(&format!("{id}-{number}")), expires_in, options).await?;
        upload.packs.push(secret(pack.url));
        upload.headers = pack.headers;
    }
    let others = [object(&format!("{id}-index")), reference_name(&usage.key), reference_name("")];
    let urls = [&mut upload.index, &mut upload.reference, &mut upload.last];
    for (name, url) in others.iter().zip(urls) {
        *url = secret(store.upload_url(name, expires_in, options).await?.url);
    }
    upload.id = id;
    signed.upload = Some(upload);
    Ok(signed)
}
