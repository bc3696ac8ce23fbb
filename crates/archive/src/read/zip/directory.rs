//! The central directory of a zip archive (PKWARE's APPNOTE, sections 4.3.12 to 4.3.16).
//!
//! The numbers in the end record are checked before any header is read. Local headers are used only to find contents.

use std::io::{self, Read, Seek, SeekFrom};

use filetime::FileTime;
use time::{Date, Month, PrimitiveDateTime, Time};

use super::broken;
use crate::UnpackError;
use crate::meter::Meter;

const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
/// Maximum length of the comment after the end record in bytes.
const MAX_COMMENT: u64 = 65_535;
const END64_LOCATOR: &[u8] = b"PK\x06\x07";
const END64_LOCATOR_BYTES: u8 = 20;
const END64: &[u8] = b"PK\x06\x06";
const END64_BYTES: usize = 56;
const HEADER: &[u8] = b"PK\x01\x02";
const HEADER_BYTES: usize = 46;
const CHUNK: u64 = 64 * 1024;
/// ID of the field with 64-bit sizes.
const SIZES_64: u16 = 0x0001;
/// ID of the field with the Unix time in seconds.
const UNIX_TIME: u16 = 0x5455;

/// Returns an error about a violation of the format.
pub(super) fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Reads little-endian fields of a record.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u16(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[derive(Debug)]
pub(crate) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) is_encrypted: bool,
    pub(super) method: u16,
    pub(super) crc: u32,
    pub(super) packed: u64,
    pub(crate) unpacked: u64,
    /// Position of the local header before the content.
    pub(super) offset: u64,
    pub(super) mode: Option<u32>,
    pub(super) modified: Option<FileTime>,
}

struct EndRecord {
    entries: u64,
    /// Size of the directory in bytes.
    size: u64,
    /// Position of the directory, relative to the archive.
    offset: u64,
    /// Position after the directory, relative to the file.
    at: u64,
}

/// Headers that are still to be read.
pub(super) struct Directory {
    entries: u64,
    /// Position after `chunk`.
    at: u64,
    /// Number of bytes of the directory from `at` on.
    unread: u64,
    chunk: Vec<u8>,
    /// Number of returned bytes of `chunk`.
    used: usize,
    /// Number of bytes before the archive, such as a self-extracting program.
    base: u64,
}

impl Directory {
    /// Finds the directory, and checks its declared size and number of entries.
    pub(super) fn open<R: Read + Seek>(archive: &mut R, meter: &Meter<'_>) -> Result<Self, UnpackError> {
        let end = find_end(archive).map_err(broken)?;
        meter.check_zip_directory(end.entries, end.size)?;
        let start = end.at.checked_sub(end.size);
        let base = start.and_then(|start| start.checked_sub(end.offset));
        let (Some(start), Some(base)) = (start, base) else {
            return Err(broken(invalid("the size or the position of the zip directory does not match the file")));
        };
        Ok(Self { entries: end.entries, at: start, unread: end.size, chunk: Vec::new(), used: 0, base })
    }

    /// Returns the next header, if there is one.
    pub(super) fn next<R: Read + Seek>(&mut self, archive: &mut R) -> io::Result<Option<Header>> {
        let Some(entries) = self.entries.checked_sub(1) else { return Ok(None) };
        self.entries = entries;
        let mut fixed = Fields(self.take(archive, HEADER_BYTES)?);
        if fixed.bytes(HEADER.len())? != HEADER {
            return Err(invalid("a header of the zip directory is damaged"));
        }
        let made_by = fixed.u16()?;
        let _needed = fixed.u16()?;
        let (flags, method, time, date) = (fixed.u16()?, fixed.u16()?, fixed.u16()?, fixed.u16()?);
        let (crc, packed, unpacked) = (fixed.u32()?, fixed.u32()?, fixed.u32()?);
        let (name, extra, comment) = (fixed.u16()?, fixed.u16()?, fixed.u16()?);
        let _disk_and_attributes = fixed.u32()?;
        let (attributes, offset) = (fixed.u32()?, fixed.u32()?);
        let mut header = Header {
            name: self.take(archive, name.into())?.to_vec(),
            is_encrypted: flags & 1 != 0,
            method,
            crc,
            packed: packed.into(),
            unpacked: unpacked.into(),
            offset: offset.into(),
            mode: mode(made_by >> 8, attributes),
            modified: dos_time(date, time),
        };
        // A damaged extra field is ignored.
        let _ = header.read_extra(Fields(self.take(archive, extra.into())?));
        self.take(archive, comment.into())?;
        header.offset = header
            .offset
            .checked_add(self.base)
            .ok_or_else(|| invalid("the offset of an entry is beyond the end of the file"))?;
        Ok(Some(header))
    }

    fn take<R: Read + Seek>(&mut self, archive: &mut R, length: usize) -> io::Result<&[u8]> {
        let missing = (length as u64).saturating_sub((self.chunk.len() - self.used) as u64);
        if missing > self.unread {
            return Err(invalid("the zip directory ends before its last entry"));
        }
        if missing > 0 {
            self.chunk.drain(..self.used);
            self.used = 0;
            let more = missing.max(CHUNK).min(self.unread);
            archive.seek(SeekFrom::Start(self.at))?;
            let read = archive.take(more).read_to_end(&mut self.chunk)? as u64;
            (self.at, self.unread) = (self.at + read, self.unread - read);
            if read < missing {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let start = self.used;
        self.used += length;
        self.chunk.get(start..self.used).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Header {
    fn read_extra(&mut self, mut extra: Fields<'_>) -> io::Result<()> {
        while !extra.0.is_empty() {
            let (kind, length) = (extra.u16()?, extra.u16()?);
            let mut field = Fields(extra.bytes(length.into())?);
            match kind {
                SIZES_64 => {
                    for size in [&mut self.unpacked, &mut self.packed, &mut self.offset] {
                        // The field contains only sizes that exceed 32 bits.
                        if *size == u64::from(u32::MAX) {
                            *size = field.u64()?;
                        }
                    }
                }
                UNIX_TIME if field.bytes(1)?.first().is_some_and(|flags| flags & 1 != 0) => {
                    let seconds = field.u32()?.cast_signed();
                    self.modified = Some(FileTime::from_unix_time(seconds.into(), 0));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Finds the end record: the last one whose comment fits into the file.
fn find_end<R: Read + Seek>(archive: &mut R) -> io::Result<EndRecord> {
    let size = archive.seek(SeekFrom::End(0))?;
    let start = size.saturating_sub(END_BYTES as u64 + MAX_COMMENT);
    let mut tail = Vec::new();
    archive.seek(SeekFrom::Start(start))?;
    archive.take(size - start).read_to_end(&mut tail)?;
    for at in (0..tail.len().saturating_sub(END_BYTES - 1)).rev() {
        let record = tail.get(at..).unwrap_or_default();
        if !record.starts_with(END) {
            continue;
        }
        let mut fields = Fields(record.get(END.len()..).unwrap_or_default());
        let (disk, directory_disk, _) = (fields.u16()?, fields.u16()?, fields.u16()?);
        let (entries, size, offset) = (fields.u16()?, fields.u32()?, fields.u32()?);
        let comment = fields.u16()?;
        if fields.bytes(comment.into()).is_err() {
            continue;
        }
        let end =
            EndRecord { entries: entries.into(), size: size.into(), offset: offset.into(), at: start + at as u64 };
        if entries == u16::MAX || size == u32::MAX || offset == u32::MAX {
            return read_end64(archive, end.at).map(|end64| end64.unwrap_or(end));
        }
        if disk != directory_disk {
            return Err(invalid("zip archives that are split into several files are not supported"));
        }
        return Ok(end);
    }
    Err(invalid("the archive has no zip directory at its end"))
}

/// Reads the zip64 end record for the end record at `end`, if there is one.
fn read_end64<R: Read + Seek>(archive: &mut R, end: u64) -> io::Result<Option<EndRecord>> {
    let Some(locator) = end.checked_sub(END64_LOCATOR_BYTES.into()) else { return Ok(None) };
    let mut bytes = [0; END64_LOCATOR_BYTES as usize];
    archive.seek(SeekFrom::Start(locator))?;
    archive.read_exact(&mut bytes)?;
    let mut fields = Fields(&bytes);
    if fields.bytes(END64_LOCATOR.len())? != END64_LOCATOR {
        return Ok(None);
    }
    let _disk = fields.u32()?;
    let at = fields.u64()?;
    let mut bytes = [0; END64_BYTES];
    archive.seek(SeekFrom::Start(at))?;
    archive.read_exact(&mut bytes)?;
    let mut fields = Fields(&bytes);
    if fields.bytes(END64.len())? != END64 {
        return Err(invalid("the end of the zip64 directory is damaged"));
    }
    // Skips size, versions, disk numbers, and the number of entries on this disk.
    fields.bytes(28)?;
    Ok(Some(EndRecord { entries: fields.u64()?, size: fields.u64()?, offset: fields.u64()?, at }))
}

/// Returns the mode of a file. The meaning of the attributes depends on the system of the program that wrote them.
fn mode(system: u16, attributes: u32) -> Option<u32> {
    match (system, attributes) {
        (_, 0) => None,
        // Unix and macOS
        (3 | 19, _) => Some(attributes >> 16),
        // MS-DOS, Windows and VFAT: bit 4 means a directory, bit 0 a read-only file.
        (0 | 10 | 14, _) => {
            let mode = if attributes & 0x10 == 0 { 0o100_644 } else { 0o040_755 };
            Some(if attributes & 1 == 0 { mode } else { mode & !0o222 })
        }
        _ => None,
    }
}

/// Converts a time of MS-DOS, as UTC.
fn dos_time(date: u16, time: u16) -> Option<FileTime> {
    let bits = |from: u16, shift: u32, count: u32| u8::try_from((from >> shift) & ((1 << count) - 1)).ok();
    let year = 1980 + i32::from(date >> 9);
    let date = Date::from_calendar_date(year, Month::try_from(bits(date, 5, 4)?).ok()?, bits(date, 0, 5)?).ok()?;
    let time = Time::from_hms(bits(time, 11, 5)?, bits(time, 5, 6)?, bits(time, 0, 5)? * 2).ok()?;
    let seconds = PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp();
    Some(FileTime::from_unix_time(seconds, 0))
}
