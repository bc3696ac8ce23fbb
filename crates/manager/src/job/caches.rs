//! Signs the URLs of a job's caches in the object store of its runner.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_agent_api::builtin::CacheObject;
use muster_cache_store::{CacheStore, CacheStoreError, CacheStores, UploadOptions};
use muster_job::Secret;
use muster_runner_api::payload::JobPayload;

use crate::lower::{CacheUse, JobContext, cache_uses, job_timeout};

/// Returns the objects of the job's caches by their keys. Empty if the runner has no object store.
///
/// If the store cannot be used, the job continues with the caches of its machine, as in gitlab-runner.
pub(super) async fn sign(
    stores: &CacheStores,
    payload: &JobPayload,
    job: &JobContext,
) -> BTreeMap<String, CacheObject> {
    let settings = &job.runner.cache;
    let Some(store) = &settings.store else { return BTreeMap::new() };
    let uses = cache_uses(payload, job);
    if uses.is_empty() {
        return BTreeMap::new();
    }
    let (expires_in, max_bytes) = (job_timeout(payload), settings.max_archive_bytes);
    let signed = stores.sign_with(store, async |store| {
        let mut objects = BTreeMap::new();
        for usage in &uses {
            match object(store, usage, expires_in, max_bytes).await {
                Ok(object) => drop(objects.insert(usage.key.clone(), object)),
                // Only the cache with this name stays on the machine.
                Err(CacheStoreError::Name(name)) => tracing::warn!(name, "cache key is not a valid object name"),
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    });
    signed.await.unwrap_or_else(|error| {
        let error = muster_job::error_chain(&error);
        tracing::error!(error, "failed to sign the URLs of caches, using the caches of the job's machine");
        BTreeMap::new()
    })
}

/// Returns the URLs that the job needs of one object, and no others.
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
