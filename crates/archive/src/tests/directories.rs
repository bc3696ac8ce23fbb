//! Zip archives whose central directory is built to fill the memory or to take long.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

use super::*;

/// Maximum number of bytes to read from an archive that is refused before its entries are read.
///
/// Enough for the end of the file and a few headers.
const FEW_BYTES: u64 = 256 * 1024;

/// A large file that consists of repeated parts, each of which is in memory once. Counts the bytes that are read.
struct Large {
    parts: Vec<(Vec<u8>, u64)>,
    at: u64,
    read: Rc<Cell<u64>>,
}

impl Large {
    fn new(parts: Vec<(Vec<u8>, u64)>) -> Self {
        Self { parts, at: 0, read: Rc::default() }
    }

    fn size(&self) -> u64 {
        self.parts.iter().map(|(bytes, times)| bytes.len() as u64 * times).sum()
    }
}

impl Read for Large {
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

impl Seek for Large {
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

/// The header of a stored file in the central directory.
fn central(name: &str, size: u32, offset: u32) -> Vec<u8> {
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

/// The header before the content of a stored file.
fn local(name: &str, size: u32) -> Vec<u8> {
    let mut header = b"PK\x03\x04\x14\0\0\0\0\0\0\0\x21\x58".to_vec();
    header.extend([0; 4]);
    header.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
    header.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
    header.extend([0; 2]);
    header.extend(name.as_bytes());
    header
}

/// The record at the end of an archive.
fn end(entries: u16, directory: u32, offset: u32) -> Vec<u8> {
    let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
    end.extend([entries.to_le_bytes(), entries.to_le_bytes()].concat());
    end.extend([directory.to_le_bytes(), offset.to_le_bytes()].concat());
    end.extend([0; 2]);
    end
}

/// The records at the end of an archive with 64-bit numbers (zip64). `at` is the offset of the first.
fn end64(entries: u64, directory: u64, offset: u64, at: u64) -> Vec<u8> {
    let mut end64 = b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0".to_vec();
    end64.extend([entries, entries, directory, offset].map(u64::to_le_bytes).concat());
    end64.extend(b"PK\x06\x07\0\0\0\0");
    end64.extend(at.to_le_bytes());
    end64.extend(1_u32.to_le_bytes());
    end64.extend(end(u16::MAX, u32::MAX, u32::MAX));
    end64
}

/// Unpacks an archive that is refused. Returns the error and the number of bytes that were read.
fn refused(archive: Large, limits: &Limits) -> (UnpackError, u64) {
    let place = Place::new();
    let root = place.open_root();
    let read = Rc::clone(&archive.read);
    let error = unpack(archive, &root, limits, Format::Zip, &|| false).unwrap_err();
    assert_eq!(place.inside(), [""; 0]);
    (error, read.get())
}

#[test]
fn a_directory_of_millions_of_headers_is_refused_before_it_is_read() {
    for name in ["", "n"] {
        let header = central(name, 0, 0);
        let (count, length) = (5_000_000, header.len() as u64);
        let tail = end64(count, count * length, 0, count * length);
        let archive = Large::new(vec![(header, count), (tail, 1)]);
        let (error, read) = refused(archive, &Limits::default());
        assert_eq!(error.to_string(), "the archive has more than 2000000 entries");
        assert!(read <= FEW_BYTES, "{read} bytes were read");
    }
}

#[test]
fn a_directory_of_too_many_bytes_is_refused_before_it_is_read() {
    let header = central(&"n".repeat(60_000), 0, 0);
    let (count, length) = (10_000, header.len() as u64);
    let tail = end64(count, count * length, 0, count * length);
    let (error, read) = refused(Large::new(vec![(header, count), (tail, 1)]), &Limits::default());
    assert_eq!(error.to_string(), "the archive has more than 268435456 bytes of headers; it may be damaged");
    assert!(read <= FEW_BYTES, "{read} bytes were read");
}

#[test]
fn no_memory_is_taken_for_entries_that_are_only_claimed() {
    // A sparse file of one tebibyte uses no disk space, and is large enough for the claimed number of entries.
    let header = central("n", 0, 0);
    let (zeros, length) = (1 << 40, header.len() as u64);
    let count = (1 << 40) - 1;
    let tail = end64(count, length, zeros, zeros + length);
    let archive = Large::new(vec![(vec![0; 1 << 20], 1 << 20), (header, 1), (tail, 1)]);
    let (error, read) = refused(archive, &Limits { entries: u64::MAX, ..Limits::default() });
    assert!(matches!(&error, UnpackError::Broken(_)), "{error:?}");
    assert!(read <= FEW_BYTES, "{read} bytes were read");
}

#[test]
fn an_archive_of_end_records_is_not_searched_from_end_to_end() {
    // Each of these end records could be the valid one, and each points to a different directory.
    let record = [central("n", 0, u32::MAX), end(2, 94, 0)].concat();
    let archive = Large::new(vec![(record, 2_000_000), (vec![1], 1)]);
    let (error, read) = refused(archive, &Limits::default());
    assert!(matches!(&error, UnpackError::Broken(_)), "{error:?}");
    assert!(read <= FEW_BYTES, "{read} bytes were read");
}

#[test]
fn entries_are_unpacked_before_all_headers_are_read() {
    // What is in memory does not grow with the number of entries.
    let (first, header) = (local("n", 0), central("n", 0, 0));
    let (count, length, offset) = (1_000_000, header.len() as u64, first.len() as u64);
    let tail = end64(count, count * length, offset, offset + count * length);
    let archive = Large::new(vec![(first, 1), (header, count), (tail, 1)]);
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

/// One archive of stored files: the parts before the directory, the directory, and the end.
fn archive(contents: &[u8], headers: &[Vec<u8>]) -> Vec<u8> {
    let (count, directory) = (u16::try_from(headers.len()).unwrap(), headers.concat());
    let offset = u32::try_from(contents.len()).unwrap();
    [contents, &directory, &end(count, u32::try_from(directory.len()).unwrap(), offset)].concat()
}

#[test]
fn entries_that_share_one_content_are_counted_each() {
    // A zip bomb without nesting: many headers in the directory refer to the same bytes.
    let content = [local("n", 50_000), vec![0; 50_000]].concat();
    let crc = crc_of(&[0; 50_000]);
    let headers: Vec<Vec<u8>> = (0..9).map(|n| with_crc(central(&n.to_string(), 50_000, 0), crc)).collect();
    let limits = Limits { bytes: 400_000, ..Limits::default() };
    let place = Place::new();
    let error = place.unpack(Format::Zip, &archive(&content, &headers), &limits).unwrap_err();
    assert_eq!(error.to_string(), "the archive unpacks to more than 400000 bytes");
    let on_disk: u64 = children(&place.root()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(on_disk <= limits.bytes, "{on_disk}");
    Place::new().unpack(Format::Zip, &archive(&content, &headers[..8]), &limits).unwrap();
}

#[test]
fn the_directory_alone_names_an_entry_and_its_content_must_be_the_one_that_it_says() {
    let content = [local("../canary/keys", 4), b"evil".to_vec()].concat();
    let good = with_crc(central("name", 4, 0), crc_of(b"evil"));
    let place = Place::new();
    place.attack(Format::Zip, &archive(&content, std::slice::from_ref(&good))).unwrap();
    assert_eq!(place.inside(), ["name: evil"]);
    let longer = with_crc(central("name", 5, 0), crc_of(b"evil"));
    let mut encrypted = good.clone();
    encrypted[8] = 1;
    let mut method = good.clone();
    method[10] = 12;
    let behind = with_crc(central("name", 4, u32::MAX - 1), 0);
    for wrong in [central("name", 4, 0), longer, encrypted, method, behind] {
        let error = Place::new().attack(Format::Zip, &archive(&content, &[wrong])).unwrap_err();
        assert!(matches!(&error, UnpackError::Broken(_)), "{error:?}");
    }
    // End records that claim more entries than exist, or a directory that is larger than the file.
    for wrong in [end(2, 50, 48), end(1, 1 << 20, 0), end(1, 50, 1 << 20)] {
        let bytes = [content.clone(), good.clone(), wrong].concat();
        let error = Place::new().attack(Format::Zip, &bytes).unwrap_err();
        assert!(matches!(&error, UnpackError::Broken(_)), "{error:?}");
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
fn names_that_are_alike_are_names_of_their_own() {
    // On Linux names are bytes: nothing is folded, composed or decoded.
    for (format, archive) in FORMATS {
        let place = Place::new();
        let names = ["A", "a", "e\u{301}", "\u{e9}", "\u{ff0e}\u{ff0e}", "\u{202e}txt"];
        let items: Vec<Item> =
            names.iter().map(|name| file(name, name)).chain([link("L", ".."), file("l", "")]).collect();
        assert_eq!(place.attack(format, &archive(&items)).unwrap(), [""; 0], "{format:?}");
        assert_eq!(place.inside().len(), names.len() + 2, "{format:?}");
    }
}

#[test]
fn a_pax_size_that_is_larger_than_the_archive_ends_it() {
    for size in ["18446744073709551615", "9223372036854775808", "1099511627776", "-1"] {
        let record = format!("size={size}\n");
        let length = record.len() + 3;
        let items =
            [item(EntryType::XHeader, "x", &format!("{length} {record}")), file("name", "x"), file("never", "")];
        let place = Place::new();
        let result = place.attack(Format::Tar, &tar(&items));
        let is_small = fs::metadata(place.root().join("name")).is_ok_and(|found| found.len() <= 4096);
        assert!(result.is_err() || is_small, "{size}: {result:?}");
    }
}
