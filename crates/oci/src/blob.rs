//! Content for a registry, in memory or in a file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::{TryStreamExt as _, stream};
use reqwest::Body;

use crate::digest::Digest;
use crate::idle::SentBytes;

const CHUNK_BYTES: usize = 256 * 1024;

/// Content with its digest. Equal digests mean equal blobs.
#[derive(Debug, Clone)]
pub struct Blob {
    digest: Digest,
    size: u64,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Memory(Bytes),
    /// Part of a file from `start` on.
    File {
        file: Arc<File>,
        start: u64,
    },
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self { digest: Digest::of(&bytes), size: bytes.len() as u64, content: Content::Memory(bytes.into()) }
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Blob {}

impl Blob {
    /// Returns a blob for a part of a file, which must not change.
    pub(crate) fn in_file(file: Arc<File>, start: u64, size: u64, digest: Digest) -> Self {
        Self { digest, size, content: Content::File { file, start } }
    }

    /// Returns the digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns a reader, which blocks if the content is in a file.
    #[must_use]
    pub fn reader(&self) -> BlobReader {
        BlobReader { blob: self.clone(), position: 0 }
    }

    /// Returns the content as the body of a request. If the content is in a file, the sent bytes are added to `sent`.
    /// Bytes in memory are not counted.
    pub(crate) fn body(&self, sent: &SentBytes) -> Body {
        if let Content::Memory(bytes) = &self.content {
            return Body::from(bytes.clone());
        }
        let chunks = stream::try_unfold(self.reader(), |mut reader| async move {
            let read = tokio::task::spawn_blocking(move || {
                let mut chunk = vec![0; CHUNK_BYTES];
                let length = reader.read(&mut chunk)?;
                chunk.truncate(length);
                io::Result::Ok((length > 0).then(|| (Bytes::from(chunk), reader)))
            });
            read.await.map_err(io::Error::other)?
        });
        let sent = sent.clone();
        Body::wrap_stream(chunks.inspect_ok(move |chunk| sent.add(chunk.len())))
    }
}

/// Reader of a [`Blob`].
#[derive(Debug)]
pub struct BlobReader {
    blob: Blob,
    position: u64,
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.blob.size - self.position).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let buffer = buffer.get_mut(..wanted).unwrap_or_default();
        let length = match &self.blob.content {
            Content::Memory(bytes) => {
                let start = usize::try_from(self.position).unwrap_or(usize::MAX);
                bytes.get(start..).unwrap_or_default().read(buffer)?
            }
            Content::File { file, start } => file.read_at(buffer, start + self.position)?,
        };
        if length == 0 && wanted > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file was truncated while it was read"));
        }
        self.position += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(blob: &Blob) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        blob.reader().read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn part_of_a_file_is_like_the_same_bytes_in_memory() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), b"before-content-after").unwrap();
        let memory = Blob::from(b"content".to_vec());
        let file = Arc::new(File::open(path.path()).unwrap());
        let in_file = Blob::in_file(file, 7, 7, memory.digest());
        assert_eq!(in_file, memory);
        assert_eq!((content(&in_file).unwrap(), content(&memory).unwrap()), (b"content".to_vec(), b"content".to_vec()));
        File::options().write(true).open(path.path()).unwrap().set_len(10).unwrap();
        assert_eq!(content(&in_file).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
