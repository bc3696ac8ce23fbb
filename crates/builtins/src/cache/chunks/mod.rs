//! Caches that are stored as chunks (`docs/how-to/use-caches.md`): on this machine, or in an object store.
//!
//! [`muster_chunks`] describes references, indexes and packs.
//!
//! ```text
//! restore: reference --> index --> chunks that no existing file has --> files
//! save:    files --> chunks that no index has --> packs --> index --> reference
//! ```
//!
//! If there is an object store, the manager signs the URLs of the objects, and the cache directory on this machine
//! contains copies of objects.

mod objects;
mod restore;
mod save;

use std::path::Path;

use muster_agent_api::builtin::{CacheEntry, ChunkCache};
use muster_chunks::{ChunkError, Reference, Store};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use super::remote::RemoteError;
use crate::context::Context;

pub(super) use restore::restore;
pub(super) use save::save;

fn store(cache: &CacheEntry, chunks: &ChunkCache) -> Result<Store, Failure> {
    let invalid = || Failure::Step(format!("`{}` is not a valid protection level", chunks.level));
    Store::new(Path::new(&cache.cache_dir), &chunks.level).ok_or_else(invalid)
}

fn parse_reference(text: &str, level: &str) -> Result<Reference, ChunkError> {
    let reference = Reference::parse(text.as_bytes())?;
    if reference.level == level {
        Ok(reference)
    } else {
        Err(ChunkError::Damaged("its reference belongs to another protection level".to_owned()))
    }
}

fn chunk_failure(error: &ChunkError) -> Failure {
    let text = muster_job::error_chain(error);
    match error {
        ChunkError::Damaged(_) => Failure::Step(text),
        _ => Failure::System(text),
    }
}

fn remote_failure(error: RemoteError) -> Failure {
    match error {
        RemoteError::Missing => Failure::Step("an object of the cache does not exist in the store".to_owned()),
        error => error.into(),
    }
}

fn stop_check(stop: &StopToken) -> impl Fn() -> bool + Sync + use<> {
    let stop = stop.clone();
    move || stop.cause().is_some()
}

fn megabytes(bytes: u64) -> String {
    let tenths = bytes.saturating_add(50_000) / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

fn client(context: &Context) -> Result<super::remote::Remote, RemoteError> {
    super::store::remote(super::store::timeout(context))
}
