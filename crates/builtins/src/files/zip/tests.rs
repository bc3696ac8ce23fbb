use std::io::Read;

use muster_job::TerminationCause;

use super::*;
use crate::extraction::Extraction;
use crate::files::format::{Format, Level};

fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

/// Creates files, some larger than a block, and a link. Returns all paths.
fn create(root: &Path) -> Vec<PathBuf> {
    let block = usize::try_from(BLOCK_BYTES).unwrap();
    let text = |length: usize| b"some text of a file, ".iter().copied().cycle().take(length).collect::<Vec<_>>();
    let mut files = vec![
        ("0 empty", Vec::new()),
        ("1 block", text(block)),
        ("2 more than a block", text(block + 1)),
        ("3 random", random(1, 3 * block + 5)),
        ("4 mixed", [text(2 * block), random(2, block), text(100)].concat()),
        ("5 ünï", text(10)),
    ];
    let names: Vec<String> = (0..300).map(|index| format!("small{index:03}")).collect();
    files.extend(names.iter().map(|name| (name.as_str(), text(name.len() * 100))));
    let mut paths = vec![PathBuf::from("d")];
    fs::create_dir(root.join("d")).unwrap();
    for (name, content) in files {
        fs::write(root.join("d").join(name), content).unwrap();
        paths.push(Path::new("d").join(name));
    }
    std::os::unix::fs::symlink("1 block", root.join("d/link")).unwrap();
    paths.push("d/link".into());
    paths
}

fn packed(root: &Path, files: &[PathBuf], format: Format) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    crate::files::pack::pack(format, root, files, Level::Default, file.as_file(), &StopToken::new()).unwrap();
    fs::read(file.path()).unwrap()
}

#[test]
fn bytes_depend_only_on_the_files() {
    let from = tempfile::tempdir().unwrap();
    let files = create(from.path());
    for format in [Format::Zip, Format::ZipZstd] {
        let first = packed(from.path(), &files, format);
        assert!((0..3).all(|_| packed(from.path(), &files, format) == first), "{format:?}");
    }
}

#[test]
fn files_of_every_size_are_restored() {
    let from = tempfile::tempdir().unwrap();
    let files = create(from.path());
    for format in [Format::Zip, Format::ZipZstd] {
        let mut archive = tempfile::tempfile().unwrap();
        archive.write_all(&packed(from.path(), &files, format)).unwrap();
        let to = tempfile::tempdir().unwrap();
        let skipped = Extraction::new(to.path().to_owned()).run(archive, &StopToken::new()).unwrap();
        assert_eq!(skipped.lines().count(), 0);
        for file in &files[1..] {
            let content = |root: &Path| fs::read(root.join(file)).unwrap();
            assert!(content(from.path()) == content(to.path()), "{format:?}: {}", file.display());
        }
        assert_eq!(fs::read_link(to.path().join("d/link")).unwrap(), Path::new("1 block"));
    }
}

#[test]
fn independent_reader_accepts_the_archive() {
    let from = tempfile::tempdir().unwrap();
    let files = create(from.path());
    for format in [Format::Zip, Format::ZipZstd] {
        let mut archive = zip::ZipArchive::new(io::Cursor::new(packed(from.path(), &files, format))).unwrap();
        assert_eq!(archive.len(), files.len());
        for (index, path) in files.iter().enumerate() {
            let mut entry = archive.by_index(index).unwrap();
            assert_eq!(entry.name().trim_end_matches('/'), path.to_str().unwrap());
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if entry.is_file() {
                assert!(content == fs::read(from.path().join(path)).unwrap(), "{format:?}: {}", path.display());
                assert_eq!(entry.size(), content.len() as u64);
            }
        }
    }
}

#[test]
fn file_that_does_not_get_smaller_is_stored() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("random"), random(3, 100_000)).unwrap();
    fs::write(from.path().join("short"), "ab").unwrap();
    let archive = packed(from.path(), &["random".into(), "short".into()], Format::Zip);
    let mut archive = zip::ZipArchive::new(io::Cursor::new(archive)).unwrap();
    for index in 0..2 {
        assert_eq!(archive.by_index(index).unwrap().compression(), zip::CompressionMethod::Stored);
    }
}

#[test]
fn missing_files_and_sockets_are_left_out() {
    let from = tempfile::tempdir().unwrap();
    let mut files = create(from.path());
    files.extend((0..100).map(|index| PathBuf::from(format!("d/missing{index}"))));
    files.sort();
    let socket = std::os::unix::net::UnixListener::bind(from.path().join("d/socket")).unwrap();
    files.push("d/socket".into());
    let archive = zip::ZipArchive::new(io::Cursor::new(packed(from.path(), &files, Format::Zip))).unwrap();
    assert_eq!(archive.len(), files.len() - 101, "only the missing files and the socket may be left out");
    drop(socket);
}

#[test]
fn archive_with_more_than_65535_entries_is_readable() {
    let records = |count: u64| records::end(count, 100, 200);
    assert_eq!(records(65_534).len(), 22);
    assert_eq!(records(65_535).len(), 22 + 20 + 56);
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("a"), "content").unwrap();
    let files = vec![PathBuf::from("a"); 70_000];
    let archive = zip::ZipArchive::new(io::Cursor::new(packed(from.path(), &files, Format::Zip)));
    // This reader counts equal names once.
    assert_eq!(archive.unwrap().len(), 1);
}

#[test]
fn stop_ends_packing() {
    let from = tempfile::tempdir().unwrap();
    let files = create(from.path());
    let stop = StopToken::new();
    stop.stop(TerminationCause::TimedOut);
    let target = tempfile::tempfile().unwrap();
    let result = pack(from.path(), &files, ZipCompression::Deflate(5), &target, &stop);
    assert_eq!(result, Err(Failure::Stopped(TerminationCause::TimedOut)));
}
