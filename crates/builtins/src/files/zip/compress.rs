//! Compresses blocks of files.

use std::io;

use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use libdeflater::{CompressionError, CompressionLvl, Compressor as WholeCompressor};
use zstd::bulk::Compressor as ZstdCompressor;

use super::records::Method;
use crate::files::format::Level;

/// Minimum free space in the output before each call of the compressor.
const GROWTH: usize = 64 * 1024;
/// Number of bytes for an estimate of the compressibility.
const SAMPLE_BYTES: usize = 16 * 1024;
/// Minimum number of bytes for this estimate.
const MIN_SAMPLE_BYTES: usize = 4 * 1024;

/// Compression method and level of an archive.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ZipCompression {
    /// No compression.
    Stored,
    /// Deflate with this level.
    Deflate(u32),
    /// Zstandard with this level.
    Zstd(i32),
}

impl ZipCompression {
    pub(crate) fn deflate(level: Level) -> Self {
        level.deflate().map_or(Self::Stored, Self::Deflate)
    }

    /// Returns the method of entries with several blocks.
    pub(super) fn method(self) -> Method {
        match self {
            Self::Stored => Method::Stored,
            Self::Deflate(_) => Method::Deflate,
            Self::Zstd(_) => Method::Zstd,
        }
    }
}

/// Compresses blocks independently of each other.
pub(super) enum Compressor {
    Stored,
    /// `whole` is for files of one block, and is faster than `blocks`.
    Deflate {
        whole: WholeCompressor,
        blocks: Box<Compress>,
        store: Box<Compress>,
    },
    Zstd(ZstdCompressor<'static>),
}

impl Compressor {
    /// Returns a compressor.
    pub(super) fn new(compressing: ZipCompression) -> io::Result<Self> {
        let deflate = |level| Box::new(Compress::new(level, false));
        Ok(match compressing {
            ZipCompression::Stored => Self::Stored,
            ZipCompression::Deflate(level) => Self::Deflate {
                whole: whole(level)?,
                blocks: deflate(Compression::new(level)),
                store: deflate(Compression::none()),
            },
            ZipCompression::Zstd(level) => Self::Zstd(ZstdCompressor::new(level)?),
        })
    }

    /// Appends a file of one block. Returns the method, which is [`Method::Stored`] if compression would not help.
    pub(super) fn add_file(&mut self, content: &[u8], out: &mut Vec<u8>) -> io::Result<Method> {
        let start = out.len();
        let method = match self {
            Self::Deflate { whole, .. } if !is_random(content) => {
                out.resize(start + content.len(), 0);
                match whole.deflate_compress(content, out.get_mut(start..).unwrap_or_default()) {
                    Ok(length) => out.truncate(start + length),
                    Err(CompressionError::InsufficientSpace) => {}
                }
                Method::Deflate
            }
            Self::Zstd(zstd) if !is_random(content) => {
                out.extend(zstd.compress(content)?);
                Method::Zstd
            }
            _ => Method::Stored,
        };
        if method != Method::Stored && out.len() - start < content.len() {
            return Ok(method);
        }
        out.truncate(start);
        out.extend_from_slice(content);
        Ok(Method::Stored)
    }

    /// Appends a block of a larger file. The blocks form one stream of [`ZipCompression::method`].
    pub(super) fn add_block(&mut self, content: &[u8], is_last: bool, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Stored => out.extend_from_slice(content),
            Self::Deflate { blocks, store, .. } => {
                deflate(if is_random(content) { store } else { blocks }, content, is_last, out)?;
            }
            // A stream may consist of several frames.
            Self::Zstd(zstd) => out.extend(zstd.compress(content)?),
        }
        Ok(())
    }
}

/// Returns a compressor of whole files. Its level is one lower than `level`, but at least 1: libdeflate then compresses
/// about as much as zlib does with `level`.
fn whole(level: u32) -> io::Result<WholeCompressor> {
    let level = i32::try_from(level.saturating_sub(1).max(1)).map_err(io::Error::other)?;
    let level = CompressionLvl::new(level);
    level.map(WholeCompressor::new).map_err(|_| io::Error::other("the compression level is not valid"))
}

pub(super) fn checksum(content: &[u8]) -> Crc {
    let mut crc = Crc::new();
    crc.update(content);
    crc
}

/// Appends an independent part of a deflate stream. Each part except the last one ends at a byte boundary.
fn deflate(compress: &mut Compress, content: &[u8], is_last: bool, out: &mut Vec<u8>) -> io::Result<()> {
    compress.reset();
    let flush = if is_last { FlushCompress::Finish } else { FlushCompress::Full };
    let mut rest = content;
    loop {
        out.reserve(GROWTH.max(rest.len()));
        let before = compress.total_in();
        let status = compress.compress_vec(rest, out, flush).map_err(io::Error::other)?;
        let read = usize::try_from(compress.total_in() - before).map_err(io::Error::other)?;
        rest = rest.get(read..).unwrap_or_default();
        // Unused space in the buffer means that the flush is complete.
        let is_flushed = rest.is_empty() && out.len() < out.capacity();
        if status == Status::StreamEnd || (!is_last && is_flushed) {
            return Ok(());
        }
    }
}

/// Returns whether the bytes are distributed like compressed or encrypted data.
fn is_random(content: &[u8]) -> bool {
    let sample = content.get(..SAMPLE_BYTES).unwrap_or(content);
    if sample.len() < MIN_SAMPLE_BYTES {
        return false;
    }
    let mut counts = [0_u64; 256];
    for byte in sample {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count += 1;
        }
    }
    // The number of pairs of equal bytes. Its mean is `length² / 256 + length` for random bytes, and several times
    // larger for text.
    let (length, pairs) = (sample.len() as u64, counts.iter().map(|count| count * count).sum::<u64>());
    pairs * 256 < length * length + length * length / 16 + length * 256
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn random(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn only_compressed_data_counts_as_random() {
        assert!(is_random(&random(4096)) && is_random(&random(1 << 20)));
        let text: Vec<u8> = random(20_000).into_iter().map(|byte| b'a' + byte % 64).collect();
        assert!(!is_random(&text) && !is_random(&[0; 8192]) && !is_random(&random(100)));
    }

    #[test]
    fn file_is_stored_unless_compression_makes_it_smaller() {
        let text = b"text and more text ".repeat(1000);
        for level in [1, 5, 7, 9] {
            let mut compressor = Compressor::new(ZipCompression::Deflate(level)).unwrap();
            for (content, expected) in [
                (text.clone(), Method::Deflate),
                (random(100), Method::Stored),
                (random(10_000), Method::Stored),
                (Vec::new(), Method::Stored),
            ] {
                let mut out = b"before".to_vec();
                assert!(compressor.add_file(&content, &mut out).unwrap() == expected, "{level} {}", content.len());
                let mut unpacked = out.split_off(b"before".len());
                assert_eq!(out, b"before");
                if expected == Method::Deflate {
                    assert!(unpacked.len() < content.len() / 50, "{level}: {}", unpacked.len());
                    let packed = std::mem::take(&mut unpacked);
                    flate2::read::DeflateDecoder::new(&packed[..]).read_to_end(&mut unpacked).unwrap();
                }
                assert!(unpacked == content, "{level} {}", content.len());
            }
        }
    }

    #[test]
    fn blocks_of_any_kind_form_one_stream() {
        let text = b"text and more text ".repeat(10_000);
        for blocks in [[&text[..], &random(70_000)[..]], [&random(70_000)[..], &text[..]], [&text[..], &b""[..]]] {
            for compressing in [ZipCompression::Deflate(1), ZipCompression::Deflate(5), ZipCompression::Zstd(3)] {
                let mut compressor = Compressor::new(compressing).unwrap();
                let mut out = Vec::new();
                compressor.add_block(blocks[0], false, &mut out).unwrap();
                compressor.add_block(blocks[1], true, &mut out).unwrap();
                let mut unpacked = Vec::new();
                match compressing {
                    ZipCompression::Zstd(_) => unpacked = zstd::decode_all(&out[..]).unwrap(),
                    _ => drop(flate2::read::DeflateDecoder::new(&out[..]).read_to_end(&mut unpacked).unwrap()),
                }
                assert!(unpacked == blocks.concat(), "{compressing:?}");
                assert!(out.len() < 80_000, "{compressing:?}: {}", out.len());
            }
        }
    }
}
