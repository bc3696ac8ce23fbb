//! Packs and chunks of a save.

use std::collections::HashMap;
use std::io::{BufWriter, Write};

use tempfile::NamedTempFile;

use super::{FileChunk, Save, SaveError};
use crate::index::Chunk;
use crate::reference::Object;
use crate::restore::ChunkReader;
use crate::{ChunkError, Hash};

struct Pack {
    number: u32,
    name: String,
    file: BufWriter<NamedTempFile>,
    written: u64,
}

pub(super) struct Packs<'a> {
    save: &'a Save<'a>,
    /// Packs of earlier saves, and new packs. The size of a new pack is set at its completion.
    packs: Vec<Object>,
    /// Positions in `packs`, by the names of the packs.
    numbers: HashMap<String, u32>,
    chunks: Vec<Chunk>,
    positions: HashMap<Hash, u32>,
    current: Option<Pack>,
    new: Vec<Object>,
}

impl<'a> Packs<'a> {
    pub(super) fn new(save: &'a Save<'a>) -> Self {
        Self {
            save,
            packs: Vec::new(),
            numbers: HashMap::new(),
            chunks: Vec::new(),
            positions: HashMap::new(),
            current: None,
            new: Vec::new(),
        }
    }

    pub(super) fn has_new(&self) -> bool {
        self.current.is_some() || !self.new.is_empty()
    }

    /// Returns the position of a chunk. Stores the chunk if it is new.
    pub(super) fn chunk(&mut self, found: &FileChunk) -> Result<u32, SaveError> {
        if let Some(position) = self.positions.get(&found.hash) {
            return Ok(*position);
        }
        let chunk = match &found.packed {
            Some(packed) => self.write(found.hash, found.length, packed)?,
            None => {
                let known = self.save.known.get(&found.hash).map(|(chunk, pack)| (*chunk, pack.clone()));
                let Some((chunk, pack)) = known else {
                    return Err(ChunkError::damaged("a known chunk has no place").into());
                };
                Chunk { pack: self.number(&pack), ..chunk }
            }
        };
        let position = u32::try_from(self.chunks.len()).map_err(|_| ChunkError::damaged("it has too many chunks"))?;
        self.positions.insert(found.hash, position);
        self.chunks.push(chunk);
        Ok(position)
    }

    fn number(&mut self, pack: &Object) -> u32 {
        *self.numbers.entry(pack.name.clone()).or_insert_with(|| {
            self.packs.push(pack.clone());
            u32::try_from(self.packs.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Appends a chunk to the current pack.
    fn write(&mut self, hash: Hash, length: u32, packed: &[u8]) -> Result<Chunk, SaveError> {
        let is_full = self.current.as_ref().is_some_and(|pack| pack.written >= self.save.pack_bytes);
        if is_full && self.new.len() + 1 < self.save.max_packs {
            self.complete()?;
        }
        let store = self.save.store;
        let mut pack = match self.current.take() {
            Some(pack) => pack,
            None => {
                let name = format!("{}-{}", self.save.id, self.new.len());
                let number = self.number(&Object { name: name.clone(), size: 0 });
                Pack { number, name, file: BufWriter::with_capacity(1 << 18, store.temporary()?), written: 0 }
            }
        };
        let offset = pack.written;
        pack.file.write_all(packed).map_err(|error| ChunkError::Write(store.object(&pack.name), error))?;
        pack.written += packed.len() as u64;
        let number = pack.number;
        self.current = Some(pack);
        let packed = u32::try_from(packed.len()).unwrap_or(length);
        Ok(Chunk { hash, pack: number, offset, packed, length })
    }

    fn complete(&mut self) -> Result<(), SaveError> {
        let Some(pack) = self.current.take() else { return Ok(()) };
        let store = self.save.store;
        let file = pack.file.into_inner();
        let file = file.map_err(|error| ChunkError::Write(store.object(&pack.name), error.into_error()))?;
        store.persist(file, &pack.name)?;
        let object = Object { name: pack.name, size: pack.written };
        if let Some(described) = self.packs.get_mut(pack.number as usize) {
            described.size = object.size;
        }
        self.new.push(object);
        Ok(())
    }

    /// Returns the packs of earlier saves with the number of used bytes, least used first.
    pub(super) fn used_bytes_of_old_packs(&self) -> Vec<(u32, u64)> {
        let mut used: HashMap<u32, u64> = HashMap::new();
        for chunk in &self.chunks {
            *used.entry(chunk.pack).or_default() += u64::from(chunk.packed);
        }
        let is_new = |number: u32| {
            let name = self.packs.get(number as usize).map(|pack| pack.name.as_str()).unwrap_or_default();
            self.current.as_ref().is_some_and(|pack| pack.number == number)
                || self.new.iter().any(|pack| pack.name == name)
        };
        let mut used: Vec<(u32, u64)> = used.into_iter().filter(|(number, _)| !is_new(*number)).collect();
        used.sort_by_key(|(number, bytes)| (*bytes, *number));
        used
    }

    /// Copies the used chunks of an earlier pack, unless the store does not have it or it is damaged.
    pub(super) fn copy_chunks_of(&mut self, pack: u32) -> Result<(), SaveError> {
        let Some(object) = self.packs.get(pack as usize).filter(|object| self.save.store.has(object)) else {
            return Ok(());
        };
        let mut reader = ChunkReader::new(self.save.store, std::slice::from_ref(object));
        let used: Vec<(usize, Chunk)> =
            self.chunks.iter().copied().enumerate().filter(|(_, chunk)| chunk.pack == pack).collect();
        let mut copies = Vec::with_capacity(used.len());
        for (position, chunk) in used {
            let Ok(packed) = reader.read_packed(&Chunk { pack: 0, ..chunk }) else { return Ok(()) };
            copies.push((position, chunk, packed));
        }
        for (position, chunk, packed) in copies {
            let copy = self.write(chunk.hash, chunk.length, &packed)?;
            if let Some(described) = self.chunks.get_mut(position) {
                *described = copy;
            }
        }
        Ok(())
    }

    /// Completes the last pack, and returns the new packs.
    pub(super) fn finish(&mut self) -> Result<Vec<Object>, SaveError> {
        self.complete()?;
        Ok(std::mem::take(&mut self.new))
    }

    /// Returns the used packs, and the chunks.
    pub(super) fn into_table(self) -> (Vec<Object>, Vec<Chunk>) {
        let Self { packs, mut chunks, .. } = self;
        let mut renumbered: HashMap<u32, u32> = HashMap::new();
        let mut used = Vec::new();
        for chunk in &mut chunks {
            chunk.pack = *renumbered.entry(chunk.pack).or_insert_with(|| {
                used.extend(packs.get(chunk.pack as usize).cloned());
                u32::try_from(used.len() - 1).unwrap_or(u32::MAX)
            });
        }
        (used, chunks)
    }
}
