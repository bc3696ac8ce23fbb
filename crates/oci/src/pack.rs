//! Packs a directory into an archive for a layer. The same files always produce the same archive.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};
use walkdir::WalkDir;

/// Maximum size of an archive in bytes.
const MAX_BYTES: usize = 1024 * 1024 * 1024;
/// Compression level of zstd.
const LEVEL: i32 = 10;

/// Reason why a directory cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
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
    /// The archive is too large.
    #[error("{} has more than {} MiB; publish a smaller directory", .0.display(), MAX_BYTES / 1024 / 1024)]
    TooLarge(PathBuf),
}

/// Packs files into a tar archive that is compressed with zstd. Executable files stay executable.
///
/// Each element of `files` is a path in the archive and the source of its content: a file, or a directory, which is packed with everything
/// in it except `.git`.
///
/// # Errors
/// [`PackError`].
pub fn pack(files: &[(PathBuf, PathBuf)]) -> Result<Vec<u8>, PackError> {
    let all = |source: io::Error| PackError::Io {
        path: files.first().map(|(_, from)| from.clone()).unwrap_or_default(),
        source,
    };
    let mut archive = Builder::new(zstd::Encoder::new(Vec::new(), LEVEL).map_err(all)?);
    for (name, from) in files {
        let walk = WalkDir::new(from).sort_by_file_name().into_iter().filter_entry(|entry| entry.file_name() != ".git");
        for entry in walk {
            let entry = entry.map_err(|error| PackError::Io { path: from.clone(), source: error.into() })?;
            let inside = entry.path().strip_prefix(from).unwrap_or(Path::new(""));
            let name = if inside.as_os_str().is_empty() { name.clone() } else { name.join(inside) };
            add(&mut archive, &name, entry.path())?;
            if archive.get_ref().get_ref().len() > MAX_BYTES {
                return Err(PackError::TooLarge(from.clone()));
            }
        }
    }
    archive.into_inner().and_then(zstd::Encoder::finish).map_err(all)
}

fn add(archive: &mut Builder<zstd::Encoder<'_, Vec<u8>>>, name: &Path, path: &Path) -> Result<(), PackError> {
    let failed = |source| PackError::Io { path: path.to_owned(), source };
    let metadata = std::fs::symlink_metadata(path).map_err(failed)?;
    if name.as_os_str().is_empty() || name == Path::new(".") {
        return if metadata.is_dir() { Ok(()) } else { Err(PackError::Kind(path.to_owned())) };
    }
    let mut header = Header::new_gnu();
    let is_executable = metadata.permissions().mode() & 0o111 != 0;
    header.set_mode(if metadata.is_dir() || is_executable { 0o755 } else { 0o644 });
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    let added = if metadata.is_dir() {
        header.set_entry_type(EntryType::Directory);
        header.set_size(0);
        archive.append_data(&mut header, name, io::empty())
    } else if metadata.is_file() {
        header.set_size(metadata.len());
        archive.append_data(&mut header, name, File::open(path).map_err(failed)?)
    } else {
        return Err(PackError::Kind(path.to_owned()));
    };
    added.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_files_make_the_same_archive_and_links_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("bin")).unwrap();
        std::fs::create_dir_all(dir.path().join(".git")).unwrap();
        std::fs::write(dir.path().join(".git/config"), "x").unwrap();
        std::fs::write(dir.path().join("bin/run"), "x").unwrap();
        std::fs::set_permissions(dir.path().join("bin/run"), std::fs::Permissions::from_mode(0o700)).unwrap();
        let files = [(PathBuf::from("."), dir.path().to_owned())];
        let first = pack(&files).unwrap();
        assert_eq!(pack(&files).unwrap(), first);
        let mut archive = tar::Archive::new(zstd::Decoder::new(&first[..]).unwrap());
        let entries = archive.entries().unwrap().map(Result::unwrap);
        let found: Vec<_> =
            entries.map(|entry| (entry.path().unwrap().into_owned(), entry.header().mode().unwrap())).collect();
        assert_eq!(found, [(PathBuf::from("bin"), 0o755), (PathBuf::from("bin/run"), 0o755)]);
        std::os::unix::fs::symlink("bin", dir.path().join("link")).unwrap();
        assert!(matches!(pack(&files), Err(PackError::Kind(_))));
    }
}
