//! Round trips, and archives that want out.

use std::io::Write;

use proptest::prelude::*;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::files::format::{Format, Level};
use crate::files::pack::pack;

fn hostile(build: impl FnOnce(&mut ZipWriter<&File>)) -> File {
    let file = tempfile::tempfile().unwrap();
    let mut zip = ZipWriter::new(&file);
    build(&mut zip);
    zip.finish().unwrap();
    io::Seek::rewind(&mut &file).unwrap();
    file
}

#[test]
fn files_links_modes_and_times_survive_the_way() {
    for format in [Format::Zip, Format::ZipZstd, Format::TarZstd] {
        for level in ["fastest", "default", "slowest"] {
            way_and_back(format, Level::from_name(Some(level)));
        }
    }
}

fn way_and_back(format: Format, level: Level) {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d/run"), "content").unwrap();
    fs::set_permissions(from.path().join("d/run"), fs::Permissions::from_mode(0o750)).unwrap();
    filetime::set_file_mtime(from.path().join("d/run"), FileTime::from_unix_time(1_700_000_001, 0)).unwrap();
    std::os::unix::fs::symlink("run", from.path().join("d/link")).unwrap();
    let long = format!("d/{}", "name ".repeat(40));
    fs::write(from.path().join(&long), "long").unwrap();
    let archive = tempfile::NamedTempFile::new().unwrap();
    let files = ["d", "d/link", "d/run", "gone", &long].map(PathBuf::from);
    pack(format, from.path(), &files, level, archive.as_file(), &Stop::new()).unwrap();

    let to = tempfile::tempdir().unwrap();
    fs::create_dir(to.path().join("d")).unwrap();
    fs::write(to.path().join("d/run"), "older").unwrap();
    unpack(archive.reopen().unwrap(), to.path(), &Stop::new()).unwrap();
    let metadata = fs::metadata(to.path().join("d/run")).unwrap();
    assert_eq!(fs::read_to_string(to.path().join("d/link")).unwrap(), "content", "{format:?}");
    assert_eq!(fs::read_to_string(to.path().join(&long)).unwrap(), "long", "{format:?}");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o750, "{format:?}");
    assert_eq!(FileTime::from_last_modification_time(&metadata).unix_seconds(), 1_700_000_001, "{format:?}");
}

#[test]
fn a_tar_archive_that_leads_out_or_holds_anything_else_is_refused() {
    for (name, kind) in [("../out", tar::EntryType::Regular), ("hard", tar::EntryType::Link)] {
        let outer = tempfile::tempdir().unwrap();
        let archive = tempfile::NamedTempFile::new().unwrap();
        let mut tar = tar::Builder::new(zstd::Encoder::new(archive.as_file(), 1).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, io::empty()).unwrap();
        tar.into_inner().unwrap().finish().unwrap();
        let unpacked = unpack(archive.reopen().unwrap(), &outer.path().join("root"), &Stop::new());
        assert!(matches!(unpacked, Err(Failure::Step(_))), "{name}: {unpacked:?}");
    }
}

#[test]
fn names_that_lead_out_are_refused() {
    for name in ["../out", "a/../../out", "/out"] {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        let archive = hostile(|zip| {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.write_all(b"evil").unwrap();
        });
        assert!(matches!(unpack(archive, &root, &Stop::new()), Err(Failure::Step(_))), "{name}");
        assert!(!outer.path().join("out").exists());
    }
}

#[test]
fn nothing_is_written_through_a_link_that_leads_out() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    fs::create_dir_all(&root).unwrap();
    std::os::unix::fs::symlink("..", root.join("link")).unwrap();
    let archive = hostile(|zip| {
        zip.start_file("link/out", SimpleFileOptions::default()).unwrap();
        zip.write_all(b"evil").unwrap();
    });
    assert_eq!(
        unpack(archive, &root, &Stop::new()).unwrap().told,
        ["link/out: not unpacked, left as it is: a link on its way leads out of the project"]
    );
    // A link of the archive itself is made after everything else.
    let archive = hostile(|zip| {
        zip.add_symlink("own", "..", SimpleFileOptions::default()).unwrap();
        zip.start_file("own/out", SimpleFileOptions::default()).unwrap();
        zip.write_all(b"evil").unwrap();
    });
    assert_eq!(unpack(archive, &root, &Stop::new()).unwrap().told.len(), 1);
    assert!(!outer.path().join("out").exists());
}

#[test]
fn a_link_in_the_way_of_a_file_is_replaced_not_followed() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    fs::create_dir_all(&root).unwrap();
    fs::write(outer.path().join("victim"), "old").unwrap();
    std::os::unix::fs::symlink("../victim", root.join("file")).unwrap();
    let archive = hostile(|zip| {
        zip.start_file("file", SimpleFileOptions::default()).unwrap();
        zip.write_all(b"new").unwrap();
    });
    unpack(archive, &root, &Stop::new()).unwrap();
    assert_eq!(fs::read_to_string(outer.path().join("victim")).unwrap(), "old");
    assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "new");
}

#[test]
fn what_meets_a_directory_with_files_is_left_out_and_told_and_the_rest_is_unpacked() {
    let root = tempfile::tempdir().unwrap();
    for name in ["file/kept", "link/kept"] {
        fs::create_dir_all(root.path().join(name)).unwrap();
    }
    fs::write(root.path().join("directory"), "").unwrap();
    let archive = hostile(|zip| {
        for name in ["file", "directory/new", "other"] {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
        }
        zip.add_symlink("link", "other", SimpleFileOptions::default()).unwrap();
    });
    let left_out = unpack(archive, root.path(), &Stop::new()).unwrap();
    assert_eq!(left_out.told.len(), 2, "{left_out:?}");
    for (line, name) in left_out.told.iter().zip(["file", "link"]) {
        assert!(line.starts_with(&format!("{name}: not unpacked, left as it is: Directory not empty")), "{line}");
        assert!(root.path().join(name).join("kept").exists());
    }
    assert!(root.path().join("directory/new").is_file() && root.path().join("other").is_file());
}

proptest! {
    #[test]
    fn any_bytes_are_no_reason_to_panic(
        head in prop::sample::select(vec![&b""[..], &[0x28, 0xb5, 0x2f, 0xfd], &[0x1f, 0x8b], b"PK\x03\x04"]),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[head, &bytes].concat()).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        let _ = unpack(file, dir.path(), &Stop::new());
    }
}
