//! Headers of zip archives (PKWARE's APPNOTE, sections 4.3.7 and 4.3.12 to 4.3.16).

use time::OffsetDateTime;

const LOCAL_HEADER: u32 = 0x0403_4b50;
const DIRECTORY_HEADER: u32 = 0x0201_4b50;
const END64: u32 = 0x0606_4b50;
const END64_LOCATOR: u32 = 0x0706_4b50;
const END: u32 = 0x0605_4b50;
/// Size of the record [`END64`] without its magic and size field.
const END64_REST_BYTES: u64 = 44;
/// ID of the field with 64-bit sizes.
const SIZES_64: u16 = 0x0001;
/// ID of the field with the modification time in Unix seconds.
const UNIX_TIME: u16 = 0x5455;
/// Flag for a UTF-8 name.
const UTF8_NAME: u16 = 1 << 11;
/// Host system of entries with Unix modes.
const UNIX: u16 = 3;
/// Version for directories and deflate.
const NEEDS_20: u16 = 20;
/// Version for 64-bit sizes.
const NEEDS_45: u16 = 45;
/// Version for zstd.
const NEEDS_63: u16 = 63;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Method {
    Stored = 0,
    Deflate = 8,
    Zstd = 93,
}

#[derive(Debug, Clone)]
pub(super) struct Record {
    /// Name, which ends with `/` for a directory.
    pub(super) name: String,
    pub(super) mode: u32,
    /// Modification time in Unix seconds.
    pub(super) modified: i64,
    /// Whether the local header has 64-bit sizes.
    pub(super) is_large: bool,
    pub(super) method: Method,
    pub(super) crc: u32,
    pub(super) packed: u64,
    pub(super) unpacked: u64,
}

impl Record {
    /// Returns the header before the content.
    pub(super) fn local_header(&self) -> Vec<u8> {
        let (mut header, mut extra) = (Fields::default(), Fields::default());
        let size = |size: u64| if self.is_large { u32::MAX } else { u32::try_from(size).unwrap_or(u32::MAX) };
        if self.is_large {
            extra.u16(SIZES_64).u16(16).u64(self.unpacked).u64(self.packed);
        }
        self.add_time(&mut extra);
        let (time, date) = dos_time(self.modified);
        header.u32(LOCAL_HEADER).u16(self.needs()).u16(self.flags()).u16(self.method as u16).u16(time).u16(date);
        header.u32(self.crc).u32(size(self.packed)).u32(size(self.unpacked));
        header.length(self.name.len()).length(extra.0.len()).bytes(self.name.as_bytes()).bytes(&extra.0);
        header.0
    }

    /// Appends the header to the central directory. `offset` is the position of the local header.
    pub(super) fn add_to_directory(&self, directory: &mut Vec<u8>, offset: u64) {
        let (mut header, mut large, mut extra) = (Fields::default(), Fields::default(), Fields::default());
        let mut size = |size: u64| match u32::try_from(size) {
            Ok(size) if size < u32::MAX => size,
            _ => {
                large.u64(size);
                u32::MAX
            }
        };
        let (unpacked, packed, offset) = (size(self.unpacked), size(self.packed), size(offset));
        if !large.0.is_empty() {
            extra.u16(SIZES_64).length(large.0.len()).bytes(&large.0);
        }
        self.add_time(&mut extra);
        let (time, date) = dos_time(self.modified);
        header.u32(DIRECTORY_HEADER).u16(UNIX << 8 | NEEDS_63).u16(self.needs()).u16(self.flags());
        header.u16(self.method as u16).u16(time).u16(date).u32(self.crc).u32(packed).u32(unpacked);
        // Comment, disk number and internal attributes are 0.
        header.length(self.name.len()).length(extra.0.len()).u16(0).u16(0).u16(0);
        header.u32(self.mode << 16).u32(offset).bytes(self.name.as_bytes()).bytes(&extra.0);
        directory.extend(header.0);
    }

    fn add_time(&self, extra: &mut Fields) {
        if let Ok(seconds) = i32::try_from(self.modified) {
            extra.u16(UNIX_TIME).u16(5).bytes(&[1]).bytes(&seconds.to_le_bytes());
        }
    }

    fn flags(&self) -> u16 {
        if self.name.is_ascii() { 0 } else { UTF8_NAME }
    }

    fn needs(&self) -> u16 {
        match self.method {
            Method::Zstd => NEEDS_63,
            Method::Stored | Method::Deflate if self.is_large => NEEDS_45,
            Method::Stored | Method::Deflate => NEEDS_20,
        }
    }
}

/// Returns the records after a directory of `bytes` bytes at `offset`.
pub(super) fn end(entries: u64, bytes: u64, offset: u64) -> Vec<u8> {
    let mut end = Fields::default();
    let is_small = u16::try_from(entries).is_ok_and(|entries| entries < u16::MAX)
        && [bytes, offset].into_iter().all(|value| value < u64::from(u32::MAX));
    if !is_small {
        end.u32(END64).u64(END64_REST_BYTES).u16(UNIX << 8 | NEEDS_63).u16(NEEDS_45).u32(0).u32(0);
        end.u64(entries).u64(entries).u64(bytes).u64(offset);
        end.u32(END64_LOCATOR).u32(0).u64(offset + bytes).u32(1);
    }
    let entries = u16::try_from(entries).unwrap_or(u16::MAX);
    let field = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    end.u32(END).u16(0).u16(0).u16(entries).u16(entries).u32(field(bytes)).u32(field(offset)).u16(0);
    end.0
}

/// Little-endian fields of a record.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a length. It fits into 16 bits, because names are paths of Linux, which are shorter than 4096 bytes.
    fn length(&mut self, length: usize) -> &mut Self {
        self.u16(u16::try_from(length).unwrap_or(u16::MAX))
    }
}

/// Returns time and date as in MS-DOS, in UTC. Times outside of 1980 to 2107 become the nearest valid time.
fn dos_time(unix_seconds: i64) -> (u16, u16) {
    let time = |hour: u16, minute: u16, second: u16| (hour << 11) | (minute << 5) | (second / 2);
    let date = |year: u16, month: u16, day: u16| (year << 9) | (month << 5) | day;
    let first = (0, date(0, 1, 1));
    let last = (time(23, 59, 58), date(127, 12, 31));
    let Ok(at) = OffsetDateTime::from_unix_timestamp(unix_seconds) else {
        return if unix_seconds < 0 { first } else { last };
    };
    match u16::try_from(at.year() - 1980) {
        Ok(year @ 0..=127) => (
            time(at.hour().into(), at.minute().into(), at.second().into()),
            date(year, u8::from(at.month()).into(), at.day().into()),
        ),
        Ok(_) => last,
        Err(_) => first,
    }
}
