//! Index: the files of a cache with their chunks.
//!
//! ```text
//! magic | BLAKE3 of the rest | zstd( header | chunks, 52 bytes each | entries )
//! ```

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use filetime::FileTime;
use muster_archive::{Entry, EntryKind, Limits};
use prost::Message;

use crate::reference::{Object, Reference};
use crate::{ChunkError, Hash};

/// Maximum size in bytes of the object that stores an index.
pub const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Maximum length of a chunk in bytes.
pub(crate) const MAX_CHUNK_BYTES: u32 = 256 * 1024;

const MAGIC: &[u8; 8] = b"musteri1";
const HASH_BYTES: usize = 32;
const CHUNK_BYTES: usize = 52;
const COMPRESSION_LEVEL: i32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) hash: Hash,
    /// Position in the list of packs.
    pub(crate) pack: u32,
    /// Position in the pack.
    pub(crate) offset: u64,
    /// Number of bytes in the pack. The chunk is not compressed if this equals `length`.
    pub(crate) packed: u32,
    /// Length of the content.
    pub(crate) length: u32,
}

/// The files of a cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    pub(crate) packs: Vec<Object>,
    pub(crate) chunks: Vec<Chunk>,
    entries: Vec<u8>,
    entry_count: u64,
    /// Length of all files in bytes.
    bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    level: String,
    #[prost(message, repeated, tag = "3")]
    packs: Vec<Pack>,
    #[prost(uint64, tag = "4")]
    chunks: u64,
    #[prost(uint64, tag = "5")]
    entries: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Pack {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    size: u64,
}

#[derive(Clone, PartialEq, Message)]
struct StoredEntry {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// 0 is a file, 1 a directory, 2 a link.
    #[prost(uint32, tag = "2")]
    kind: u32,
    #[prost(uint32, tag = "3")]
    mode: u32,
    #[prost(sint64, tag = "4")]
    seconds: i64,
    #[prost(uint32, tag = "5")]
    nanoseconds: u32,
    #[prost(bytes = "vec", tag = "6")]
    target: Vec<u8>,
    /// Positions in the list of chunks.
    #[prost(uint32, repeated, tag = "7")]
    chunks: Vec<u32>,
}

impl Index {
    /// Returns the length of all files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the packs that contain the chunks.
    #[must_use]
    pub fn packs(&self) -> &[Object] {
        &self.packs
    }

    /// Adds an entry. `chunks` are the positions of its chunks, which must exist.
    pub(crate) fn add(&mut self, entry: &Entry, chunks: Vec<u32>) {
        let (kind, target) = match &entry.kind {
            EntryKind::File => (0, Vec::new()),
            EntryKind::Directory => (1, Vec::new()),
            EntryKind::Link(target) => (2, target.as_os_str().as_bytes().to_vec()),
        };
        let modified = entry.modified.unwrap_or(FileTime::zero());
        let stored = StoredEntry {
            path: entry.path.as_os_str().as_bytes().to_vec(),
            kind,
            mode: entry.mode.unwrap_or(0o644),
            seconds: modified.unix_seconds(),
            nanoseconds: modified.nanoseconds(),
            target,
            chunks,
        };
        self.entries.extend(stored.encode_length_delimited_to_vec());
        self.entry_count += 1;
        self.bytes += entry.size.unwrap_or(0);
    }

    /// Calls `visit` with each entry and the positions of its chunks.
    pub(crate) fn for_each<E: From<ChunkError>>(
        &self,
        mut visit: impl FnMut(Entry, Vec<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = self.entries.as_slice();
        while !rest.is_empty() {
            let stored = StoredEntry::decode_length_delimited(&mut rest).map_err(not_valid)?;
            let (entry, chunks) = self.entry(stored)?;
            visit(entry, chunks)?;
        }
        Ok(())
    }

    fn entry(&self, stored: StoredEntry) -> Result<(Entry, Vec<u32>), ChunkError> {
        let name = OsString::from_vec(stored.path);
        let kind = match stored.kind {
            0 => EntryKind::File,
            1 => EntryKind::Directory,
            2 => EntryKind::Link(OsString::from_vec(stored.target).into()),
            _ => return Err(not_valid("an entry of an unknown kind")),
        };
        let lengths = stored.chunks.iter().map(|chunk| self.chunk(*chunk).map(|chunk| u64::from(chunk.length)));
        let size =
            lengths.sum::<Option<u64>>().ok_or_else(|| not_valid("an entry names a chunk that does not exist"))?;
        let nanoseconds = stored.nanoseconds.min(999_999_999);
        Ok((
            Entry {
                path: muster_archive::path(name.into(), &kind).map_err(|error| not_valid(error.to_string()))?,
                kind,
                mode: Some(stored.mode & 0o777),
                modified: Some(FileTime::from_unix_time(stored.seconds, nanoseconds)),
                size: Some(size),
            },
            stored.chunks,
        ))
    }

    pub(crate) fn chunk(&self, position: u32) -> Option<&Chunk> {
        self.chunks.get(usize::try_from(position).ok()?)
    }

    /// Returns whether both indexes have the same files, apart from their times and the places of chunks.
    pub(crate) fn has_same_files(&self, other: &Self) -> bool {
        if self.entry_count != other.entry_count || self.bytes != other.bytes {
            return false;
        }
        let (mut left, mut right) = (self.entries.as_slice(), other.entries.as_slice());
        while !left.is_empty() {
            let decoded =
                (StoredEntry::decode_length_delimited(&mut left), StoredEntry::decode_length_delimited(&mut right));
            let (Ok(mut one), Ok(mut two)) = decoded else { return false };
            let hashes = |index: &Self, entry: &StoredEntry| {
                entry.chunks.iter().map(|chunk| index.chunk(*chunk).map(|chunk| chunk.hash)).collect::<Vec<_>>()
            };
            let has_same_content = hashes(self, &one) == hashes(other, &two);
            for entry in [&mut one, &mut two] {
                (entry.chunks, entry.seconds, entry.nanoseconds) = (Vec::new(), 0, 0);
            }
            if one != two || !has_same_content {
                return false;
            }
        }
        true
    }

    /// Encodes the index as the content of an object. `key` and `level` are those of the cache.
    pub(crate) fn encode(&self, key: &str, level: &str) -> std::io::Result<Vec<u8>> {
        let packs = self.packs.iter().map(|pack| Pack { name: pack.name.clone(), size: pack.size }).collect();
        let header = Header {
            key: key.to_owned(),
            level: level.to_owned(),
            packs,
            chunks: self.chunks.len() as u64,
            entries: self.entry_count,
        };
        let mut body = header.encode_length_delimited_to_vec();
        for chunk in &self.chunks {
            body.extend(chunk.hash);
            body.extend(chunk.pack.to_le_bytes());
            body.extend(chunk.offset.to_le_bytes());
            body.extend(chunk.packed.to_le_bytes());
            body.extend(chunk.length.to_le_bytes());
        }
        body.extend(&self.entries);
        let body = zstd::encode_all(body.as_slice(), COMPRESSION_LEVEL)?;
        Ok([MAGIC.as_slice(), blake3::hash(&body).as_bytes(), &body].concat())
    }

    /// Reads the index of a reference.
    ///
    /// # Errors
    /// [`ChunkError::Damaged`] if it does not belong to the reference, is damaged, or exceeds the limits.
    pub fn decode(object: &[u8], reference: &Reference, limits: &Limits) -> Result<Self, ChunkError> {
        let has_named_hash = blake3::hash(object).to_hex().as_str() == reference.index_hash;
        if !has_named_hash || object.len() as u64 != reference.index.size {
            return Err(ChunkError::damaged("its index is not the one that the reference names"));
        }
        let (magic, rest) = object.split_first_chunk().ok_or_else(|| not_valid("it is too short"))?;
        let (hash, body): (&[u8; HASH_BYTES], _) =
            rest.split_first_chunk().ok_or_else(|| not_valid("it is too short"))?;
        if magic != MAGIC || blake3::hash(body).as_bytes() != hash {
            return Err(not_valid("its hash differs"));
        }
        let max = limits.header_bytes;
        let mut bytes = Vec::new();
        let decoder = zstd::Decoder::new(body).map_err(|error| not_valid(error.to_string()))?;
        let read = decoder.take(max.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| not_valid(error.to_string()))?;
        if bytes.len() as u64 > max {
            return Err(not_valid(format!("it is longer than {max} bytes")));
        }
        Self::parse(&bytes, reference, limits)
    }

    fn parse(bytes: &[u8], reference: &Reference, limits: &Limits) -> Result<Self, ChunkError> {
        let mut rest = bytes;
        let header = Header::decode_length_delimited(&mut rest).map_err(not_valid)?;
        let packs: Vec<_> = header.packs.into_iter().map(|pack| Object { name: pack.name, size: pack.size }).collect();
        if header.key != reference.key || header.level != reference.level || packs != reference.packs {
            return Err(ChunkError::damaged("its index belongs to another cache"));
        }
        if header.entries > limits.entries {
            return Err(not_valid(format!("it has more than {} entries", limits.entries)));
        }
        let length = usize::try_from(header.chunks).ok().and_then(|count| count.checked_mul(CHUNK_BYTES));
        let (chunks, entries) =
            length.and_then(|length| rest.split_at_checked(length)).ok_or_else(|| not_valid("it is too short"))?;
        let (chunks, _) = chunks.as_chunks::<CHUNK_BYTES>();
        let chunks = chunks.iter().map(|bytes| read_chunk(bytes, &packs)).collect::<Option<Vec<_>>>();
        let chunks = chunks.ok_or_else(|| not_valid("it has a chunk with an invalid position or length"))?;
        let mut index = Self { packs, chunks, entries: entries.to_vec(), entry_count: header.entries, bytes: 0 };
        let (mut count, mut bytes) = (0_u64, 0_u64);
        index.for_each(|entry, _| {
            count += 1;
            bytes = bytes.saturating_add(entry.size.unwrap_or(0));
            if count > header.entries {
                return Err(not_valid("it has more entries than it declares"));
            }
            if bytes > limits.bytes {
                return Err(not_valid(format!("its files have more than {} bytes", limits.bytes)));
            }
            Ok::<(), ChunkError>(())
        })?;
        if count != header.entries {
            return Err(not_valid("it has fewer entries than it declares"));
        }
        index.bytes = bytes;
        Ok(index)
    }
}

/// Returns a chunk. `None` means that its place or length is invalid.
fn read_chunk(bytes: &[u8; CHUNK_BYTES], packs: &[Object]) -> Option<Chunk> {
    let (hash, rest) = bytes.split_first_chunk()?;
    let (pack, rest) = rest.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let (packed, rest) = rest.split_first_chunk()?;
    let chunk = Chunk {
        hash: *hash,
        pack: u32::from_le_bytes(*pack),
        offset: u64::from_le_bytes(*offset),
        packed: u32::from_le_bytes(*packed),
        length: u32::from_le_bytes(*rest.first_chunk()?),
    };
    let size = packs.get(usize::try_from(chunk.pack).ok()?)?.size;
    let end = chunk.offset.checked_add(u64::from(chunk.packed))?;
    let is_valid = end <= size && chunk.packed <= chunk.length && (1..=MAX_CHUNK_BYTES).contains(&chunk.length);
    is_valid.then_some(chunk)
}

fn not_valid(reason: impl std::fmt::Display) -> ChunkError {
    ChunkError::damaged(format!("its index is not valid: {reason}"))
}
