//! Reads contents of entries, independently of other threads.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use libdeflater::{DecompressionError, Decompressor, crc32};

use super::content::{DAMAGED, DEFLATE, LARGER, LOCAL_HEADER_BYTES, STORED, content, content_offset};
use super::directory::{Header, invalid};
use crate::meter::{Content, Meter, Packed};

/// Maximum packed and unpacked size of an entry that is unpacked in memory.
const MAX_IN_MEMORY: u64 = 1 << 20;
/// Assumed maximum length of a local header's extra fields.
const EXTRA_BYTES: usize = 64;

/// Reader of contents with reused buffers.
pub(crate) struct ZipFiles<'a> {
    archive: &'a File,
    meter: &'a Meter<'a>,
    inflate: Decompressor,
    /// Buffers that only grow, because clearing them would be slow.
    packed: Vec<u8>,
    unpacked: Vec<u8>,
}

impl<'a> ZipFiles<'a> {
    pub(crate) fn new(archive: &'a File, meter: &'a Meter<'a>) -> Self {
        Self { archive, meter, inflate: Decompressor::new(), packed: Vec::new(), unpacked: Vec::new() }
    }

    /// Calls `write` with the content of an entry. Reading fails if checksum or size differ from the header.
    ///
    /// # Errors
    /// If the entry cannot be read, or is found to be damaged, before `write` is called.
    pub(crate) fn unpack<T>(&mut self, header: &Header, write: impl FnOnce(&mut dyn Read) -> T) -> io::Result<T> {
        let meter = self.meter;
        if let Some(unpacked) = self.unpack_in_memory(header)? {
            return Ok(write(&mut Content { inner: Cursor::new(unpacked), meter }));
        }
        let at = At { file: self.archive, position: 0 };
        let mut archive = BufReader::new(Packed { inner: at, meter });
        let inner = content(&mut archive, header)?;
        Ok(write(&mut Content { inner, meter }))
    }

    /// Unpacks the content in memory. `None` means that it must be read as a stream.
    fn unpack_in_memory(&mut self, header: &Header) -> io::Result<Option<&[u8]>> {
        let sizes = [header.packed, header.unpacked];
        let is_known = matches!(header.method, STORED | DEFLATE) && !header.is_encrypted;
        if !is_known || sizes.into_iter().any(|size| size > MAX_IN_MEMORY) {
            return Ok(None);
        }
        let (packed, unpacked) = (to_usize(header.packed)?, to_usize(header.unpacked)?);
        let buffer = first_bytes(&mut self.packed, LOCAL_HEADER_BYTES + header.name.len() + EXTRA_BYTES + packed);
        let length = read_at(self.archive, buffer, header.offset)?;
        let local = self.packed.get(..length).unwrap_or_default();
        let Some(head) = local.first_chunk() else { return Ok(None) };
        let start = to_usize(content_offset(head)?)?;
        // The extra fields may be longer than assumed, or the archive is truncated.
        let Some(packed) = local.get(start..start + packed) else { return Ok(None) };
        let content = if header.method == STORED {
            packed
        } else {
            let buffer = first_bytes(&mut self.unpacked, unpacked);
            let length = self.inflate.deflate_decompress(packed, buffer).map_err(|error| match error {
                DecompressionError::BadData => {
                    invalid("the content of an entry is damaged: it is not valid deflate data")
                }
                DecompressionError::InsufficientSpace => invalid(LARGER),
            })?;
            self.unpacked.get(..length).unwrap_or_default()
        };
        if content.len() != unpacked || crc32(content) != header.crc {
            return Err(invalid(DAMAGED));
        }
        Ok(Some(content))
    }
}

/// Returns the first bytes of a buffer, which may have old content.
fn first_bytes(buffer: &mut Vec<u8>, length: usize) -> &mut [u8] {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    buffer.get_mut(..length).unwrap_or_default()
}

fn to_usize(size: u64) -> io::Result<usize> {
    usize::try_from(size).map_err(io::Error::other)
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reader of a shared file with its own position.
struct At<'a> {
    file: &'a File,
    position: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for At<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.file.metadata()?.len().checked_add_signed(distance),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
