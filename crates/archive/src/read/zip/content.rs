//! The content of an entry.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use flate2::CrcReader;
use flate2::bufread::DeflateDecoder;

use super::directory::{Fields, Header, invalid};

/// The header before a content (section 4.3.7 of PKWARE's APPNOTE).
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_BYTES: usize = 30;
const STORED: u16 = 0;
const DEFLATE: u16 = 8;
const ZSTD: u16 = 93;

/// Returns a reader of the unpacked content. Its end is an error if the checksum or the size is another one.
pub(super) fn content<'a, R: BufRead + Seek>(
    archive: &'a mut R,
    header: &Header,
) -> io::Result<impl Read + use<'a, R>> {
    if header.is_encrypted {
        return Err(invalid("it has encrypted entries, which are not supported"));
    }
    let mut bytes = [0; LOCAL_BYTES];
    archive.seek(SeekFrom::Start(header.offset))?;
    archive.read_exact(&mut bytes)?;
    let mut local = Fields(&bytes);
    if local.bytes(LOCAL.len())? != LOCAL {
        return Err(invalid("the header before an entry is damaged"));
    }
    local.bytes(LOCAL_BYTES - LOCAL.len() - 4)?;
    let (name, extra) = (local.u16()?, local.u16()?);
    archive.seek_relative(i64::from(name) + i64::from(extra))?;
    let packed = archive.take(header.packed);
    let unpacked: Box<dyn Read + 'a> = match header.method {
        STORED => Box::new(packed),
        DEFLATE => Box::new(DeflateDecoder::new(packed)),
        ZSTD => Box::new(zstd::Decoder::with_buffer(packed)?),
        _ => return Err(invalid("it is compressed by a method other than deflate and zstd")),
    };
    Ok(Checked { inner: CrcReader::new(unpacked), crc: header.crc, left: header.unpacked })
}

struct Checked<R> {
    inner: CrcReader<R>,
    crc: u32,
    /// Bytes that must still come.
    left: u64,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let left = self.left.checked_sub(read as u64);
        self.left = left.ok_or_else(|| invalid("an entry is larger than the zip directory says"))?;
        if read == 0 && !buffer.is_empty() && (self.left > 0 || self.inner.crc().sum() != self.crc) {
            return Err(invalid("the content of an entry is damaged: its size or its checksum is another one"));
        }
        Ok(read)
    }
}
