//! A layer's archive: regular files in a flat folder, within bounds, with the digest of each.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use muster_archive::{Entry, EntryKind, Exceeded, Format, Limits, Meter, Root, create_root, read, write_new};
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It cannot be read, or written.
    #[error("it cannot be unpacked")]
    Io(#[from] io::Error),
    /// It would fill the disk, or the memory.
    #[error("{0}")]
    TooMuch(Exceeded),
    /// An entry that would leave its folder.
    #[error("its entry {name:?} is outside of the folder that is unpacked")]
    Outside {
        /// The entry.
        name: String,
    },
    /// An entry that is no file.
    #[error("its entry {name:?} is a {kind}, and only regular files belong there")]
    Kind {
        /// The entry.
        name: String,
        /// What it is.
        kind: &'static str,
    },
    /// Two entries of the same name.
    #[error("its file {name:?} comes twice")]
    Twice {
        /// The file.
        name: String,
    },
    /// It is packed in another way.
    #[error("it is packed with {0}; gzip is expected")]
    Packed(&'static str),
}

impl From<muster_archive::UnpackError> for UnpackError {
    fn from(error: muster_archive::UnpackError) -> Self {
        use muster_archive::UnpackError as Archive;
        match error {
            Archive::Limit(exceeded) => Self::TooMuch(exceeded),
            Archive::Outside { name } => Self::Outside { name },
            Archive::Kind { name, kind } => Self::Kind { name, kind },
            Archive::Broken(error) | Archive::Io { source: error, .. } => Self::Io(error),
            Archive::Stopped => Self::Io(io::Error::other("stopped")),
        }
    }
}

/// A file that was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// Digest of its content.
    pub digest: Digest,
    /// Whether its owner may execute it.
    pub is_executable: bool,
}

/// What becomes of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The file is written under this name, which is one segment.
    File(String),
    /// The entry is left out.
    Skipped,
    /// The archive is refused: the entry does not belong there.
    Outside,
}

/// Unpacks a layer into an empty folder. `target` decides for each file and directory (`true`) by its path.
///
/// Files get the rights of plain files, executable if they are so in the archive: no setuid, no writing by others. Links and devices
/// are refused.
///
/// # Errors
/// [`UnpackError`]. Files that were unpacked before are left in the folder.
pub fn unpack(
    layer: &Path,
    into: &Path,
    limits: &Limits,
    target: &dyn Fn(&Path, bool) -> Target,
) -> Result<BTreeMap<String, Unpacked>, UnpackError> {
    let mut archive = File::open(layer)?;
    let mut head = [0; 4];
    let length = archive.read(&mut head)?;
    archive.rewind()?;
    let head = head.get(..length).unwrap_or_default();
    let format = match Format::from_magic(head) {
        Some(Format::TarZstd) => return Err(UnpackError::Packed("zstd")),
        _ if head.starts_with(b"BZh") => return Err(UnpackError::Packed("bzip2")),
        Some(Format::TarGzip) => Format::TarGzip,
        _ => Format::Tar,
    };
    let dir = create_root(into, &Root::Chosen)?;
    let mut files = BTreeMap::new();
    read(archive, format, &Meter::new(*limits, &|| false), &mut |entry, content| {
        let Some(name) = name_of(entry, target)? else { return Ok(()) };
        if files.contains_key(&name) {
            return Err(UnpackError::Twice { name });
        }
        let mode = entry.mode.unwrap_or(0o644);
        let mut content = Hashed { content, hash: Sha256::new() };
        write_new(&dir, &name, 0o644 | (mode & 0o111), &mut content)?.sync_all()?;
        files.insert(name, Unpacked { digest: Digest::finish(content.hash), is_executable: mode & 0o100 != 0 });
        Ok(())
    })?;
    File::open(into)?.sync_all()?;
    Ok(files)
}

/// The name under which an entry is written; `None` if it is left out.
fn name_of(entry: &Entry, target: &dyn Fn(&Path, bool) -> Target) -> Result<Option<String>, UnpackError> {
    let outside = || UnpackError::Outside { name: entry.path.to_string_lossy().into_owned() };
    let is_directory = match entry.kind {
        EntryKind::File => false,
        EntryKind::Directory => true,
        EntryKind::Link(_) => {
            return Err(UnpackError::Kind { name: entry.path.to_string_lossy().into_owned(), kind: "symbolic link" });
        }
    };
    match target(&entry.path, is_directory) {
        Target::File(name) if !is_directory => Ok(Some(name)),
        Target::File(_) | Target::Outside => Err(outside()),
        Target::Skipped => Ok(None),
    }
}

/// Content whose digest is computed while it is read.
struct Hashed<'a> {
    content: &'a mut dyn Read,
    hash: Sha256,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.content.read(buffer)?;
        self.hash.update(buffer.get(..length).unwrap_or_default());
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use tar::{Builder, Header};

    use super::*;

    #[test]
    fn the_caller_decides_where_files_go_and_gets_their_digests() {
        let mut archive = Builder::new(Vec::new());
        for (name, mode) in [("bin/step", 0o4755), ("bin/notes", 0o666)] {
            let mut header = Header::new_ustar();
            header.set_mode(mode);
            header.set_size(4);
            archive.append_data(&mut header, name, &b"text"[..]).unwrap();
        }
        let home = tempfile::tempdir().unwrap();
        let (layer, into) = (home.path().join("layer"), home.path().join("into"));
        std::fs::write(&layer, archive.into_inner().unwrap()).unwrap();
        std::fs::create_dir(&into).unwrap();
        let limits = Limits { bytes: 100, entries: 2, ratio: 100, ratio_floor: 1 << 20, header_bytes: 1 << 20 };

        let target = |path: &Path, _: bool| match path.strip_prefix("bin") {
            Ok(name) if name.as_os_str() == "notes" => Target::Skipped,
            Ok(name) => Target::File(name.to_string_lossy().into_owned()),
            Err(_) => Target::Outside,
        };
        let files = unpack(&layer, &into, &limits, &target).unwrap();
        let expected = Unpacked { digest: Digest::of(b"text"), is_executable: true };
        assert_eq!(files, BTreeMap::from([("step".to_owned(), expected)]));
        assert!(into.join("step").is_file() && !into.join("notes").exists());
        let refused = unpack(&layer, &into, &limits, &|_, _| Target::Outside);
        assert!(matches!(refused, Err(UnpackError::Outside { name }) if name == "bin/step"));
    }
}
