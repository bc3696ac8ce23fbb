//! Directory of objects and references for one protection level.
//!
//! ```text
//! <directory of caches>/.chunks/<level>/objects/<name>
//!                                      /keys/<key>/reference.json
//!                                      /marks.json
//!                                      /distrusted/<name>      empty; the object is damaged in the remote store
//!                                      /lock                   locked during a collection
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use muster_archive::Limits;
use tempfile::NamedTempFile;
use walkdir::WalkDir;

use crate::ChunkError;
use crate::index::{Index, MAX_INDEX_BYTES};
use crate::reference::{MAX_REFERENCE_BYTES, Object, Reference, is_level_name};

const DIRECTORY: &str = ".chunks";
const REFERENCE: &str = "reference.json";
/// Prefix of incomplete files.
pub(crate) const TEMPORARY: &str = "tmp-";

/// Store of one protection level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    root: PathBuf,
    level: String,
}

impl Store {
    /// Returns the store of a protection level. `None` means that the level is not a valid name.
    #[must_use]
    pub fn new(cache_dir: &Path, level: &str) -> Option<Self> {
        is_level_name(level).then(|| Self { root: cache_dir.join(DIRECTORY).join(level), level: level.to_owned() })
    }

    /// Returns the protection level.
    #[must_use]
    pub fn level(&self) -> &str {
        &self.level
    }

    /// Returns the path of the store.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.root.join("keys")
    }

    /// Returns the path of an object.
    #[must_use]
    pub fn object(&self, name: &str) -> PathBuf {
        self.objects().join(name)
    }

    /// Returns the path of a key's reference. `None` means that the key leads out of the directory.
    #[must_use]
    pub fn reference_path(&self, key: &str) -> Option<PathBuf> {
        let is_inside = Path::new(key).components().all(|part| matches!(part, Component::Normal(_)));
        (is_inside && !key.is_empty()).then(|| self.keys().join(key).join(REFERENCE))
    }

    /// Returns whether the store has this object with this size.
    #[must_use]
    pub fn has(&self, object: &Object) -> bool {
        let found = self.object(&object.name).symlink_metadata();
        found.is_ok_and(|found| found.is_file() && found.len() == object.size)
    }

    /// Returns the reference of a key, if there is one.
    pub fn reference(&self, key: &str) -> Result<Option<Reference>, ChunkError> {
        let Some(path) = self.reference_path(key) else { return Ok(None) };
        let Some(bytes) = read(&path, MAX_REFERENCE_BYTES)? else { return Ok(None) };
        let reference = Reference::parse(&bytes)?;
        if reference.key != key || reference.level != self.level {
            return Err(ChunkError::damaged("its reference belongs to another cache"));
        }
        Ok(Some(reference))
    }

    /// Replaces the reference of a key atomically.
    ///
    /// # Errors
    /// [`ChunkError::Write`], or [`ChunkError::Damaged`] if the key leads out of the directory.
    pub fn set_reference(&self, reference: &Reference) -> Result<(), ChunkError> {
        let path = self.reference_path(&reference.key);
        let path = path.ok_or_else(|| ChunkError::damaged(format!("`{}` is not a valid key", reference.key)))?;
        replace(&path, &reference.to_bytes())
    }

    /// Reads the index of a reference.
    ///
    /// # Errors
    /// [`ChunkError`]. A missing index is [`ChunkError::Damaged`].
    pub fn index(&self, reference: &Reference, limits: &Limits) -> Result<Index, ChunkError> {
        let object = read(&self.object(&reference.index.name), MAX_INDEX_BYTES)?;
        let object = object.ok_or_else(|| ChunkError::damaged("its index does not exist"))?;
        Index::decode(&object, reference, limits)
    }

    /// Stores an object.
    ///
    /// # Errors
    /// [`ChunkError::Write`]
    pub fn write_object(&self, name: &str, bytes: &[u8]) -> Result<Object, ChunkError> {
        let mut file = self.temporary()?;
        file.write_all(bytes).map_err(|error| ChunkError::Write(self.object(name), error))?;
        self.persist(file, name)?;
        Ok(Object { name: name.to_owned(), size: bytes.len() as u64 })
    }

    /// Creates a file for an incomplete object.
    ///
    /// # Errors
    /// [`ChunkError::Write`]
    pub fn temporary(&self) -> Result<NamedTempFile, ChunkError> {
        let objects = self.objects();
        let created = fs::create_dir_all(&objects)
            .and_then(|()| tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&objects));
        created.map_err(|error| ChunkError::Write(objects, error))
    }

    /// Stores a complete object under its name.
    ///
    /// # Errors
    /// [`ChunkError::Write`]
    pub fn persist(&self, file: NamedTempFile, name: &str) -> Result<(), ChunkError> {
        let path = self.object(name);
        file.persist(&path).map(drop).map_err(|error| ChunkError::Write(path, error.error))
    }

    /// Removes an object, if it exists.
    ///
    /// # Errors
    /// [`ChunkError::Write`]
    pub fn remove(&self, name: &str) -> Result<(), ChunkError> {
        let path = self.object(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ChunkError::Write(path, error)),
            _ => Ok(()),
        }
    }

    /// Excludes an object, which is damaged in the remote store, from later saves on this machine.
    ///
    /// # Errors
    /// [`ChunkError::Write`]
    pub fn distrust(&self, name: &str) -> Result<(), ChunkError> {
        replace(&self.root.join("distrusted").join(name), &[])
    }

    /// Returns whether saves may use an object ([`Store::distrust`]).
    #[must_use]
    pub fn trusts(&self, name: &str) -> bool {
        !self.root.join("distrusted").join(name).exists()
    }

    /// Returns the latest references, newest first.
    ///
    /// # Errors
    /// [`ChunkError::Read`]
    pub fn latest_references(&self, max: usize) -> Result<Vec<Reference>, ChunkError> {
        let mut references = self.references()?;
        references.sort_by_key(|(_, _, saved)| std::cmp::Reverse(*saved));
        Ok(references.into_iter().take(max).map(|(reference, ..)| reference).collect())
    }

    /// Returns the valid references with their paths and the times of their last saves.
    pub(crate) fn references(&self) -> Result<Vec<(Reference, PathBuf, SystemTime)>, ChunkError> {
        let mut references = Vec::new();
        for found in WalkDir::new(self.keys()).follow_links(false).follow_root_links(false) {
            let found = match found {
                Ok(found) => found,
                Err(error) if error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound) => continue,
                Err(error) => return Err(ChunkError::Read(self.keys(), error.into())),
            };
            if !found.file_type().is_file() || found.file_name() != REFERENCE {
                continue;
            }
            let bytes = match read(found.path(), MAX_REFERENCE_BYTES) {
                Ok(Some(bytes)) => bytes,
                Ok(None) | Err(ChunkError::Damaged(_)) => continue,
                Err(error) => return Err(error),
            };
            let Ok(modified) = found.metadata().map_err(io::Error::from).and_then(|metadata| metadata.modified())
            else {
                continue;
            };
            // A damaged reference cannot be restored, so it needs no objects.
            if let Ok(reference) = Reference::parse(&bytes) {
                references.push((reference, found.into_path(), modified));
            }
        }
        Ok(references)
    }
}

/// Returns all stores below a directory of caches.
#[must_use]
pub fn stores_below(cache_dir: &Path) -> Vec<Store> {
    let mut stores = Vec::new();
    let mut walk = WalkDir::new(cache_dir).follow_links(false).follow_root_links(true).into_iter();
    while let Some(found) = walk.next() {
        let Ok(found) = found else { continue };
        if !found.file_type().is_dir() || found.file_name() != DIRECTORY {
            continue;
        }
        walk.skip_current_dir();
        // A job may have created a link to another directory, whose files must not be deleted.
        let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
        let levels = fs::read_dir(found.path()).into_iter().flatten().flatten();
        let levels = levels.filter(|level| is_directory(&level.path()) && is_directory(&level.path().join("objects")));
        let names = levels.filter_map(|level| level.file_name().into_string().ok());
        let parent = found.path().parent().unwrap_or(Path::new("."));
        stores.extend(names.filter_map(|level| Store::new(parent, &level)));
    }
    stores
}

/// Reads a file, if it exists. A file of more than `max` bytes counts as damaged.
pub(crate) fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>, ChunkError> {
    let file = match muster_files::open(path) {
        Ok(file) => file,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(ChunkError::Read(path.to_owned(), error.into())),
    };
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(|error| ChunkError::Read(path.to_owned(), error))?;
    if bytes.len() as u64 > max {
        return Err(ChunkError::damaged(format!("`{}` is larger than {max} bytes", path.display())));
    }
    Ok(Some(bytes))
}

/// Writes or replaces a file atomically.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ChunkError> {
    replace_with(path, bytes, |_| {})
}

/// Same as [`replace`], and calls `prepare` with the new file before it gets its name.
pub(crate) fn replace_with(path: &Path, bytes: &[u8], prepare: impl Fn(&File)) -> Result<(), ChunkError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let write = || {
        fs::create_dir_all(directory)?;
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(directory)?;
        file.write_all(bytes)?;
        prepare(file.as_file());
        file.persist(path).map_err(|error| error.error)
    };
    write().map(drop).map_err(|error| ChunkError::Write(path.to_owned(), error))
}
