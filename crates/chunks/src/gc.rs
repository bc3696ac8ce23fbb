//! Deletes unused objects, which no reference contains.
//!
//! ```text
//! unused, older than the grace period --marked--> still unused after another grace period --> deleted
//! ```
//!
//! A save reads the marks first, and never uses a marked object. So a marked object can only be in use by a save that
//! began before the mark. By the end of the grace period, that save has set its reference or failed, because the period
//! must be longer than the longest job. Marks are durable before a deletion, so the process may be killed at any time.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use walkdir::{DirEntry, WalkDir};

use crate::ChunkError;
use crate::reference::Object;
use crate::store::{Store, TEMPORARY, read, replace_with};

/// Maximum size of the list of marks in bytes. It is limited because each job with a cache reads the list. Objects that
/// do not fit are marked later.
pub const MAX_MARKS_BYTES: u64 = 8 << 20;
/// Maximum number of bytes of a mark besides the object's name: quotes, colon, comma and time.
const MARK_BYTES: u64 = 24;

/// Objects that will be deleted, with the Unix times in seconds of their marks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Marks(BTreeMap<String, u64>);

impl Marks {
    /// Reads a list. A damaged list counts as empty, which restarts all grace periods.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// Returns the stored form of the list.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns whether an object will be deleted, and must not be used.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the names of the objects.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// An object in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// The object.
    pub object: Object,
    /// Time at which the object was stored.
    pub stored_at: SystemTime,
}

/// Changes of one pass, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// List to store before the deletion.
    pub before: Marks,
    /// Objects to delete.
    pub delete: Vec<Object>,
    /// List to store after the deletion.
    pub after: Marks,
}

impl Sweep {
    /// Plans a pass. `used` contains the names of all referenced objects.
    ///
    /// The caller must read `marks` first, then the objects, and the references last.
    #[must_use]
    pub fn plan(
        marks: &Marks,
        listed: &[StoredObject],
        used: &HashSet<String>,
        now: SystemTime,
        grace: Duration,
    ) -> Self {
        let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let (now, grace) = (seconds(now), grace.as_secs());
        let is_old = |time: u64| time.saturating_add(grace) <= now;
        let (mut before, mut after, mut delete) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        // The present marks fit into the limit. New marks are added only if they fit, too.
        let size = |name: &str| name.len() as u64 + MARK_BYTES;
        let mut bytes: u64 = marks.0.keys().map(|name| size(name)).sum();
        for StoredObject { object, stored_at } in listed.iter().filter(|listed| !used.contains(&listed.object.name)) {
            let name = object.name.clone();
            match marks.0.get(&name) {
                Some(marked) if is_old(*marked) => {
                    before.insert(name, *marked);
                    delete.push(object.clone());
                }
                Some(marked) => {
                    after.insert(name, *marked);
                }
                None if is_old(seconds(*stored_at)) && bytes + size(&name) <= MAX_MARKS_BYTES => {
                    bytes += size(&name);
                    after.insert(name, now);
                }
                // A running save may have stored the object, or the list is full.
                None => {}
            }
        }
        before.extend(after.clone());
        Self { before: Marks(before), delete, after: Marks(after) }
    }
}

/// Result of a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collection {
    /// Number of referenced objects, and their size in bytes.
    pub used: (u64, u64),
    /// Number of deleted objects, and their size in bytes.
    pub deleted: (u64, u64),
    /// Number of marked objects after the pass.
    pub marked: u64,
    /// Number of references that were deleted because of their age.
    pub expired: u64,
}

impl Collection {
    /// Returns the figures of a pass, with 0 as `expired`.
    #[must_use]
    pub fn of(sweep: &Sweep, listed: &[StoredObject], used: &HashSet<String>) -> Self {
        let sum = |objects: &mut dyn Iterator<Item = &Object>| {
            objects.fold((0, 0), |(count, bytes), object| (count + 1, bytes + object.size))
        };
        let mut in_use = listed.iter().map(|listed| &listed.object).filter(|object| used.contains(&object.name));
        Self {
            used: sum(&mut in_use),
            deleted: sum(&mut sweep.delete.iter()),
            marked: sweep.after.0.len() as u64,
            expired: 0,
        }
    }
}

impl Store {
    /// Returns the objects that will be deleted. A save must read them before references.
    ///
    /// # Errors
    /// [`ChunkError::Read`]
    pub fn marks(&self) -> Result<Marks, ChunkError> {
        match read(&self.marks_path(), MAX_MARKS_BYTES) {
            Ok(bytes) => Ok(bytes.map(|bytes| Marks::parse(&bytes)).unwrap_or_default()),
            Err(ChunkError::Damaged(_)) => Ok(Marks::default()),
            Err(error) => Err(error),
        }
    }

    fn set_marks(&self, marks: &Marks) -> Result<(), ChunkError> {
        replace_with(&self.marks_path(), &marks.to_bytes(), |file| self.give_to_owner(file))
    }

    /// Gives a new file to the owner of the store. An operator may collect as root, but the jobs and the collections of
    /// the owner use the file, too.
    fn give_to_owner(&self, file: &File) {
        let (Ok(store), Ok(present)) = (fs::symlink_metadata(self.root()), file.metadata()) else { return };
        // The owner may have replaced the file by a hard link to a file of root.
        if present.nlink() <= 1 && (store.uid(), store.gid()) != (present.uid(), present.gid()) {
            // Other users than root cannot do this. The owner's saves then fail with an error that names the file.
            let _ = std::os::unix::fs::fchown(file, Some(store.uid()), Some(store.gid()));
        }
    }

    /// Returns the time of the last collection, if there was one.
    #[must_use]
    pub fn last_collection(&self) -> Option<SystemTime> {
        fs::symlink_metadata(self.marks_path()).ok()?.modified().ok()
    }

    fn marks_path(&self) -> std::path::PathBuf {
        self.root().join("marks.json")
    }

    /// Deletes references older than `max_age`. Marks unused objects, and deletes objects that were marked for longer
    /// than `grace`.
    ///
    /// # Errors
    /// [`ChunkError::Busy`] if another process collects in this store, or another [`ChunkError`].
    pub fn collect(
        &self,
        now: SystemTime,
        grace: Duration,
        max_age: Option<Duration>,
    ) -> Result<Collection, ChunkError> {
        let lock = self.root().join("lock");
        let file = muster_files::open_with(OpenOptions::new().write(true).create(true).truncate(false), &lock);
        let file = file.map_err(|error| ChunkError::Write(lock.clone(), error.into()))?;
        self.give_to_owner(&file);
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ChunkError::Busy(self.root().to_owned())),
            Err(TryLockError::Error(error)) => return Err(ChunkError::Write(self.root().to_owned(), error)),
        }
        let expired = max_age.map_or(Ok(0), |age| self.expire(now, age))?;
        let (sweep, collection) = self.plan(now, grace, None)?;
        self.carry_out(&sweep, || true)?;
        self.remove_temporary(now, grace);
        Ok(Collection { expired, ..collection })
    }

    /// Carries out a pass. Calls `proceed` before each change, and ends if it returns false.
    pub(crate) fn carry_out(&self, sweep: &Sweep, mut proceed: impl FnMut() -> bool) -> Result<(), ChunkError> {
        if !proceed() {
            return Ok(());
        }
        self.set_marks(&sweep.before)?;
        for object in &sweep.delete {
            if !proceed() {
                return Ok(());
            }
            self.remove(&object.name)?;
        }
        if proceed() { self.set_marks(&sweep.after) } else { Ok(()) }
    }

    /// Plans a pass, but changes nothing. References older than `max_age` count as deleted.
    ///
    /// # Errors
    /// [`ChunkError`] if the store cannot be read.
    pub fn plan(
        &self,
        now: SystemTime,
        grace: Duration,
        max_age: Option<Duration>,
    ) -> Result<(Sweep, Collection), ChunkError> {
        // Without the marks, deletions only wait for another grace period.
        let marks = self.marks().unwrap_or_default();
        let listed = self.list_objects()?;
        let mut references = self.references()?;
        let all = references.len();
        references.retain(|(_, _, saved)| !max_age.is_some_and(|max_age| is_expired(now, *saved, max_age)));
        let used = references.iter().flat_map(|(reference, ..)| reference.objects());
        let used: HashSet<String> = used.map(|object| object.name.clone()).collect();
        let sweep = Sweep::plan(&marks, &listed, &used, now, grace);
        let expired = (all - references.len()) as u64;
        let collection = Collection { expired, ..Collection::of(&sweep, &listed, &used) };
        Ok((sweep, collection))
    }

    fn expire(&self, now: SystemTime, max_age: Duration) -> Result<u64, ChunkError> {
        let mut expired = 0;
        for (_, path, saved) in self.references()? {
            if is_expired(now, saved, max_age) && remove_expired(&path, now, max_age)? {
                expired += 1;
            }
        }
        Ok(expired)
    }

    fn list_objects(&self) -> Result<Vec<StoredObject>, ChunkError> {
        let mut listed = Vec::new();
        for_each_file(&self.objects(), &mut |name, size, stored_at| {
            if crate::reference::is_object_name(name) && !name.starts_with(TEMPORARY) {
                listed.push(StoredObject { object: Object { name: name.to_owned(), size }, stored_at });
            }
        })?;
        Ok(listed)
    }

    /// Removes the temporary files of killed processes: incomplete objects, references, lists of marks, and files in
    /// `distrusted`.
    fn remove_temporary(&self, now: SystemTime, grace: Duration) {
        let found = WalkDir::new(self.root()).follow_links(false).follow_root_links(false).into_iter().flatten();
        let is_temporary = |entry: &DirEntry| {
            entry.file_type().is_file() && entry.file_name().to_str().is_some_and(|name| name.starts_with(TEMPORARY))
        };
        for entry in found.filter(is_temporary) {
            let modified = entry.metadata().ok().and_then(|metadata| metadata.modified().ok());
            if modified.is_some_and(|modified| now.duration_since(modified).unwrap_or_default() > grace) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn is_expired(now: SystemTime, saved: SystemTime, max_age: Duration) -> bool {
    now.duration_since(saved).unwrap_or_default() > max_age
}

/// Removes a reference, unless a job has saved the cache since the reference was listed. Returns whether it was removed.
pub(crate) fn remove_expired(path: &Path, now: SystemTime, max_age: Duration) -> Result<bool, ChunkError> {
    let remove = || {
        let saved = fs::symlink_metadata(path)?.modified()?;
        if !is_expired(now, saved, max_age) {
            return Ok(false);
        }
        fs::remove_file(path).map(|()| true)
    };
    match remove() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map_err(|error| ChunkError::Write(path.to_owned(), error)),
    }
}

/// Calls `visit` with name, size and time of each file in a directory, which may not exist.
fn for_each_file(directory: &Path, visit: &mut dyn FnMut(&str, u64, SystemTime)) -> Result<(), ChunkError> {
    let failed = |error| ChunkError::Read(directory.to_owned(), error);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let Ok(metadata) = entry.metadata() else { continue };
        if let (Ok(time), Some(name), true) = (metadata.modified(), entry.file_name().to_str(), metadata.is_file()) {
            visit(name, metadata.len(), time);
        }
    }
    Ok(())
}
