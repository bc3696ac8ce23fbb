//! Zip archives whose central directory would exhaust memory or time.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

use super::*;

/// Maximum number of bytes to read before an archive is rejected: its end and a few headers.
const FEW_BYTES: u64 = 256 * 1024;

/// A large file of repeated parts, which counts the bytes that are read.
struct RepeatedFile {
    parts: Vec<(Vec<u8>, u64)>,
    at: u64,
    read: Rc<Cell<u64>>,
}

impl RepeatedFile {
    fn new(parts: Vec<(Vec<u8>, u64)>) -> Self {
        Self { parts, at: 0, read: Rc::default() }
    }

    fn size(&self) -> u64 {
        self.parts.iter().map(|(bytes, times)| bytes.len() as u64 * times).sum()
    }
}

impl Read for RepeatedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut start = 0;
        for (bytes, times) in &self.parts {
            let (length, end) = (bytes.len() as u64, start + bytes.len() as u64 * times);
            if self.at < end {
                let within = usize::try_from((self.at - start) % length).unwrap();
                let read = (bytes.len() - within).min(buffer.len());
                buffer[..read].copy_from_slice(&bytes[within..within + read]);
                self.at += read as u64;
                self.read.set(self.read.get() + read as u64);
                return Ok(read);
            }
            start = end;
        }
        Ok(0)
    }
}

impl Seek for RepeatedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.size().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Returns a header of the central directory for a stored file.
fn central_header(name: &str, size: u32, offset: u32) -> Vec<u8> {
    let mut header = b"PK\x01\x02\x14\x03\x14\0\0\0\0\0\0\0\x21\x58".to_vec();
    header.extend([0; 4]);
    header.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
    header.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
    header.extend([0; 8]);
    header.extend((0o100_644_u32 << 16).to_le_bytes());
    header.extend(offset.to_le_bytes());
    header.extend(name.as_bytes());
    header
}

/// Returns the header before the content of a stored file.
fn local_header(name: &str, size: u32) -> Vec<u8> {
    let mut header = b"PK\x03\x04\x14\0\0\0\0\0\0\0\x21\x58".to_vec();
    header.extend([0; 4]);
    header.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
    header.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
    header.extend([0; 2]);
    header.extend(name.as_bytes());
    header
}

fn end_record(entries: u16, directory: u32, offset: u32) -> Vec<u8> {
    let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
    end.extend([entries.to_le_bytes(), entries.to_le_bytes()].concat());
    end.extend([directory.to_le_bytes(), offset.to_le_bytes()].concat());
    end.extend([0; 2]);
    end
}

/// Returns the end records of zip64. `at` is the offset of the first one.
fn end_records_64(entries: u64, directory: u64, offset: u64, at: u64) -> Vec<u8> {
    let mut end_records_64 = b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0".to_vec();
    end_records_64.extend([entries, entries, directory, offset].map(u64::to_le_bytes).concat());
    end_records_64.extend(b"PK\x06\x07\0\0\0\0");
    end_records_64.extend(at.to_le_bytes());
    end_records_64.extend(1_u32.to_le_bytes());
    end_records_64.extend(end_record(u16::MAX, u32::MAX, u32::MAX));
    end_records_64
}

/// Asserts that an archive is rejected. Returns the error and the number of bytes that were read.
fn unpack_error(archive: RepeatedFile, limits: &Limits) -> (UnpackError, u64) {
    let read = Rc::clone(&archive.read);
    let meter = Meter::new(*limits, &|| false);
    let result = super::read(archive, Format::Zip, &meter, &mut |_, content| {
        std::io::copy(content, &mut std::io::sink()).map(drop).map_err(UnpackError::Broken)
    });
    let error = result.unwrap_err();
    (error, read.get())
}

#[test]
fn a_zip_directory_with_too_many_headers_is_rejected_before_it_is_read() {
    for name in ["", "n"] {
        let header = central_header(name, 0, 0);
        let (count, length) = (5_000_000, header.len() as u64);
        let tail = end_records_64(count, count * length, 0, count * length);
        let archive = RepeatedFile::new(vec![(header, count), (tail, 1)]);
        let (error, read) = unpack_error(archive, &Limits::default());
        assert_eq!(error.to_string(), "the archive has more than 2000000 entries");
        assert!(read <= FEW_BYTES, "{read} bytes were read");
    }
}

#[test]
fn a_zip_directory_with_too_many_bytes_is_rejected_before_it_is_read() {
    let header = central_header(&"n".repeat(60_000), 0, 0);
    let (count, length) = (10_000, header.len() as u64);
    let tail = end_records_64(count, count * length, 0, count * length);
    let (error, read) = unpack_error(RepeatedFile::new(vec![(header, count), (tail, 1)]), &Limits::default());
    assert_eq!(error.to_string(), "the archive has more than 268435456 bytes of headers; it may be damaged");
    assert!(read <= FEW_BYTES, "{read} bytes were read");
}

#[test]
fn no_memory_is_allocated_for_claimed_entries_that_do_not_exist() {
    // The archive has more bytes than claimed entries, so a comparison of both numbers would not reveal the lie.
    let header = central_header("n", 0, 0);
    let (zeros, length) = (1 << 40, header.len() as u64);
    let count = (1 << 40) - 1;
    let tail = end_records_64(count, length, zeros, zeros + length);
    let archive = RepeatedFile::new(vec![(vec![0; 1 << 20], 1 << 20), (header, 1), (tail, 1)]);
    let (error, read) = unpack_error(archive, &Limits { entries: u64::MAX, ..Limits::default() });
    assert!(matches!(&error, UnpackError::Broken(_)), "{error:?}");
    assert!(read <= FEW_BYTES, "{read} bytes were read");
}

#[test]
fn an_archive_full_of_end_records_is_not_searched_completely() {
    // Each of these end records could be the valid one, and each points to a different directory.
    let record = [central_header("n", 0, u32::MAX), end_record(2, 94, 0)].concat();
    let archive = RepeatedFile::new(vec![(record, 2_000_000), (vec![1], 1)]);
    let (error, read) = unpack_error(archive, &Limits::default());
    assert!(matches!(&error, UnpackError::Broken(_)), "{error:?}");
    assert!(read <= FEW_BYTES, "{read} bytes were read");
}

#[test]
fn entries_are_unpacked_before_all_headers_are_read() {
    // Memory must not grow with the number of entries.
    let (first, header) = (local_header("n", 0), central_header("n", 0, 0));
    let (count, length, offset) = (1_000_000, header.len() as u64, first.len() as u64);
    let tail = end_records_64(count, count * length, offset, offset + count * length);
    let archive = RepeatedFile::new(vec![(first, 1), (header, count), (tail, 1)]);
    let read = Rc::clone(&archive.read);
    let mut visited = 0;
    let result = crate::read(archive, Format::Zip, &Meter::new(Limits::default(), &|| false), &mut |entry, _| {
        visited += 1;
        assert_eq!(entry.path, Path::new("n"));
        if visited < 3 { Ok(()) } else { Err(UnpackError::Stopped) }
    });
    assert!(matches!(&result, Err(UnpackError::Stopped)), "{result:?}");
    assert!(read.get() <= FEW_BYTES, "{} bytes were read", read.get());
}

/// Returns an archive: contents, directory and end record.
fn archive(contents: &[u8], headers: &[Vec<u8>]) -> Vec<u8> {
    let (count, directory) = (u16::try_from(headers.len()).unwrap(), headers.concat());
    let offset = u32::try_from(contents.len()).unwrap();
    [contents, &directory, &end_record(count, u32::try_from(directory.len()).unwrap(), offset)].concat()
}

#[test]
fn each_entry_that_shares_content_is_counted() {
    // A zip bomb: many headers refer to the same bytes.
    let content = [local_header("n", 50_000), vec![0; 50_000]].concat();
    let crc = crc_of(&[0; 50_000]);
    let headers: Vec<Vec<u8>> = (0..9).map(|n| with_crc(central_header(&n.to_string(), 50_000, 0), crc)).collect();
    let limits = Limits { bytes: 400_000, ..Limits::default() };
    let sandbox = Sandbox::new();
    let error = sandbox.unpack(Format::Zip, &archive(&content, &headers), &limits).unwrap_err();
    assert_eq!(error.to_string(), "the archive unpacks to more than 400000 bytes");
    let on_disk: u64 = children(&sandbox.root()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(on_disk <= limits.bytes, "{on_disk}");
    Sandbox::new().unpack(Format::Zip, &archive(&content, &headers[..8]), &limits).unwrap();
}

#[test]
fn names_are_read_from_the_directory_and_contents_must_match_it() {
    let content = [local_header("../canary/keys", 4), b"evil".to_vec()].concat();
    let good = with_crc(central_header("name", 4, 0), crc_of(b"evil"));
    let sandbox = Sandbox::new();
    sandbox.unpack_checked(Format::Zip, &archive(&content, std::slice::from_ref(&good))).unwrap();
    assert_eq!(sandbox.inside(), ["name: evil"]);
    let longer = with_crc(central_header("name", 5, 0), crc_of(b"evil"));
    // Byte 8 of a header has the flags, and byte 10 the method.
    let mut encrypted = good.clone();
    encrypted[8] = 1;
    let mut unknown_method = good.clone();
    unknown_method[10] = 12;
    let beyond_end = with_crc(central_header("name", 4, u32::MAX - 1), 0);
    for wrong in [central_header("name", 4, 0), longer, encrypted, unknown_method, beyond_end] {
        let error = Sandbox::new().unpack_checked(Format::Zip, &archive(&content, &[wrong])).unwrap_err();
        assert!(matches!(&error, UnpackError::Broken(_)), "{error:?}");
    }
    // End records that claim more entries than exist, a directory that is larger than the file, or one that begins after
    // the end of the file.
    for wrong in [end_record(2, 50, 48), end_record(1, 1 << 20, 0), end_record(1, 50, 1 << 20)] {
        let bytes = [content.clone(), good.clone(), wrong].concat();
        let error = Sandbox::new().unpack_checked(Format::Zip, &bytes).unwrap_err();
        assert!(matches!(&error, UnpackError::Broken(_)), "{error:?}");
    }
}

/// Small entries are inflated in memory, and large ones as a stream.
#[test]
fn deflated_content_must_match_its_header() {
    for size in [8_u32, 5000, 3 << 20] {
        let content = b"content ".repeat(1 << 20)[..size as usize].to_vec();
        let mut deflated = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        deflated.write_all(&content).unwrap();
        let deflated = deflated.finish().unwrap();
        let (packed, crc) = (u32::try_from(deflated.len()).unwrap(), crc_of(&content));
        let unpack = |deflated: &[u8], packed: u32, size: u32, crc: u32| {
            let mut header = with_crc(central_header("name", size, 0), crc);
            header[10] = 8;
            header[20..24].copy_from_slice(&packed.to_le_bytes());
            let bytes = archive(&[local_header("name", size), deflated.to_vec()].concat(), &[header]);
            let sandbox = Sandbox::new();
            let result = sandbox.unpack(Format::Zip, &bytes, &Limits::default());
            (result, fs::read(sandbox.root().join("name")).ok())
        };
        let (good, written) = unpack(&deflated, packed, size, crc);
        good.unwrap();
        assert!(written.unwrap() == content, "{size}");
        let mut damaged = deflated.clone();
        // Set a block type that does not exist.
        damaged[0] |= 0b110;
        for (deflated, packed, declared, crc) in [
            (&damaged, packed, size, crc),
            (&deflated, packed - 1, size, crc),
            (&deflated, packed, size + 1, crc),
            (&deflated, packed, size - 1, crc_of(&content[..content.len() - 1])),
            (&deflated, packed, size, crc + 1),
        ] {
            let (result, left) = unpack(deflated, packed, declared, crc);
            assert!(matches!(&result, Err(UnpackError::Broken(_))), "{size} {packed} {declared}: {result:?}");
            assert!(left.is_none(), "{size} {packed} {declared}: no part of the file may be left");
        }
    }
}

fn with_crc(mut header: Vec<u8>, crc: u32) -> Vec<u8> {
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    header
}

fn crc_of(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[test]
fn similar_names_denote_different_files() {
    // Names are bytes, without case folding, normalization or decoding.
    for (format, archive) in FORMATS {
        let sandbox = Sandbox::new();
        let names = ["A", "a", "e\u{301}", "\u{e9}", "\u{ff0e}\u{ff0e}", "\u{202e}txt"];
        let items: Vec<Item> =
            names.iter().map(|name| file(name, name)).chain([link("L", ".."), file("l", "")]).collect();
        assert_eq!(sandbox.unpack_checked(format, &archive(&items)).unwrap(), [""; 0], "{format:?}");
        assert_eq!(sandbox.inside().len(), names.len() + 2, "{format:?}");
    }
}

#[test]
fn an_invalid_pax_size_does_not_create_a_large_file() {
    for size in ["18446744073709551615", "9223372036854775808", "1099511627776", "-1"] {
        let record = format!("size={size}\n");
        let length = record.len() + 3;
        let items =
            [item(EntryType::XHeader, "x", &format!("{length} {record}")), file("name", "x"), file("never", "")];
        let sandbox = Sandbox::new();
        let result = sandbox.unpack_checked(Format::Tar, &tar(&items));
        let is_small = fs::metadata(sandbox.root().join("name")).is_ok_and(|found| found.len() <= 4096);
        assert!(result.is_err() || is_small, "{size}: {result:?}");
    }
}
