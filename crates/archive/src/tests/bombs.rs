//! Archives that are built to fill a disk or the memory.

use super::*;

fn exceeds(limit: Limit, limits: &Limits, format: Format, archive: &[u8]) -> String {
    let place = Place::new();
    let error = place.unpack(format, archive, limits).unwrap_err();
    assert!(matches!(&error, UnpackError::Limit(exceeded) if exceeded.limit == limit), "{format:?}: {error:?}");
    error.to_string()
}

#[test]
fn bytes_of_all_files_together_are_limited() {
    let limits = Limits { bytes: 100_000, ..Limits::default() };
    let content = "0".repeat(60_000);
    for (format, archive) in FORMATS {
        let message = exceeds(Limit::Bytes, &limits, format, &archive(&[file("a", &content), file("b", &content)]));
        assert_eq!(message, "the archive unpacks to more than 100000 bytes");
        let place = Place::new();
        place.unpack(format, &archive(&[file("a", &content), file("b", &content[..40_000])]), &limits).unwrap();
    }
}

#[test]
fn a_file_is_never_larger_than_the_limit_on_disk() {
    let limits = Limits { bytes: 100_000, ..Limits::default() };
    let content = "0".repeat(16 << 20);
    for (format, archive) in FORMATS {
        let place = Place::new();
        let archive = archive(&[file("bomb", &content)]);
        place.unpack(format, &archive, &limits).unwrap_err();
        assert!(fs::metadata(place.root().join("bomb")).unwrap().len() <= limits.bytes, "{format:?}");
    }
}

#[test]
fn content_that_is_left_out_counts_too() {
    let limits = Limits { bytes: 100_000, ..Limits::default() };
    let items = [link("a", "b"), file("a/bomb", &"0".repeat(16 << 20))];
    exceeds(Limit::Bytes, &limits, Format::TarZstd, &tar_zstd(&items));
}

#[test]
fn a_sparse_file_counts_with_its_holes() {
    // A GNU sparse header: no data, and a size of 1 TiB.
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
    exceeds(Limit::Bytes, &Limits { bytes: 100_000, ..Limits::default() }, Format::Tar, &archive);
}

#[test]
fn entries_are_limited() {
    let limits = Limits { entries: 10, ..Limits::default() };
    let items: Vec<Item> = (0..11).map(|n| file(&n.to_string(), "")).collect();
    for (format, archive) in FORMATS {
        let message = exceeds(Limit::Entries, &limits, format, &archive(&items));
        assert_eq!(message, "the archive has more than 10 entries");
        Place::new().unpack(format, &archive(&items[1..]), &limits).unwrap();
    }
}

#[test]
fn the_ratio_is_limited_above_its_floor() {
    let limits = Limits { ratio: 50, ratio_floor: 1 << 20, ..Limits::default() };
    let zeros = "0".repeat(4 << 20);
    for (format, archive) in
        [(Format::Zip, zip as WriteItems), (Format::TarZstd, tar_zstd), (Format::TarGzip, tar_gzip)]
    {
        let message = exceeds(Limit::Ratio, &limits, format, &archive(&[file("bomb", &zeros)]));
        assert_eq!(message, "the archive unpacks to more than 50 times its size");
        Place::new().unpack(format, &archive(&[file("small", &zeros[..1 << 20])]), &limits).unwrap();
    }
    Place::new().unpack(Format::Tar, &tar(&[file("plain", &zeros)]), &limits).unwrap();
}

#[test]
fn headers_are_limited() {
    let limits = Limits { header_bytes: 64 * 1024, ..Limits::default() };
    let huge = "n".repeat(16 << 20);
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let items = [item(kind, "x", &huge), file("name", "")];
        for (format, archive) in &FORMATS[1..] {
            let message = exceeds(Limit::HeaderBytes, &limits, *format, &archive(&items));
            assert_eq!(message, "the archive has more than 65536 bytes of headers; it may be damaged");
        }
    }
    let items: Vec<Item> = (0..100).map(|n| file(&format!("{n}{}", "n".repeat(1000)), "")).collect();
    exceeds(Limit::HeaderBytes, &limits, Format::Zip, &zip(&items));
    // Each entry of tar is read alone.
    Place::new().unpack(Format::TarZstd, &tar_zstd(&[file(&"long/".repeat(40), "")]), &limits).unwrap();
}

#[test]
fn what_is_kept_until_the_end_is_limited() {
    let limits = Limits { header_bytes: 64 * 1024, ..Limits::default() };
    let targets: Vec<Item> = (0..100).map(|n| link(&n.to_string(), &"t".repeat(1000))).collect();
    let names: Vec<Item> =
        (0..100).map(|n| directory(&format!("{n}/{}", format!("{}/", "n".repeat(199)).repeat(5)))).collect();
    for items in [targets, names] {
        // A tar has no other limit on them: each of its headers is small.
        for (format, archive) in &FORMATS[1..] {
            let message = exceeds(Limit::HeaderBytes, &limits, *format, &archive(&items));
            assert_eq!(message, "the archive has more than 65536 bytes of headers; it may be damaged");
            Place::new().unpack(*format, &archive(&items[..60]), &limits).unwrap();
        }
    }
}

#[test]
fn reading_stops_when_it_is_asked_to() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        let root = place.open_root();
        let asked = std::cell::Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) > 2;
        let archive = archive(&[file("large", &"0".repeat(1 << 20)), file("never", "")]);
        let result = unpack(Cursor::new(archive), &root, &Limits::default(), format, &stop);
        assert!(matches!(result, Err(UnpackError::Stopped)), "{format:?}: {result:?}");
        assert!(!place.root().join("never").exists());
    }
}
