//! The archive of a plugin: regular files under `plugin/`, nothing else, and not too much of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Component, Path};

use muster_archive::{Entry, EntryKind, Exceeded, Format, Limits, Meter, Root, create_root, read, write_new};
use sha2::{Digest as _, Sha256};

use super::EXECUTABLE;
use crate::oci::Digest;

/// Most that a plugin unpacks to. The ratio says nothing, because the bytes are limited already.
const LIMITS: Limits = Limits {
    bytes: 1024 * 1024 * 1024,
    entries: 1024,
    ratio: u64::MAX,
    ratio_floor: u64::MAX,
    header_bytes: 1024 * 1024,
};

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It cannot be read, or written.
    #[error("it cannot be unpacked")]
    Io(#[from] io::Error),
    /// It would fill the disk, or the memory.
    #[error("{0}, which no plugin needs")]
    TooMuch(Exceeded),
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

/// Unpacks into an empty folder; the digest of each file.
pub(super) fn unpack(layer: &Path, into: &Path) -> Result<BTreeMap<String, Digest>, UnpackError> {
    unpack_up_to(layer, into, &LIMITS)
}

fn unpack_up_to(layer: &Path, into: &Path, limits: &Limits) -> Result<BTreeMap<String, Digest>, UnpackError> {
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
    let mut is_executable = false;
    read(archive, format, &Meter::new(*limits, &|| false), &mut |entry, content| {
        let Some(name) = target(entry)? else { return Ok(()) };
        if files.contains_key(&name) {
            return Err(UnpackError::Twice { name });
        }
        let mode = entry.mode.unwrap_or(0o644);
        is_executable |= name == EXECUTABLE && mode & 0o100 != 0;
        let mut content = Hashed { content, hash: Sha256::new() };
        // Never more than a plain file's rights: no setuid, no writing by others.
        write_new(&dir, &name, 0o644 | (mode & 0o111), &mut content)?.sync_all()?;
        files.insert(name, Digest::finish(content.hash));
        Ok(())
    })?;
    if !is_executable {
        return Err(UnpackError::NoExecutable);
    }
    File::open(into)?.sync_all()?;
    Ok(files)
}

/// The file's name in the version's folder; `None` for what is passed over.
fn target(entry: &Entry) -> Result<Option<String>, UnpackError> {
    let name = entry.path.to_string_lossy().into_owned();
    match entry.kind {
        EntryKind::File => {}
        EntryKind::Directory if ["", "plugin", "Files", "Files/plugin", "Hives"].contains(&&*name) => return Ok(None),
        EntryKind::Directory => return Err(UnpackError::Outside { name }),
        EntryKind::Link(_) => return Err(UnpackError::Kind { name, kind: "symbolic link" }),
    }
    let parts: Vec<_> = entry.path.components().map(Component::as_os_str).collect();
    // An image for Windows has another root.
    let parts = if parts.first().is_some_and(|part| *part == "Files") { parts.get(1..) } else { Some(&parts[..]) };
    match parts.unwrap_or_default() {
        [folder, .., file] if *folder == "plugin" && !file.to_string_lossy().contains('\\') => {
            Ok(Some(file.to_string_lossy().into_owned()))
        }
        _ => Err(UnpackError::Outside { name }),
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
    use std::os::unix::fs::PermissionsExt;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use muster_archive::Limit;
    use tar::{Builder, EntryType, Header};

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
        let files = unpack_up_to(&folder.path().join("layer"), &into, &Limits { bytes: limit, ..LIMITS });
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
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Fifo, EntryType::Char] {
            let (_folder, files) = unpacked(&archive(&[("plugin/x", kind, 0o755, b"")]), 1 << 20);
            assert!(matches!(files, Err(UnpackError::Kind { .. })), "{kind:?}: {files:?}");
        }
        // Records that give the entry behind them another name: that name counts.
        let pax = b"20 path=plugin/../x\n";
        for (kind, content) in [(EntryType::GNULongName, &b"plugin/../../x\0"[..]), (EntryType::XHeader, pax)] {
            let entries = [("plugin/x", kind, 0o755, content), ("plugin/x", FILE, 0o755, b"")];
            let (_folder, files) = unpacked(&archive(&entries), 1 << 20);
            assert!(matches!(files, Err(UnpackError::Outside { .. })), "{kind:?}: {files:?}");
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
        let too_large = Exceeded { limit: Limit::Bytes, max: 1 << 20 };
        assert!(matches!(files, Err(UnpackError::TooMuch(exceeded)) if exceeded == too_large), "{files:?}");
        assert!(folder.path().join("into/plugin").metadata().unwrap().len() <= 1 << 20);

        let entries: Vec<_> =
            (0..=LIMITS.entries).map(|_| ("plugin/", EntryType::Directory, 0o755, &b""[..])).collect();
        let (_folder, files) = unpacked(&archive(&entries), 1 << 30);
        let too_many = Exceeded { limit: Limit::Entries, max: LIMITS.entries };
        assert!(matches!(files, Err(UnpackError::TooMuch(exceeded)) if exceeded == too_many), "{files:?}");
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
