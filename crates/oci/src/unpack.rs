//! Unpacks a layer's archive within limits, and computes the digest of each file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use muster_archive::{Entry, EntryKind, Exceeded, Format, Limits, Meter, Root, create_root, read, write_new};
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// Reason why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive cannot be read, or a file cannot be written.
    #[error("failed to read the archive or to write a file")]
    Io(#[from] io::Error),
    /// The archive exceeds a limit.
    #[error("{0}")]
    Limit(Exceeded),
    /// The path of an entry is invalid, or the caller rejected the entry.
    #[error("entry {name:?} is outside of the directories that may be unpacked")]
    Outside {
        /// Path of the entry.
        name: String,
    },
    /// An entry is not a regular file or directory.
    #[error("entry {name:?} is a {kind}; only regular files and directories are allowed")]
    Kind {
        /// Path of the entry.
        name: String,
        /// Kind of the entry.
        kind: &'static str,
    },
    /// Two entries would be written to the same path.
    #[error("file {name:?} occurs twice")]
    Duplicate {
        /// Path of the file.
        name: String,
    },
    /// The compression is not supported.
    #[error("unsupported compression {0}; use gzip")]
    Compression(&'static str),
}

impl From<muster_archive::UnpackError> for UnpackError {
    fn from(error: muster_archive::UnpackError) -> Self {
        use muster_archive::UnpackError as Archive;
        match error {
            Archive::Limit(exceeded) => Self::Limit(exceeded),
            Archive::Outside { name } => Self::Outside { name },
            Archive::Kind { name, kind } => Self::Kind { name, kind },
            Archive::Broken(error) | Archive::Io { source: error, .. } | Archive::NoThread(error) => Self::Io(error),
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
    /// Write the file at this path below the directory, with `/` between segments. If the entry is a directory, the
    /// archive is rejected.
    File(String),
    /// Skip the entry.
    Skipped,
    /// Reject the archive.
    Outside,
}

/// Unpacks a layer into an empty directory. Rejects archives with links or devices.
///
/// `target` decides about each entry by its path and whether it is a directory. Files have the mode 0644 with their
/// original executable bits.
///
/// # Errors
/// [`UnpackError`]. Already unpacked files are not removed.
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
        Some(Format::TarZstd) => return Err(UnpackError::Compression("zstd")),
        _ if head.starts_with(b"BZh") => return Err(UnpackError::Compression("bzip2")),
        Some(Format::TarGzip) => Format::TarGzip,
        _ => Format::Tar,
    };
    let dir = create_root(into, &Root::Chosen)?;
    let mut files = BTreeMap::new();
    read(archive, format, &Meter::new(*limits, &|| false), &mut |entry, content| {
        let Some(name) = target_path(entry, target)? else { return Ok(()) };
        if files.contains_key(&name) {
            return Err(UnpackError::Duplicate { name });
        }
        let mode = entry.mode.unwrap_or(0o644);
        let mut content = Hashed { content, hash: Sha256::new() };
        let file = match name.rsplit_once('/') {
            Some((parent, base)) => {
                dir.create_dir_all(parent)?;
                write_new(&dir.open_dir(parent)?, base, 0o644 | (mode & 0o111), &mut content)
            }
            None => write_new(&dir, &name, 0o644 | (mode & 0o111), &mut content),
        };
        file?.sync_all()?;
        files.insert(name, Unpacked { digest: Digest::finish(content.hash), is_executable: mode & 0o100 != 0 });
        Ok(())
    })?;
    File::open(into)?.sync_all()?;
    Ok(files)
}

/// Returns the path to which an entry is written. `None` means that it is skipped.
fn target_path(entry: &Entry, target: &dyn Fn(&Path, bool) -> Target) -> Result<Option<String>, UnpackError> {
    let outside = || UnpackError::Outside { name: entry.path.to_string_lossy().into_owned() };
    let is_directory = match entry.kind {
        EntryKind::File => false,
        EntryKind::Directory => true,
        EntryKind::Link(_) => {
            return Err(UnpackError::Kind { name: entry.path.to_string_lossy().into_owned(), kind: "symbolic link" });
        }
    };
    match target(&entry.path, is_directory) {
        Target::File(name) if !is_directory && is_below(&name) => Ok(Some(name)),
        Target::File(_) | Target::Outside => Err(outside()),
        Target::Skipped => Ok(None),
    }
}

/// Returns whether a path is relative, without empty, `.` or `..` segments and without NUL.
fn is_below(path: &str) -> bool {
    path.split('/').all(|segment| !matches!(segment, "" | "." | "..")) && !path.contains('\0')
}

/// Reader that computes the digest of the content.
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
    fn unpack_writes_selected_paths_and_returns_digests() {
        let mut archive = Builder::new(Vec::new());
        for (name, mode) in [("bin/step", 0o4755), ("bin/lib/data", 0o600), ("bin/notes", 0o666)] {
            let mut header = Header::new_ustar();
            header.set_mode(mode);
            header.set_size(4);
            archive.append_data(&mut header, name, &b"text"[..]).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let (layer, into) = (directory.path().join("layer"), directory.path().join("into"));
        std::fs::write(&layer, archive.into_inner().unwrap()).unwrap();
        std::fs::create_dir(&into).unwrap();
        let limits = Limits { bytes: 100, entries: 3, ratio: 100, ratio_floor: 1 << 20, header_bytes: 1 << 20 };

        let target = |path: &Path, _: bool| match path.strip_prefix("bin") {
            Ok(name) if name.as_os_str() == "notes" => Target::Skipped,
            Ok(name) => Target::File(name.to_string_lossy().into_owned()),
            Err(_) => Target::Outside,
        };
        let files = unpack(&layer, &into, &limits, &target).unwrap();
        let expected = |is_executable| Unpacked { digest: Digest::of(b"text"), is_executable };
        assert_eq!(
            files,
            BTreeMap::from([("step".to_owned(), expected(true)), ("lib/data".to_owned(), expected(false))])
        );
        assert!(into.join("step").is_file() && into.join("lib/data").is_file() && !into.join("notes").exists());
        let result = unpack(&layer, &into, &limits, &|_, _| Target::Outside);
        assert!(matches!(result, Err(UnpackError::Outside { name }) if name == "bin/step"));
        for path in ["../x", "/x", "a/../../x", "", "a//b"] {
            let result = unpack(&layer, &into, &limits, &|_, _| Target::File(path.to_owned()));
            assert!(matches!(result, Err(UnpackError::Outside { .. })), "{path}");
        }
    }
}
