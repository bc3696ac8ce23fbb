//! The archive of a plugin: regular files under `plugin/`, nothing else, and not too much of it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};

use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256};
use tar::{Archive, Entry, EntryType};

use super::EXECUTABLE;
use crate::oci::Digest;

/// Bytes of a plugin when it is unpacked.
const UNPACKED_MAX_BYTES: u64 = 1024 * 1024 * 1024;
/// Entries of an archive.
const ENTRIES_MAX: usize = 1024;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It cannot be read, or written.
    #[error("it cannot be unpacked")]
    Io(#[from] io::Error),
    /// It would fill the disk.
    #[error("it unpacks to more than {limit} bytes, which no plugin needs")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// It has too many entries.
    #[error("it has more than {ENTRIES_MAX} entries, which no plugin needs")]
    TooMany,
    /// An entry that would leave its folder.
    #[error("its entry {name:?} points out of the folder plugin/")]
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
    /// There is no plugin in it.
    #[error("it has no executable file plugin/plugin")]
    NoExecutable,
    /// It is packed in another way.
    #[error("it is packed with {0}; gzip is what plugins are packed with")]
    Packed(&'static str),
}

/// Unpacks into an empty folder; the digest of each file.
pub(super) fn unpack(layer: &Path, into: &Path) -> Result<BTreeMap<String, Digest>, UnpackError> {
    unpack_up_to(layer, into, UNPACKED_MAX_BYTES)
}

fn unpack_up_to(layer: &Path, into: &Path, limit: u64) -> Result<BTreeMap<String, Digest>, UnpackError> {
    let mut head = [0; 4];
    let read = File::open(layer)?.read(&mut head)?;
    let file = BufReader::new(File::open(layer)?);
    let content: Box<dyn Read> = match head.get(..read).unwrap_or_default() {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd] => return Err(UnpackError::Packed("zstd")),
        [b'B', b'Z', b'h', ..] => return Err(UnpackError::Packed("bzip2")),
        _ => Box::new(file),
    };
    // The archive's own headers count too: nothing of it is unbounded.
    let mut archive = Archive::new(Bounded { content, left: limit });
    let mut files = BTreeMap::new();
    let mut is_executable = false;
    for (number, entry) in archive.entries().map_err(|error| judge(error, limit))?.raw(true).enumerate() {
        if number == ENTRIES_MAX {
            return Err(UnpackError::TooMany);
        }
        let mut entry = entry.map_err(|error| judge(error, limit))?;
        let Some(name) = target(&mut entry)? else { continue };
        let mode = entry.header().mode().unwrap_or(0o644);
        is_executable |= name == EXECUTABLE && mode & 0o100 != 0;
        // Never more than a plain file's rights: no setuid, no writing by others.
        let mode = 0o644 | (mode & 0o111);
        let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(into.join(&name));
        let mut file = match opened {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(UnpackError::Twice { name }),
            opened => opened?,
        };
        let digest = copy(&mut entry, &mut file).map_err(|error| judge(error, limit))?;
        // The mask of the process has no say: what is executable for one is so for all.
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        files.insert(name, digest);
    }
    if !is_executable {
        return Err(UnpackError::NoExecutable);
    }
    File::open(into)?.sync_all()?;
    Ok(files)
}

/// The file's name in the version's folder; `None` for what is passed over.
fn target(entry: &mut Entry<'_, impl Read>) -> Result<Option<String>, UnpackError> {
    let path = entry.path_bytes().into_owned();
    let name = String::from_utf8_lossy(&path).into_owned();
    let outside = || UnpackError::Outside { name: name.clone() };
    let kind = |kind| Err(UnpackError::Kind { name: name.clone(), kind });
    match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous => {}
        EntryType::Directory => {
            let trimmed = name.trim_start_matches("./").trim_end_matches('/');
            let known = ["", ".", "plugin", "Files", "Files/plugin", "Hives"].contains(&trimmed);
            return if known { Ok(None) } else { Err(outside()) };
        }
        EntryType::XHeader | EntryType::XGlobalHeader => return extension(entry, &name).map(|()| None),
        EntryType::Symlink => return kind("symbolic link"),
        EntryType::Link => return kind("hard link"),
        EntryType::GNULongName | EntryType::GNULongLink => return kind("name of more than 100 letters"),
        _ => return kind("device, pipe or sparse file"),
    }
    let mut parts = Vec::new();
    for component in Path::new(&name).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(outside()),
        }
    }
    // An image for Windows has another root.
    let parts = if parts.first().is_some_and(|part| part == "Files") { parts.get(1..) } else { Some(&parts[..]) };
    match parts.unwrap_or_default() {
        [folder, .., file] if folder == "plugin" && !file.contains(['\\', '\0']) => Ok(Some(file.clone())),
        _ => Err(outside()),
    }
}

/// Records of an entry that follows. They may not give it another name: the one that was looked at is the one that counts.
fn extension(entry: &mut Entry<'_, impl Read>, name: &str) -> Result<(), UnpackError> {
    let mut records = Vec::new();
    entry.take(64 * 1024).read_to_end(&mut records)?;
    let renames = |key: &[u8]| records.windows(key.len()).any(|window| window == key);
    if renames(b" path=") || renames(b" linkpath=") || renames(b" size=") {
        return Err(UnpackError::Kind { name: name.to_owned(), kind: "record that renames another entry" });
    }
    Ok(())
}

fn copy(from: &mut impl Read, to: &mut File) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            return Ok(Digest::finish(hash));
        }
        let chunk = buffer.get(..n).unwrap_or_default();
        hash.update(chunk);
        to.write_all(chunk)?;
    }
}

/// A reader that fails when it gave so much.
struct Bounded<R> {
    content: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::from(io::ErrorKind::QuotaExceeded));
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let n = self.content.read(buffer.get_mut(..most).unwrap_or_default())?;
        self.left -= n as u64;
        Ok(n)
    }
}

fn judge(error: io::Error, limit: u64) -> UnpackError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::QuotaExceeded) {
            return UnpackError::TooLarge { limit };
        }
        cause = error.source();
    }
    UnpackError::Io(error)
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tar::{Builder, Header};

    use super::*;

    /// A packed archive: name, kind, mode, content.
    fn archive(entries: &[(&str, EntryType, u32, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, kind, mode, content) in entries {
            let mut header = Header::new_ustar();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_size(content.len() as u64);
            // Past the builder's own guard.
            let field = &mut header.as_old_mut().name;
            field[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn unpacked(layer: &[u8], limit: u64) -> (tempfile::TempDir, Result<Vec<String>, UnpackError>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("layer"), layer).unwrap();
        let into = folder.path().join("into");
        std::fs::create_dir(&into).unwrap();
        let files = unpack_up_to(&folder.path().join("layer"), &into, limit);
        (folder, files.map(|files| files.into_keys().collect()))
    }

    const FILE: EntryType = EntryType::Regular;

    #[test]
    fn regular_files_under_plugin_are_unpacked() {
        let layer = archive(&[
            ("plugin/", EntryType::Directory, 0o755, b""),
            ("plugin/plugin", FILE, 0o6777, b"#!/bin/sh\n"),
            ("./plugin/data.txt", FILE, 0o600, b"data"),
            ("Files/plugin/other", FILE, 0o644, b""),
        ]);
        let (folder, files) = unpacked(&layer, 1 << 20);
        assert_eq!(files.unwrap(), ["data.txt", "other", "plugin"]);
        let mode = |name: &str| folder.path().join("into").join(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("plugin"), mode("data.txt")), (0o755, 0o644), "neither setuid nor writable by others");
    }

    /// Go: unguarded. Here: refused, and nothing is written outside.
    #[test]
    fn o06_peers_defect_2_an_entry_that_points_outside_is_refused() {
        for name in [
            "plugin/../../x",
            "../x",
            "/plugin/x",
            "x",
            "plugin",
            "other/plugin",
            "plugin/..",
            "Files/../x",
            "plugin/a\\..\\b",
        ] {
            let (folder, files) = unpacked(&archive(&[(name, FILE, 0o755, b"x")]), 1 << 20);
            assert!(matches!(files, Err(UnpackError::Outside { .. })), "{name}: {files:?}");
            let mut left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
            left.sort();
            assert_eq!(left, ["into", "layer"], "{name}");
            assert_eq!(folder.path().join("into").read_dir().unwrap().count(), 0, "{name}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let pax = b"20 path=plugin/../x\n";
        for (kind, content) in [
            (EntryType::Symlink, &b""[..]),
            (EntryType::Link, b""),
            (EntryType::Fifo, b""),
            (EntryType::Char, b""),
            (EntryType::GNUSparse, b""),
            (EntryType::GNULongName, b"plugin/../../x\0"),
            (EntryType::XHeader, pax),
        ] {
            let (_folder, files) = unpacked(&archive(&[("plugin/x", kind, 0o755, content)]), 1 << 20);
            assert!(matches!(files, Err(UnpackError::Kind { .. })), "{kind:?}: {files:?}");
        }
        let (_folder, files) =
            unpacked(&archive(&[("plugin/plugin", FILE, 0o755, b"1"), ("plugin/plugin", FILE, 0o755, b"2")]), 1 << 20);
        assert!(matches!(files, Err(UnpackError::Twice { .. })), "{files:?}");
        for layer in [archive(&[]), archive(&[("plugin/plugin", FILE, 0o644, b"1")])] {
            let (_folder, files) = unpacked(&layer, 1 << 20);
            assert!(matches!(files, Err(UnpackError::NoExecutable)), "{files:?}");
        }
    }

    #[test]
    fn a_decompression_bomb_stops_at_the_limit() {
        let zeros = vec![0; 8 << 20];
        let layer = archive(&[("plugin/plugin", FILE, 0o755, &zeros)]);
        assert!(layer.len() < 128 << 10, "{}", layer.len());
        let (folder, files) = unpacked(&layer, 1 << 20);
        assert!(matches!(files, Err(UnpackError::TooLarge { limit: 0x10_0000 })), "{files:?}");
        assert!(folder.path().join("into/plugin").metadata().unwrap().len() <= 1 << 20);

        let entries: Vec<_> =
            (0..ENTRIES_MAX + 1).map(|_| ("plugin/", EntryType::Directory, 0o755, &b""[..])).collect();
        let (_folder, files) = unpacked(&archive(&entries), 1 << 30);
        assert!(matches!(files, Err(UnpackError::TooMany)), "{files:?}");
    }

    #[test]
    fn broken_and_foreign_archives_are_errors() {
        let good = archive(&[("plugin/plugin", FILE, 0o755, &[7; 100_000])]);
        for layer in [&good[..good.len() / 2], b"", b"hello", &[0x1f, 0x8b, 0xff], &[0x28, 0xb5, 0x2f, 0xfd]] {
            let (_folder, files) = unpacked(layer, 1 << 20);
            assert!(files.is_err(), "{} bytes", layer.len());
        }
    }
}
