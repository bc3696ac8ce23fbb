//! Packs files into an archive for a layer. The same files always produce the same archive.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};
use walkdir::WalkDir;

use crate::blob::Blob;
use crate::digest::Digest;

/// Maximum total size of the packed files in bytes.
const MAX_CONTENT_BYTES: u64 = 8 << 30;
const LEVEL: i32 = 10;

/// Reason why files cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The archive cannot be written.
    #[error("failed to write an archive in {}; check its free space", path.display())]
    Archive {
        /// Directory for the archive.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is neither a regular file nor a directory.
    #[error("{} is neither a regular file nor a directory; remove it, or replace a link with its target", .0.display())]
    Kind(PathBuf),
    /// The files or their archive are too large.
    #[error("{} has more than {} MiB; publish a smaller directory", path.display(), limit / 1024 / 1024)]
    TooLarge {
        /// Path of the file or directory.
        path: PathBuf,
        /// Maximum number of bytes.
        limit: u64,
    },
    /// The caller stopped the work.
    #[error("packing was stopped")]
    Stopped,
}

/// Location and limits of an archive.
#[derive(Clone, Copy)]
pub struct PackOptions<'a> {
    /// Directory for the archive, which is an unnamed temporary file.
    pub temp_dir: &'a Path,
    /// Maximum size of the archive in bytes.
    pub limit: u64,
    /// Returns whether to stop. Called before each file or directory, and before each chunk of a file.
    pub is_stopped: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for PackOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackOptions")
            .field("temp_dir", &self.temp_dir)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl PackOptions<'_> {
    fn error(&self, path: &Path, source: io::Error) -> PackError {
        let path = path.to_owned();
        match source.downcast::<Abort>() {
            Ok(Abort::TooLarge(limit)) => PackError::TooLarge { path, limit },
            Ok(Abort::Stopped) => PackError::Stopped,
            Ok(Abort::Write(source)) => PackError::Archive { path: self.temp_dir.to_owned(), source },
            Err(source) => PackError::Io { path, source },
        }
    }
}

/// Packs files into a tar archive with zstd compression. Executable files stay executable. Blocks.
///
/// Each entry of `files` is a path in the archive, and the file or directory that gets this path. A directory is packed
/// with all its content except `.git`.
pub fn pack(files: &[(PathBuf, PathBuf)], options: PackOptions<'_>) -> Result<Blob, PackError> {
    let first = files.first().map(|(_, from)| from.clone()).unwrap_or_default();
    let failed = |error| options.error(&first, error);
    let written = Rc::new(Cell::new(0));
    let file = tempfile::tempfile_in(options.temp_dir)
        .map_err(|source| PackError::Archive { path: options.temp_dir.to_owned(), source })?;
    let writer = HashedFile { file, hash: Sha256::new(), written: Rc::clone(&written), limit: options.limit };
    let mut archive = Builder::new(zstd::Encoder::new(writer, LEVEL).map_err(failed)?);
    let mut left = MAX_CONTENT_BYTES;
    for (name, from) in files {
        let walk = WalkDir::new(from).sort_by_file_name().into_iter().filter_entry(|entry| entry.file_name() != ".git");
        for entry in walk {
            let entry = entry.map_err(|error| PackError::Io { path: from.clone(), source: error.into() })?;
            let inside = entry.path().strip_prefix(from).unwrap_or(Path::new(""));
            let name = if inside.as_os_str().is_empty() { name.clone() } else { name.join(inside) };
            add(&mut archive, &name, entry.path(), &mut left, &options).map_err(|error| match error {
                // The limit applies to all files together, so the error does not name the file that exceeded it.
                PackError::TooLarge { limit, .. } => PackError::TooLarge { path: from.clone(), limit },
                error => error,
            })?;
        }
    }
    let HashedFile { file, hash, .. } = archive.into_inner().and_then(zstd::Encoder::finish).map_err(failed)?;
    Ok(Blob::in_file(Arc::new(file), 0, written.get(), Digest::finish(hash)))
}

fn add(
    archive: &mut Builder<zstd::Encoder<'_, HashedFile>>,
    name: &Path,
    path: &Path,
    left: &mut u64,
    options: &PackOptions<'_>,
) -> Result<(), PackError> {
    let failed = |error| options.error(path, error);
    if (options.is_stopped)() {
        return Err(PackError::Stopped);
    }
    let metadata = std::fs::symlink_metadata(path).map_err(failed)?;
    if name.as_os_str().is_empty() || name == Path::new(".") {
        return if metadata.is_dir() { Ok(()) } else { Err(PackError::Kind(path.to_owned())) };
    }
    let mut header = Header::new_gnu();
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    if metadata.is_dir() {
        header.set_mode(0o755);
        header.set_entry_type(EntryType::Directory);
        header.set_size(0);
        return archive.append_data(&mut header, name, io::empty()).map_err(failed);
    }
    if !metadata.is_file() {
        return Err(PackError::Kind(path.to_owned()));
    }
    // A job may have replaced the file after the check of its kind, so `open` checks again.
    let file = muster_files::open(path).map_err(|error| failed(error.into()))?;
    let metadata = file.metadata().map_err(failed)?;
    let size = metadata.len();
    *left = left
        .checked_sub(size)
        .ok_or_else(|| PackError::TooLarge { path: path.to_owned(), limit: MAX_CONTENT_BYTES })?;
    header.set_mode(if metadata.permissions().mode() & 0o111 != 0 { 0o755 } else { 0o644 });
    header.set_size(size);
    // The archive must contain exactly the number of bytes in the header, even if the file grows or shrinks.
    let mut content = StoppableReader { file: file.take(size), is_stopped: options.is_stopped };
    archive.append_data(&mut header, name, &mut content).map_err(failed)?;
    if content.file.limit() > 0 {
        return Err(failed(io::Error::new(io::ErrorKind::UnexpectedEof, "the file was truncated while it was read")));
    }
    Ok(())
}

/// Reason to stop packing, wrapped in an [`io::Error`].
#[derive(Debug, thiserror::Error)]
enum Abort {
    #[error("the archive is too large")]
    TooLarge(u64),
    #[error("stopped")]
    Stopped,
    #[error("failed to write the archive")]
    Write(#[source] io::Error),
}

/// Reader that fails after the caller stopped the work.
struct StoppableReader<'s> {
    file: io::Take<File>,
    is_stopped: &'s dyn Fn() -> bool,
}

impl Read for StoppableReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.is_stopped)() { Err(io::Error::other(Abort::Stopped)) } else { self.file.read(buffer) }
    }
}

/// Writer to a file of limited size, which also computes the digest.
struct HashedFile {
    file: File,
    hash: Sha256,
    written: Rc<Cell<u64>>,
    limit: u64,
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written.get() + bytes.len() as u64 > self.limit {
            return Err(io::Error::other(Abort::TooLarge(self.limit)));
        }
        let length = self.file.write(bytes).map_err(|error| io::Error::other(Abort::Write(error)))?;
        self.hash.update(bytes.get(..length).unwrap_or_default());
        self.written.set(self.written.get() + length as u64);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GO_ON: &dyn Fn() -> bool = &|| false;

    fn packed(dir: &Path, limit: u64, is_stopped: &dyn Fn() -> bool) -> Result<Blob, PackError> {
        let options = PackOptions { temp_dir: &std::env::temp_dir(), limit, is_stopped };
        pack(&[(PathBuf::from("."), dir.to_owned())], options)
    }

    #[test]
    fn same_files_make_the_same_archive_and_links_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("bin")).unwrap();
        std::fs::create_dir_all(dir.path().join(".git")).unwrap();
        std::fs::write(dir.path().join(".git/config"), "x").unwrap();
        std::fs::write(dir.path().join("bin/run"), "x").unwrap();
        std::fs::set_permissions(dir.path().join("bin/run"), std::fs::Permissions::from_mode(0o700)).unwrap();
        let first = packed(dir.path(), 1 << 20, GO_ON).unwrap();
        assert_eq!(packed(dir.path(), 1 << 20, GO_ON).unwrap(), first);
        let mut bytes = Vec::new();
        first.reader().read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.len() as u64, Digest::of(&bytes)), (first.size(), first.digest()));
        let mut archive = tar::Archive::new(zstd::Decoder::new(&bytes[..]).unwrap());
        let entries = archive.entries().unwrap().map(Result::unwrap);
        let found: Vec<_> =
            entries.map(|entry| (entry.path().unwrap().into_owned(), entry.header().mode().unwrap())).collect();
        assert_eq!(found, [(PathBuf::from("bin"), 0o755), (PathBuf::from("bin/run"), 0o755)]);
        std::os::unix::fs::symlink("bin", dir.path().join("link")).unwrap();
        assert!(matches!(packed(dir.path(), 1 << 20, GO_ON), Err(PackError::Kind(_))));
    }

    #[test]
    fn archive_size_is_limited_and_packing_stops_inside_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let noise: Vec<u8> = (0..100_000_u64).flat_map(|n| Sha256::digest(n.to_le_bytes())).collect();
        std::fs::write(dir.path().join("noise"), noise).unwrap();
        let error = packed(dir.path(), 1 << 20, GO_ON).unwrap_err();
        assert!(matches!(error, PackError::TooLarge { limit: 0x10_0000, .. }), "{error:?}");
        // A sparse file needs little space in the archive, but a long time.
        let sparse = File::create(dir.path().join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        let calls = Cell::new(0);
        let is_stopped = || calls.replace(calls.get() + 1) > 20;
        assert!(matches!(packed(dir.path(), u64::MAX, &is_stopped), Err(PackError::Stopped)));
        assert!(calls.get() < 30, "packing must stop after check 22, but there were {}", calls.get());
        sparse.set_len(1 << 40).unwrap();
        let error = packed(dir.path(), u64::MAX, GO_ON).unwrap_err();
        assert!(matches!(error, PackError::TooLarge { limit: MAX_CONTENT_BYTES, .. }), "{error:?}");
    }
}
