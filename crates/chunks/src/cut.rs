//! Divides content into chunks, so that an insertion changes only the chunks around it.

use std::io::{self, Read};

use fastcdc::v2020::{FastCDC, StreamCDC};

use crate::index::MAX_CHUNK_BYTES;

/// Minimum length of a chunk in bytes, except at the end of a file.
const MIN: usize = 16 * 1024;
/// Average length of a chunk in bytes. Smaller chunks find more duplicates, but enlarge the index.
const AVERAGE: usize = 64 * 1024;
const MAX: usize = MAX_CHUNK_BYTES as usize;

pub(crate) fn cut(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    FastCDC::new(content, MIN, AVERAGE, MAX)
        .filter_map(|chunk| content.get(chunk.offset..chunk.offset.checked_add(chunk.length)?))
        .filter(|chunk| !chunk.is_empty())
}

pub(crate) struct ReaderChunks<R: Read>(StreamCDC<R>);

/// Returns the chunks of a reader's content, which equal those of [`cut`].
pub(crate) fn cut_reader<R: Read>(content: R) -> ReaderChunks<R> {
    ReaderChunks(StreamCDC::new(content, MIN, AVERAGE, MAX))
}

impl<R: Read> Iterator for ReaderChunks<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(|chunk| chunk.data).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_cut_at_the_same_places() {
        for length in [0, 1, MIN, MAX, 1_500_000] {
            let content: Vec<u8> = (0..length).map(|at| u8::try_from(at * at / 7919 % 251).unwrap()).collect();
            let at_once: Vec<&[u8]> = cut(&content).collect();
            let streamed: Vec<Vec<u8>> = cut_reader(content.as_slice()).map(Result::unwrap).collect();
            assert!(at_once == streamed, "{length} bytes");
            assert!(at_once.concat() == content, "{length} bytes");
        }
    }
}
