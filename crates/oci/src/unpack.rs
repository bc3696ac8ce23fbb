//! Unpacks a layer's archive within limits, and computes the digest of each file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use muster_archive::{Entry, EntryKind, Exceeded, Format, Limits, Meter, Root, create_root, read, write_new};
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// Reason why an archive was refused.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive cannot be read, or a file cannot be written.
    #[error("it cannot be unpacked")]
    Io(#[from] io::Error),
    /// The archive exceeds a limit.
    #[error("{0}")]
    TooMuch(Exceeded),
    /// An entry is outside of the directories that the caller accepts.
    #[error("its entry {name:?} is outside of the folder that is unpacked")]
    Outside {
        /// Path of the entry.
        name: String,
    },
    /// An entry is not a regular file or directory.
    #[error("its entry {name:?} is a {kind}, and only regular files belong there")]
    Kind {
        /// Path of the entry.
        name: String,
        /// Kind of the entry.
        kind: &'static str,
    },
    /// Two entries have the same target.
    #[error("its file {name:?} comes twice")]
    Twice {
        /// Path of the file.
        name: String,
    },
    /// The compression is not supported.
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

/// An unpacked file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// Digest of the content.
    pub digest: Digest,
    /// Whether the owner may execute the file.
    pub is_executable: bool,
}

/// Decision about an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Write the file under this name, which is a single segment.
    File(String),
    /// Skip the entry.
    Skipped,
    /// Refuse the archive.
    Outside,
}

/// Unpacks a layer into an empty directory.
/// `target` decides about each entry by its path; the flag is true for directories.
///
/// Files are readable by everyone and executable if they are executable in the archive, but never setuid or writable by others. Archives
/// with links or devices are refused.
///
/// # Errors
/// [`UnpackError`]. Files that were unpacked before the error are kept.
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

/// Returns the name under which an entry is written, or `None` if it is skipped.
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
