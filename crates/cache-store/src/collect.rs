//! Deletes from chunk stores the objects that no cache needs ([`muster_chunks::Sweep`]).
//!
//! ```text
//! [Path/][runner/<token>/]chunks/<project>/<level>/objects/<name>
//!                                                 /keys/<key>/reference.json
//!                                                 /last.json
//!                                                 /marks.json
//! ```

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use muster_chunks::{Collection, MAX_MARKS_BYTES, MAX_REFERENCE_BYTES, Marks, Object, Reference, StoredObject, Sweep};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};

use crate::{CacheStore, CacheStoreError, object_path};

/// Name of a reference in the directory of its key.
const REFERENCE: &str = "/reference.json";

/// Options of a collection.
#[derive(Debug, Clone, Copy)]
pub struct CollectOptions {
    /// Current time.
    pub now: SystemTime,
    /// Time after which an unused object is marked, and after which a marked object is deleted. Must be longer than the
    /// longest job.
    pub grace: Duration,
    /// A cache is deleted if this time has passed since it was last saved. `None` means that no cache is deleted.
    pub max_age: Option<Duration>,
    /// Minimum time between two collections of a store. `None` means no minimum.
    pub min_interval: Option<Duration>,
    /// Whether to compute only the figures, and to change nothing.
    pub dry_run: bool,
}

impl CacheStore {
    /// Deletes the unused objects of all chunk stores whose names begin with `prefix` and `/chunks/`. Returns the name
    /// and the figures of each collected store.
    ///
    /// # Errors
    /// [`CacheStoreError`]. Only the chunk stores before the failed store were collected.
    pub async fn collect(
        &self,
        prefix: &str,
        options: CollectOptions,
    ) -> Result<Vec<(String, Collection)>, CacheStoreError> {
        let bucket = self.bucket();
        let chunks = format!("{}chunks", if prefix.is_empty() { String::new() } else { format!("{prefix}/") });
        let mut chunk_stores = BTreeSet::new();
        for object in list(bucket, &chunks).await? {
            let name = object.location.to_string();
            let mut parts = name.strip_prefix(&format!("{chunks}/")).unwrap_or_default().split('/');
            if let (Some(project), Some(level), Some(_)) = (parts.next(), parts.next(), parts.next()) {
                chunk_stores.insert(format!("{chunks}/{project}/{level}"));
            }
        }
        let mut collections = Vec::new();
        for chunk_store in chunk_stores {
            if self.was_collected_recently(bucket, &chunk_store, options).await? {
                continue;
            }
            let collection = self.collect_chunk_store(bucket, &chunk_store, options).await?;
            collections.push((chunk_store, collection));
        }
        Ok(collections)
    }

    /// Returns whether less than `min_interval` has passed since the last collection of the chunk store. Each
    /// collection, also one by another manager, writes the list of marks, so the list has the time of the collection.
    async fn was_collected_recently(
        &self,
        bucket: &dyn ObjectStore,
        chunk_store: &str,
        options: CollectOptions,
    ) -> Result<bool, CacheStoreError> {
        let Some(interval) = options.min_interval else { return Ok(false) };
        match bucket.head(&object_path(&format!("{chunk_store}/marks.json"))?).await {
            Ok(marks) => {
                let collected: SystemTime = marks.last_modified.into();
                Ok(options.now.duration_since(collected).unwrap_or_default() < interval)
            }
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Collects the chunk store whose name is `chunk_store`.
    async fn collect_chunk_store(
        &self,
        bucket: &dyn ObjectStore,
        chunk_store: &str,
        options: CollectOptions,
    ) -> Result<Collection, CacheStoreError> {
        // A sweep must read in this order: marks, objects, references.
        let marks_name = format!("{chunk_store}/marks.json");
        let marks = Marks::parse(&self.read_object(&marks_name, MAX_MARKS_BYTES).await?.unwrap_or_default());
        let directory = format!("{chunk_store}/objects");
        let mut listed = Vec::new();
        for object in list(bucket, &directory).await? {
            let name = object.location.filename().unwrap_or_default().to_owned();
            listed.push(StoredObject {
                object: Object { name, size: object.size },
                stored_at: object.last_modified.into(),
            });
        }
        let (mut used, mut expired) = (HashSet::new(), 0);
        let mut references: Vec<(String, Option<SystemTime>)> = vec![(format!("{chunk_store}/last.json"), None)];
        for key in list(bucket, &format!("{chunk_store}/keys")).await? {
            let name = key.location.to_string();
            if name.ends_with(REFERENCE) {
                references.push((name, Some(key.last_modified.into())));
            }
        }
        for (name, saved) in references {
            if let (Some(saved), Some(max_age)) = (saved, options.max_age)
                && options.now.duration_since(saved).unwrap_or_default() > max_age
                && (options.dry_run || delete_unless_saved(bucket, &name, saved).await?)
            {
                expired += 1;
                continue;
            }
            // A cache with a damaged reference cannot be restored, so it needs no objects.
            if let Some(bytes) = self.read_object(&name, MAX_REFERENCE_BYTES).await?
                && let Ok(reference) = Reference::parse(&bytes)
            {
                used.extend(reference.objects().map(|object| object.name.clone()));
            }
        }
        let sweep = Sweep::plan(&marks, &listed, &used, options.now, options.grace);
        let collection = Collection { expired, ..Collection::of(&sweep, &listed, &used) };
        if options.dry_run {
            return Ok(collection);
        }
        let marks_path = object_path(&marks_name)?;
        let put = async |marks: &Marks| bucket.put(&marks_path, PutPayload::from(marks.to_bytes())).await;
        put(&sweep.before).await?;
        for object in &sweep.delete {
            delete(bucket, &format!("{directory}/{}", object.name)).await?;
        }
        put(&sweep.after).await?;
        Ok(collection)
    }
}

async fn list(bucket: &dyn ObjectStore, prefix: &str) -> Result<Vec<ObjectMeta>, CacheStoreError> {
    Ok(bucket.list(Some(&object_path(prefix)?)).try_collect().await?)
}

/// Deletes a reference, unless a job has saved the cache since it was listed with the time `saved`. Returns whether the
/// reference was deleted.
pub(crate) async fn delete_unless_saved(
    bucket: &dyn ObjectStore,
    name: &str,
    saved: SystemTime,
) -> Result<bool, CacheStoreError> {
    match bucket.head(&object_path(name)?).await {
        Ok(current) if SystemTime::from(current.last_modified) > saved => return Ok(false),
        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    delete(bucket, name).await?;
    Ok(true)
}

/// Deletes an object. An object that another manager has deleted already is not an error.
async fn delete(bucket: &dyn ObjectStore, name: &str) -> Result<(), CacheStoreError> {
    match bucket.delete(&object_path(name)?).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
