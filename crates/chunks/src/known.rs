//! Chunks of earlier saves.

use std::collections::HashMap;

use crate::Hash;
use crate::index::{Chunk, Index};
use crate::reference::Object;

/// Chunks that a save need not store again.
#[derive(Debug, Default)]
pub struct Known {
    packs: Vec<Object>,
    /// Positions in `packs`, by the names of the packs.
    numbers: HashMap<String, u32>,
    chunks: HashMap<Hash, Chunk>,
}

impl Known {
    /// Adds those chunks of an index that are in usable packs.
    pub fn add_index(&mut self, index: &Index, is_usable: impl Fn(&Object) -> bool) {
        let usable: Vec<bool> = index.packs.iter().map(is_usable).collect();
        for chunk in &index.chunks {
            let pack = usize::try_from(chunk.pack).unwrap_or(usize::MAX);
            if usable.get(pack) == Some(&true)
                && let Some(pack) = index.packs.get(pack)
            {
                self.add(chunk, pack);
            }
        }
    }

    /// Adds a chunk, unless it is already known.
    fn add(&mut self, chunk: &Chunk, pack: &Object) {
        let number = *self.numbers.entry(pack.name.clone()).or_insert_with(|| {
            self.packs.push(pack.clone());
            u32::try_from(self.packs.len() - 1).unwrap_or(u32::MAX)
        });
        // If two indexes declare different sizes of a pack, the first one is used.
        if self.packs.get(number as usize) == Some(pack) {
            self.chunks.entry(chunk.hash).or_insert(Chunk { pack: number, ..*chunk });
        }
    }

    pub(crate) fn get(&self, hash: &Hash) -> Option<(&Chunk, &Object)> {
        let chunk = self.chunks.get(hash)?;
        Some((chunk, self.packs.get(chunk.pack as usize)?))
    }
}
