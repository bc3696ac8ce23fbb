//! Layout of a plugin's archive.
//! It contains only regular files under `plugin/` or `Files/plugin/`, with a limited total size.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use muster_archive::Limits;
use muster_oci::{Target, Unpacked};

use super::EXECUTABLE;

/// Limits of an unpacked plugin.
///
/// A limit of the compression ratio is not needed, because the number of bytes is limited.
pub(super) const LIMITS: Limits = Limits {
    bytes: 1024 * 1024 * 1024,
    entries: 1024,
    ratio: u64::MAX,
    ratio_floor: u64::MAX,
    header_bytes: 1024 * 1024,
};

/// Returns what to do with an entry of the archive.
///
/// Files under `plugin/` and `Files/plugin/` are unpacked without their directories. Known directories are skipped. All other entries are rejected.
pub(super) fn target(path: &Path, is_directory: bool) -> Target {
    if is_directory {
        let name = path.to_string_lossy();
        let is_known = ["", "plugin", "Files", "Files/plugin", "Hives"].contains(&&*name);
        return if is_known { Target::Skipped } else { Target::Outside };
    }
    let parts: Vec<_> = path.components().map(Component::as_os_str).collect();
    // Images for Windows have the additional root directory `Files`.
    let parts = if parts.first().is_some_and(|part| *part == "Files") { parts.get(1..) } else { Some(&parts[..]) };
    match parts.unwrap_or_default() {
        [root, .., file] if *root == "plugin" && !file.to_string_lossy().contains('\\') => {
            Target::File(file.to_string_lossy().into_owned())
        }
        _ => Target::Outside,
    }
}

pub(super) fn has_executable(files: &BTreeMap<String, Unpacked>) -> bool {
    files.get(EXECUTABLE).is_some_and(|file| file.is_executable)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use muster_archive::{Exceeded, Limit};
    use muster_oci::UnpackError;
    use tar::{Builder, EntryType, Header};

    use super::*;

    fn archive(entries: &[(&str, EntryType, u32, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, kind, mode, content) in entries {
            let mut header = Header::new_ustar();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_size(content.len() as u64);
            // Writes the name directly, because the builder rejects invalid names.
            let field = &mut header.as_old_mut().name;
            field[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn unpack_layer(layer: &[u8], limit: u64) -> (tempfile::TempDir, Result<Vec<String>, UnpackError>) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("layer"), layer).unwrap();
        let into = directory.path().join("into");
        std::fs::create_dir(&into).unwrap();
        let limits = Limits { bytes: limit, ..LIMITS };
        let files = muster_oci::unpack(&directory.path().join("layer"), &into, &limits, &target);
        (directory, files.map(|files| files.into_keys().collect()))
    }

    const FILE: EntryType = EntryType::Regular;

    #[test]
    fn files_below_plugin_are_unpacked() {
        let layer = archive(&[
            ("plugin/", EntryType::Directory, 0o755, b""),
            ("plugin/plugin", FILE, 0o6777, b"#!/bin/sh\n"),
            ("./plugin/data.txt", FILE, 0o600, b"data"),
            ("Files/plugin/other", FILE, 0o644, b""),
        ]);
        let (directory, files) = unpack_layer(&layer, 1 << 20);
        assert_eq!(files.unwrap(), ["data.txt", "other", "plugin"]);
        let mode =
            |name: &str| directory.path().join("into").join(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            (mode("plugin"), mode("data.txt")),
            (0o755, 0o644),
            "modes are 0755 or 0644, whatever the archive sets"
        );
    }

    /// The Go implementation unpacks such entries outside of its directory.
    #[test]
    fn o06_entry_outside_of_the_directory_is_rejected() {
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
            let (directory, files) = unpack_layer(&archive(&[(name, FILE, 0o755, b"x")]), 1 << 20);
            assert!(matches!(files, Err(UnpackError::Outside { .. })), "{name}: {files:?}");
            let mut names: Vec<_> =
                directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["into", "layer"], "{name}");
            assert_eq!(directory.path().join("into").read_dir().unwrap().count(), 0, "{name}");
        }
    }

    #[test]
    fn links_devices_bad_renames_and_duplicates_are_rejected() {
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Fifo, EntryType::Char] {
            let (_directory, files) = unpack_layer(&archive(&[("plugin/x", kind, 0o755, b"")]), 1 << 20);
            assert!(matches!(files, Err(UnpackError::Kind { .. })), "{kind:?}: {files:?}");
        }
        // These records rename the following entry. The new name is checked.
        let pax = b"20 path=plugin/../x\n";
        for (kind, content) in [(EntryType::GNULongName, &b"plugin/../../x\0"[..]), (EntryType::XHeader, pax)] {
            let entries = [("plugin/x", kind, 0o755, content), ("plugin/x", FILE, 0o755, b"")];
            let (_directory, files) = unpack_layer(&archive(&entries), 1 << 20);
            assert!(matches!(files, Err(UnpackError::Outside { .. })), "{kind:?}: {files:?}");
        }
        let (_directory, files) = unpack_layer(
            &archive(&[("plugin/plugin", FILE, 0o755, b"1"), ("plugin/plugin", FILE, 0o755, b"2")]),
            1 << 20,
        );
        assert!(matches!(files, Err(UnpackError::Duplicate { .. })), "{files:?}");
    }

    #[test]
    fn archive_must_contain_an_executable() {
        for (name, mode, expected) in
            [("plugin/plugin", 0o755, true), ("plugin/plugin", 0o644, false), ("plugin/other", 0o755, false)]
        {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("layer"), archive(&[(name, FILE, mode, b"1")])).unwrap();
            let into = directory.path().join("into");
            std::fs::create_dir(&into).unwrap();
            let files = muster_oci::unpack(&directory.path().join("layer"), &into, &LIMITS, &target).unwrap();
            assert_eq!(has_executable(&files), expected, "{name} {mode:o}");
        }
    }

    #[test]
    fn decompression_bomb_stops_at_the_limit() {
        let zeros = vec![0; 8 << 20];
        let layer = archive(&[("plugin/plugin", FILE, 0o755, &zeros)]);
        assert!(layer.len() < 128 << 10, "{}", layer.len());
        let (directory, files) = unpack_layer(&layer, 1 << 20);
        let too_large = Exceeded { limit: Limit::Bytes, max: 1 << 20 };
        assert!(matches!(files, Err(UnpackError::Limit(exceeded)) if exceeded == too_large), "{files:?}");
        assert!(directory.path().join("into/plugin").metadata().unwrap().len() <= 1 << 20);

        let entries: Vec<_> =
            (0..=LIMITS.entries).map(|_| ("plugin/", EntryType::Directory, 0o755, &b""[..])).collect();
        let (_directory, files) = unpack_layer(&archive(&entries), 1 << 30);
        let too_many = Exceeded { limit: Limit::Entries, max: LIMITS.entries };
        assert!(matches!(files, Err(UnpackError::Limit(exceeded)) if exceeded == too_many), "{files:?}");
    }

    #[test]
    fn damaged_archives_unpack_no_file() {
        let good = archive(&[("plugin/plugin", FILE, 0o755, &[7; 100_000])]);
        for layer in [&good[..good.len() / 2], b"", b"hello", &[0x1f, 0x8b, 0xff], &[0x28, 0xb5, 0x2f, 0xfd]] {
            let (_directory, files) = unpack_layer(layer, 1 << 20);
            // An empty archive is not an error here. The installer rejects it, because it has no executable.
            assert!(files.as_ref().map_or(true, Vec::is_empty), "{} bytes: {files:?}", layer.len());
        }
    }
}
