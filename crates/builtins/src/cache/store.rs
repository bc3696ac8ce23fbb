//! Transfers the archive of a job's cache to and from an object store.

use std::path::Path;
use std::time::Duration;

use muster_agent_api::builtin::{CacheEntry, CacheObject};
use muster_job::Secret;
use muster_steps::stop::StopToken;
use url::Url;

use super::ArchiveOutcome;
use super::remote::{Remote, RemoteError, RemoteObject};
use crate::context::Context;
use crate::transfer::{MessageLevel, TransferContext};

/// Default of `CACHE_REQUEST_TIMEOUT` in minutes.
const DEFAULT_MINUTES: u64 = 10;
/// Number of retries, and the delay before each.
const RETRIES: (u32, Duration) = (2, Duration::from_secs(1));

/// Access to the objects of one cache key in an object store.
pub(super) struct ObjectStore<'a> {
    object: &'a CacheObject,
    /// Object of the other form of the key (hashed or plain), which older caches may have. Used only for downloads.
    alternate: Option<&'a CacheObject>,
    max_upload_bytes: u64,
    timeout: Duration,
}

impl<'a> ObjectStore<'a> {
    /// Returns the objects from which the key is restored. `None` means that the key has no object in a store.
    pub(super) fn for_download(context: &Context, cache: &'a CacheEntry, key: &str) -> Option<Self> {
        let has_download = |object: &&CacheObject| !object.download.expose().is_empty();
        let object = cache.objects.get(key).filter(has_download)?;
        let alternate = cache.objects.get(&cache.alternate).filter(has_download).filter(|_| key == cache.key);
        Some(Self { object, alternate, max_upload_bytes: 0, timeout: timeout(context) })
    }

    /// Returns the object to which the cache is uploaded. `None` means that the cache is not uploaded.
    pub(super) fn for_upload(context: &Context, cache: &'a CacheEntry) -> Option<Self> {
        let object = cache.objects.get(&cache.key).filter(|object| !object.upload.expose().is_empty())?;
        Some(Self { object, alternate: None, max_upload_bytes: cache.max_upload_bytes, timeout: timeout(context) })
    }

    fn remote(&self) -> Result<Remote, RemoteError> {
        remote(self.timeout)
    }

    pub(super) async fn download(&self, context: &Context, file: &Path, stop: &StopToken) -> Result<(), RemoteError> {
        let objects = [self.object].into_iter().chain(self.alternate);
        let objects: Result<Vec<_>, RemoteError> = objects
            .map(|object| Ok(RemoteObject { url: parse_url(&object.download)?, head: Some(parse_url(&object.head)?) }))
            .collect();
        self.remote()?.download_newest(context, &objects?, file, stop).await
    }

    /// Uploads the archive if it is new, or if the store does not have it.
    pub(super) async fn upload(
        &self,
        context: &Context,
        file: &Path,
        written: ArchiveOutcome,
        stop: &StopToken,
    ) -> Result<(), RemoteError> {
        let remote = self.remote()?;
        match written {
            ArchiveOutcome::NoFiles => return Ok(()),
            ArchiveOutcome::UpToDate if remote.has(context, &parse_url(&self.object.head)?, stop).await? => {
                return Ok(());
            }
            ArchiveOutcome::UpToDate | ArchiveOutcome::Written { .. } => {}
        }
        let headers = self.object.upload_headers.iter().map(|(name, value)| format!("{name}: {value}"));
        let headers: Vec<String> = headers.collect();
        remote.upload(context, file, &parse_url(&self.object.upload)?, &headers, self.max_upload_bytes, stop).await
    }
}

pub(super) fn remote(timeout: Duration) -> Result<Remote, RemoteError> {
    let (retries, delay) = RETRIES;
    Remote::new(timeout, retries, delay)
}

pub(super) fn timeout(context: &Context) -> Duration {
    let text = context.variables.get("CACHE_REQUEST_TIMEOUT").unwrap_or_default().trim();
    let minutes = text.parse().ok().filter(|minutes| *minutes > 0).unwrap_or_else(|| {
        if !text.is_empty() {
            let message =
                format!("CACHE_REQUEST_TIMEOUT `{text}` is not a valid number of minutes; using {DEFAULT_MINUTES}");
            context.report(MessageLevel::Warning, &message);
        }
        DEFAULT_MINUTES
    });
    Duration::from_secs(minutes.saturating_mul(60))
}

pub(super) fn parse_url(url: &Secret) -> Result<Url, RemoteError> {
    Url::parse(url.expose()).map_err(|error| RemoteError::Setup(format!("the cache has an invalid URL: {error}")))
}
