//! Archives that would fill a disk or memory.

use super::*;

/// Asserts that unpacking exceeds `limit`. Returns the message.
fn assert_exceeds(limit: Limit, limits: &Limits, format: Format, archive: &[u8]) -> String {
    let sandbox = Sandbox::new();
    let error = sandbox.unpack(format, archive, limits).unwrap_err();
    assert!(matches!(&error, UnpackError::Limit(exceeded) if exceeded.limit == limit), "{format:?}: {error:?}");
    error.to_string()
}

#[test]
fn bytes_of_all_files_together_are_limited() {
    let limits = Limits { bytes: 100_000, ..Limits::default() };
    let content = "0".repeat(60_000);
    for (format, archive) in FORMATS {
        let message =
            assert_exceeds(Limit::Bytes, &limits, format, &archive(&[file("a", &content), file("b", &content)]));
        assert_eq!(message, "the archive unpacks to more than 100000 bytes");
        let sandbox = Sandbox::new();
        sandbox.unpack(format, &archive(&[file("a", &content), file("b", &content[..40_000])]), &limits).unwrap();
    }
}

#[test]
fn no_part_of_a_file_above_the_byte_limit_is_left() {
    let limits = Limits { bytes: 100_000, ..Limits::default() };
    let content = "0".repeat(16 << 20);
    for (format, archive) in FORMATS {
        let sandbox = Sandbox::new();
        let archive = archive(&[file("bomb", &content)]);
        sandbox.unpack(format, &archive, &limits).unwrap_err();
        assert!(!sandbox.root().join("bomb").exists(), "{format:?}");
    }
}

#[test]
fn content_of_skipped_entries_is_counted() {
    let limits = Limits { bytes: 100_000, ..Limits::default() };
    let items = [link("a", "b"), file("a/bomb", &"0".repeat(16 << 20))];
    assert_exceeds(Limit::Bytes, &limits, Format::TarZstd, &tar_zstd(&items));
}

#[test]
fn a_sparse_file_counts_with_its_holes() {
    // A GNU sparse header: no data, and a size of 2 GiB.
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("sparse").unwrap();
    header.set_mode(0o644);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize.copy_from_slice(b"20000000000\0");
    gnu.sparse[0].offset.copy_from_slice(b"20000000000\0");
    gnu.sparse[0].numbytes.copy_from_slice(b"00000000000\0");
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.resize(archive.len() + 1024, 0);
    assert_exceeds(Limit::Bytes, &Limits { bytes: 100_000, ..Limits::default() }, Format::Tar, &archive);
}

#[test]
fn entries_are_limited() {
    let limits = Limits { entries: 10, ..Limits::default() };
    let items: Vec<Item> = (0..11).map(|n| file(&n.to_string(), "")).collect();
    for (format, archive) in FORMATS {
        let message = assert_exceeds(Limit::Entries, &limits, format, &archive(&items));
        assert_eq!(message, "the archive has more than 10 entries");
        Sandbox::new().unpack(format, &archive(&items[1..]), &limits).unwrap();
    }
}

/// Returns the name of a directory at this depth.
fn nested(depth: usize) -> String {
    (1..=depth).map(|n| n.to_string()).collect::<Vec<_>>().join("/")
}

#[test]
fn directories_that_a_name_implies_count_as_entries() {
    let limits = Limits { entries: 20, ..Limits::default() };
    let listed: Vec<Item> =
        (1..=10).flat_map(|depth| [directory(&nested(depth)), file(&format!("{}/f", nested(depth)), "")]).collect();
    for (format, archive) in FORMATS {
        for items in [vec![file(&format!("{}/f", nested(20)), "")], vec![directory(&nested(21))]] {
            let sandbox = Sandbox::new();
            let error = sandbox.unpack(format, &archive(&items), &limits).unwrap_err();
            assert_eq!(error.to_string(), "the archive has more than 20 entries", "{format:?}");
            assert!(sandbox.inside().len() <= 20, "{format:?}: {} directories", sandbox.inside().len());
        }
        // A directory with its own entry, or with many files, counts once.
        let shared: Vec<Item> = (0..15).map(|n| file(&format!("{}/{n}", nested(5)), "")).collect();
        let one_deep_file = vec![file(&format!("{}/f", nested(19)), "")];
        for items in [one_deep_file, vec![directory(&nested(20))], listed.clone(), shared] {
            Sandbox::new().unpack(format, &archive(&items), &limits).unwrap();
        }
    }
}

#[test]
fn an_entry_with_many_directories_can_be_stopped() {
    for (format, archive) in FORMATS {
        let (sandbox, result) = stopped_after(3, format, &archive(&[file(&format!("{}/f", nested(500)), "")]));
        assert!(matches!(result, Err(UnpackError::Stopped)), "{format:?}: {result:?}");
        assert!(directory_depth(&sandbox.root()) <= 3, "{format:?}: {} directories", directory_depth(&sandbox.root()));
    }
}

#[test]
fn a_large_entry_can_be_stopped() {
    for (format, archive) in FORMATS {
        let (sandbox, result) = stopped_after(5, format, &archive(&[file("large", &"0".repeat(16 << 20))]));
        assert!(matches!(result, Err(UnpackError::Stopped)), "{format:?}: {result:?}");
        let written = fs::metadata(sandbox.root().join("large")).map_or(0, |large| large.len());
        assert!(written <= 1 << 20, "{format:?}: {written} bytes");
    }
}

#[test]
fn creating_links_and_setting_modes_after_the_files_can_be_stopped() {
    let links: Vec<Item> = (0..100).map(|n| link(&format!("{n:03}"), "target")).collect();
    let mut directories: Vec<Item> = (0..100).map(|n| directory(&format!("{n:03}"))).collect();
    directories.iter_mut().for_each(|item| item.mode = 0o500);
    let is_done = |path: PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink() || metadata.permissions().readonly())
    };
    for (format, archive) in FORMATS {
        for items in [&links, &directories] {
            let sandbox = Sandbox::new();
            // The last items are processed first.
            let stop = || is_done(sandbox.root().join("099"));
            let limits = Limits::default();
            let result = unpack(&temporary_file(&archive(items)), &sandbox.open_root(), &limits, format, &stop);
            assert!(matches!(result, Err(UnpackError::Stopped)), "{format:?}: {result:?}");
            assert!(!is_done(sandbox.root().join("000")), "{format:?}");
        }
    }
}

/// Libraries read all of such an archive before they return.
#[test]
fn an_archive_without_entries_can_be_stopped() {
    // A frame that readers skip, with its magic and length.
    let skipped = [&b"\x50\x2a\x4d\x18\0\x10\0\0"[..], &[0; 4096]].concat().repeat(1000);
    let empty = zstd::encode_all(&b""[..], 1).unwrap().repeat(200_000);
    let mut gzip = Vec::new();
    flate2::write::GzEncoder::new(&mut gzip, flate2::Compression::fast()).finish().unwrap();
    for (format, archive) in
        [(Format::TarZstd, skipped), (Format::TarZstd, empty), (Format::TarGzip, gzip.repeat(200_000))]
    {
        let (_sandbox, result) = stopped_after(5, format, &archive);
        assert!(matches!(result, Err(UnpackError::Stopped)), "{format:?}: {result:?}");
    }
}

/// Unpacks with a `stop` that returns false for the first `max_calls` calls.
fn stopped_after(max_calls: usize, format: Format, archive: &[u8]) -> (Sandbox, Result<SkippedEntries, UnpackError>) {
    let sandbox = Sandbox::new();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let stop = || calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= max_calls;
    let result = unpack(&temporary_file(archive), &sandbox.open_root(), &Limits::default(), format, &stop);
    (sandbox, result)
}

fn directory_depth(dir: &Path) -> usize {
    children(dir).first().map_or(0, |child| 1 + directory_depth(child))
}

#[test]
fn ratio_limit_applies_only_after_ratio_floor_bytes() {
    let limits = Limits { ratio: 50, ratio_floor: 1 << 20, ..Limits::default() };
    let zeros = "0".repeat(4 << 20);
    for (format, archive) in
        [(Format::Zip, zip as WriteItems), (Format::TarZstd, tar_zstd), (Format::TarGzip, tar_gzip)]
    {
        let message = assert_exceeds(Limit::Ratio, &limits, format, &archive(&[file("bomb", &zeros)]));
        assert_eq!(message, "the archive unpacks to more than 50 times its size");
        Sandbox::new().unpack(format, &archive(&[file("small", &zeros[..1 << 20])]), &limits).unwrap();
    }
    Sandbox::new().unpack(Format::Tar, &tar(&[file("plain", &zeros)]), &limits).unwrap();
}

#[test]
fn headers_are_limited() {
    let limits = Limits { header_bytes: 64 * 1024, ..Limits::default() };
    let huge = "n".repeat(16 << 20);
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let items = [item(kind, "x", &huge), file("name", "")];
        for (format, archive) in &FORMATS[1..] {
            let message = assert_exceeds(Limit::HeaderBytes, &limits, *format, &archive(&items));
            assert_eq!(message, "the archive has more than 65536 bytes of headers; it may be damaged");
        }
    }
    let items: Vec<Item> = (0..100).map(|n| file(&format!("{n}{}", "n".repeat(1000)), "")).collect();
    assert_exceeds(Limit::HeaderBytes, &limits, Format::Zip, &zip(&items));
    // A long name below the limit is allowed.
    Sandbox::new().unpack(Format::TarZstd, &tar_zstd(&[file(&"long/".repeat(40), "")]), &limits).unwrap();
}

#[test]
fn names_and_targets_in_memory_are_limited() {
    let limits = Limits { header_bytes: 64 * 1024, ..Limits::default() };
    let targets: Vec<Item> = (0..100).map(|n| link(&n.to_string(), &"t".repeat(1000))).collect();
    let names: Vec<Item> =
        (0..100).map(|n| directory(&format!("{n}/{}", format!("{}/", "n".repeat(199)).repeat(5)))).collect();
    for items in [targets, names] {
        // All names and targets in memory together exceed the limit, not a single header.
        for (format, archive) in &FORMATS[1..] {
            let message = assert_exceeds(Limit::HeaderBytes, &limits, *format, &archive(&items));
            assert_eq!(message, "the archive has more than 65536 bytes of headers; it may be damaged");
            Sandbox::new().unpack(*format, &archive(&items[..60]), &limits).unwrap();
        }
    }
}

fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Each entry implies 400 directories with 0.8 MB of paths, which must not stay in memory.
#[test]
fn memory_does_not_grow_with_the_directories_that_names_imply() {
    const CHILD: &str = "MUSTER_TEST_DEEP_PATHS";
    const NAME: &str = "tests::bombs::memory_does_not_grow_with_the_directories_that_names_imply";
    // The peak is that of a whole process, so the test starts one.
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", NAME]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let items: Vec<Item> = (0..80).map(|entry| file(&format!("{entry}/{}f", "directory/".repeat(400)), "")).collect();
    let archive = zip(&items);
    let sandbox = Sandbox::new();
    let before = peak_memory();
    sandbox.unpack(Format::Zip, &archive, &Limits::default()).unwrap();
    let grown = peak_memory() - before;
    assert!(grown < 40 << 20, "memory grew by {grown} bytes");
    assert!(sandbox.root().join("79/directory/directory").is_dir());
}
