//! Reads the content of an entry of a zip archive.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use flate2::CrcReader;
use flate2::bufread::DeflateDecoder;

use super::directory::{Fields, Header, invalid};

/// Magic of the local header, which precedes the content of an entry (section 4.3.7 of PKWARE's APPNOTE).
const LOCAL_HEADER: &[u8] = b"PK\x03\x04";
const LOCAL_HEADER_BYTES: usize = 30;
const STORED: u16 = 0;
const DEFLATE: u16 = 8;
const ZSTD: u16 = 93;

/// Returns a reader of the unpacked content. Reading fails at the end if the checksum or the size differs from the header.
pub(super) fn content<'a, R: BufRead + Seek>(
    archive: &'a mut R,
    header: &Header,
) -> io::Result<impl Read + use<'a, R>> {
    if header.is_encrypted {
        return Err(invalid("the archive has encrypted entries, which are not supported"));
    }
    let mut bytes = [0; LOCAL_HEADER_BYTES];
    archive.seek(SeekFrom::Start(header.offset))?;
    archive.read_exact(&mut bytes)?;
    let mut local = Fields(&bytes);
    if local.bytes(LOCAL_HEADER.len())? != LOCAL_HEADER {
        return Err(invalid("the local header of an entry is damaged"));
    }
    local.bytes(LOCAL_HEADER_BYTES - LOCAL_HEADER.len() - 4)?;
    let (name, extra) = (local.u16()?, local.u16()?);
    archive.seek_relative(i64::from(name) + i64::from(extra))?;
    let packed = archive.take(header.packed);
    let unpacked: Box<dyn Read + 'a> = match header.method {
        STORED => Box::new(packed),
        DEFLATE => Box::new(DeflateDecoder::new(packed)),
        ZSTD => Box::new(zstd::Decoder::with_buffer(packed)?),
        _ => return Err(invalid("an entry is compressed with an unsupported method; use deflate or zstd")),
    };
    Ok(Checked { inner: CrcReader::new(unpacked), crc: header.crc, remaining: header.unpacked })
}

struct Checked<R> {
    inner: CrcReader<R>,
    crc: u32,
    /// Number of bytes that have not been read yet, according to the header.
    remaining: u64,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let remaining = self.remaining.checked_sub(read as u64);
        self.remaining = remaining.ok_or_else(|| invalid("an entry is larger than its size in the zip directory"))?;
        if read == 0 && !buffer.is_empty() && (self.remaining > 0 || self.inner.crc().sum() != self.crc) {
            return Err(invalid(
                "the content of an entry is damaged: its size or its checksum does not match the zip directory",
            ));
        }
        Ok(read)
    }
}
