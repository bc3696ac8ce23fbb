//! Transfers objects of a chunk store by signed URLs.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{StreamExt, TryStreamExt};
use muster_chunks::{Download, Object, Spool, Store};
use muster_job::Secret;
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use reqwest::header::{CONTENT_RANGE, HeaderMap, RANGE};
use reqwest::{Response, StatusCode, Url};

use crate::cache::download::Download as ObjectDownload;
use crate::cache::remote::{Remote, RemoteError, check_status};
use crate::transfer::{Meter, TransferContext};

const MAX_CONCURRENT: usize = 8;

/// Objects of a store, and the URLs with which a job may download them.
pub(super) struct Objects<'a> {
    pub(super) context: &'a dyn TransferContext,
    pub(super) remote: Remote,
    pub(super) store: &'a Store,
    /// Signed URLs for GET, by object name.
    pub(super) urls: &'a BTreeMap<String, Secret>,
    pub(super) stop: &'a StopToken,
    /// Objects that are missing or damaged in the store.
    pub(super) lost: Mutex<Vec<Object>>,
}

pub(super) struct Upload<'a> {
    pub(super) file: PathBuf,
    pub(super) url: &'a Secret,
}

impl Objects<'_> {
    fn url(&self, object: &Object) -> Result<Url, RemoteError> {
        crate::cache::store::parse_url(self.urls.get(&object.name).ok_or(RemoteError::Missing)?)
    }

    pub(super) async fn fetch(&self, object: &Object) -> Result<(), RemoteError> {
        let meter = Arc::new(Mutex::new(self.context.meter("Downloading cache", Some(object.size))));
        self.fetch_with(object, &meter).await
    }

    async fn fetch_with(&self, object: &Object, meter: &Arc<Mutex<Meter>>) -> Result<(), RemoteError> {
        let url = self.url(object)?;
        let fetched = self.remote.with_retries(self.context, self.stop, || self.fetch_once(object, &url, meter)).await;
        self.record_loss(object, fetched)
    }

    fn record_loss(&self, object: &Object, transferred: Result<(), RemoteError>) -> Result<(), RemoteError> {
        if let Err(RemoteError::Missing | RemoteError::Damaged(_)) = &transferred {
            self.lost.lock().push(object.clone());
        }
        transferred
    }

    async fn fetch_once(&self, object: &Object, url: &Url, meter: &Arc<Mutex<Meter>>) -> Result<(), RemoteError> {
        let response = self.remote.http.get(url.clone()).send().await.map_err(RemoteError::network)?;
        let response = check_status(response).await?;
        if response.content_length().is_some_and(|length| length != object.size) {
            return Err(wrong_size(object));
        }
        let file = self.store.temporary().map_err(write_failed)?;
        let counted = Arc::clone(meter);
        let counted: Meter = Box::new(move |bytes| (counted.lock())(bytes));
        ObjectDownload::new(&self.remote, self.context, url, file.as_file(), counted).run(response).await?;
        let metadata = file.as_file().metadata();
        if metadata.map_err(|error| file_failed("read", error))?.len() != object.size {
            return Err(wrong_size(object));
        }
        self.store.persist(file, &object.name).map_err(write_failed)
    }

    /// Downloads the missing parts of packs: whole packs into the directory of the store, ranges into a temporary file.
    ///
    /// Returns the ranges.
    pub(super) async fn fetch_chunks(&self, downloads: &[Download]) -> Result<Spool, RemoteError> {
        let file = self.store.temporary().map_err(write_failed)?.into_file();
        let spool = Mutex::new(Spool::new(file.try_clone().map_err(|error| file_failed("open", error))?));
        let total = downloads.iter().map(Download::bytes).sum();
        let meter = Arc::new(Mutex::new(self.context.meter("Downloading cache", Some(total))));
        let next_position = AtomicU64::new(0);
        let mut parts: Vec<(Object, u32, Option<Range<u64>>)> = Vec::new();
        for download in downloads {
            let part = |range| (download.pack.clone(), download.number, range);
            if download.ranges.is_empty() {
                parts.push(part(None));
            }
            parts.extend(download.ranges.iter().cloned().map(Some).map(part));
        }
        let parts = futures::stream::iter(parts.into_iter().map(Ok::<_, RemoteError>));
        let (file, spool, meter, next_position) = (&file, &spool, &meter, &next_position);
        parts
            .try_for_each_concurrent(MAX_CONCURRENT, |(pack, number, range)| async move {
                let Some(range) = range else { return self.fetch_with(&pack, meter).await };
                let at = next_position.fetch_add(range.end - range.start, Ordering::Relaxed);
                let url = self.url(&pack)?;
                let transfer = || self.fetch_range_once(&url, &range, file, at, meter);
                self.record_loss(&pack, self.remote.with_retries(self.context, self.stop, transfer).await)?;
                spool.lock().add(number, &range, at);
                Ok(())
            })
            .await?;
        Ok(std::mem::replace(
            &mut *spool.lock(),
            Spool::new(file.try_clone().map_err(|error| file_failed("open", error))?),
        ))
    }

    /// Downloads a range of an object to position `at` of a file.
    async fn fetch_range_once(
        &self,
        url: &Url,
        range: &Range<u64>,
        file: &File,
        at: u64,
        meter: &Arc<Mutex<Meter>>,
    ) -> Result<(), RemoteError> {
        let last = range.end.saturating_sub(1);
        let call = self.remote.http.get(url.clone()).header(RANGE, format!("bytes={}-{last}", range.start));
        let response = call.send().await.map_err(RemoteError::network)?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(RemoteError::Damaged("an object of the store is too short".to_owned()));
        }
        let response = check_status(response).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT || !has_range(&response, range.start, last) {
            let message = format!("the store answered a request for a range with status {}", response.status());
            return Err(RemoteError::Damaged(message));
        }
        let (mut at, end) = (at, at + range.end - range.start);
        let mut body = response.bytes_stream();
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(RemoteError::network)?;
            if at + bytes.len() as u64 > end {
                return Err(RemoteError::Damaged("the store sent more than the range".to_owned()));
            }
            file.write_all_at(&bytes, at).map_err(|error| file_failed("write", error))?;
            at += bytes.len() as u64;
            (meter.lock())(bytes.len());
        }
        if at == end {
            return Ok(());
        }
        Err(RemoteError::Network("the response ended before the end of the range".to_owned()))
    }

    pub(super) async fn upload(&self, uploads: Vec<Upload<'_>>, headers: &HeaderMap) -> Result<(), RemoteError> {
        let sizes = uploads.iter().filter_map(|upload| upload.file.symlink_metadata().ok());
        let total = sizes.map(|metadata| metadata.len()).sum();
        let meter = &Arc::new(Mutex::new(self.context.meter("Uploading cache", Some(total))));
        let uploads = futures::stream::iter(uploads.into_iter().map(Ok::<_, RemoteError>));
        uploads
            .try_for_each_concurrent(MAX_CONCURRENT, |upload| async move {
                let url = crate::cache::store::parse_url(upload.url)?;
                let transfer = || self.remote.put(&upload.file, &url, headers, Arc::clone(meter));
                self.remote.with_retries(self.context, self.stop, transfer).await.map(drop)
            })
            .await
    }
}

fn has_range(response: &Response, first: u64, last: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {first}-{last}/")))
}

fn wrong_size(object: &Object) -> RemoteError {
    RemoteError::Damaged(format!("`{}` does not have {} bytes", object.name, object.size))
}

fn write_failed(error: muster_chunks::ChunkError) -> RemoteError {
    file_failed("write", std::io::Error::other(error))
}

fn file_failed(operation: &str, error: std::io::Error) -> RemoteError {
    RemoteError::File(format!("{operation} an object of the cache"), error)
}
