//! Content of an entry of a zip archive.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use flate2::CrcReader;
use flate2::bufread::DeflateDecoder;

use super::directory::{Fields, Header, invalid};

/// Magic of the header before the content of an entry (section 4.3.7 of PKWARE's APPNOTE).
const LOCAL_HEADER: &[u8] = b"PK\x03\x04";
pub(super) const LOCAL_HEADER_BYTES: usize = 30;
pub(super) const STORED: u16 = 0;
pub(super) const DEFLATE: u16 = 8;
const ZSTD: u16 = 93;
/// Message if the content does not match the zip directory.
pub(super) const DAMAGED: &str =
    "the content of an entry is damaged: its size or its checksum does not match the zip directory";
/// Message if the content is larger than in the zip directory.
pub(super) const LARGER: &str = "an entry is larger than its size in the zip directory";
/// Binary logarithm of the maximum window size, which limits memory. Only `zstd --long` and `--ultra` use larger
/// windows.
const MAX_ZSTD_WINDOW_LOG: u32 = 23;

/// Returns a reader of the unpacked content, which fails if checksum or size differ from the header.
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
    let offset = content_offset(&bytes)?;
    archive.seek_relative((offset - LOCAL_HEADER_BYTES as u64).cast_signed())?;
    let packed = archive.take(header.packed);
    let unpacked: Box<dyn Read + 'a> = match header.method {
        STORED => Box::new(packed),
        DEFLATE => Box::new(DeflateDecoder::new(packed)),
        ZSTD => {
            let mut decoder = zstd::Decoder::with_buffer(packed)?;
            decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
        _ => return Err(invalid("an entry is compressed with an unsupported method; use deflate or zstd")),
    };
    Ok(Checked { inner: CrcReader::new(unpacked), crc: header.crc, remaining: header.unpacked })
}

/// Returns the length of a local header, up to the content of its entry.
pub(super) fn content_offset(local_header: &[u8; LOCAL_HEADER_BYTES]) -> io::Result<u64> {
    let mut local = Fields(local_header);
    if local.bytes(LOCAL_HEADER.len())? != LOCAL_HEADER {
        return Err(invalid("the local header of an entry is damaged"));
    }
    local.bytes(LOCAL_HEADER_BYTES - LOCAL_HEADER.len() - 4)?;
    let (name, extra) = (local.u16()?, local.u16()?);
    Ok(LOCAL_HEADER_BYTES as u64 + u64::from(name) + u64::from(extra))
}

/// Reader that locates the content at the first read, because callers may skip it.
pub(super) struct Lazy<'a, R> {
    source: Source<'a, R>,
    header: &'a Header,
}

enum Source<'a, R> {
    Unread(&'a mut R),
    Opened(Box<dyn Read + 'a>),
    Failed,
}

impl<'a, R> Lazy<'a, R> {
    pub(super) fn new(archive: &'a mut R, header: &'a Header) -> Self {
        Self { source: Source::Unread(archive), header }
    }
}

impl<R: BufRead + Seek> Read for Lazy<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match std::mem::replace(&mut self.source, Source::Failed) {
            Source::Unread(archive) => self.source = Source::Opened(Box::new(content(archive, self.header)?)),
            other => self.source = other,
        }
        match &mut self.source {
            Source::Opened(content) => content.read(buffer),
            Source::Unread(_) | Source::Failed => Err(invalid("the content of an entry is damaged")),
        }
    }
}

struct Checked<R> {
    inner: CrcReader<R>,
    crc: u32,
    /// Number of declared bytes that are still to be read.
    remaining: u64,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let remaining = self.remaining.checked_sub(read as u64);
        self.remaining = remaining.ok_or_else(|| invalid(LARGER))?;
        if read == 0 && !buffer.is_empty() && (self.remaining > 0 || self.inner.crc().sum() != self.crc) {
            return Err(invalid(DAMAGED));
        }
        Ok(read)
    }
}
