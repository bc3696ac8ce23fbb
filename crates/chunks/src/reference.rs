//! Reference: the current cache of a key.

use serde::{Deserialize, Serialize};

use crate::ChunkError;

/// Version of the format. Other versions are not restored.
pub(crate) const VERSION: u32 = 1;
/// Maximum size of a reference in bytes.
pub const MAX_REFERENCE_BYTES: u64 = 1 << 20;
const MAX_PACKS: usize = 8192;
/// Maximum length of an object's or protection level's name.
const MAX_NAME: usize = 100;

/// Name and size of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Object {
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// Index and packs of the current cache of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    version: u32,
    /// Cache key.
    pub key: String,
    /// Protection level.
    pub level: String,
    /// Object with the index.
    pub index: Object,
    /// Hash of that object in hexadecimal.
    pub index_hash: String,
    /// Packs of the index.
    pub packs: Vec<Object>,
}

impl Reference {
    pub(crate) fn new(key: &str, level: &str, index: Object, index_hash: String, packs: Vec<Object>) -> Self {
        Self { version: VERSION, key: key.to_owned(), level: level.to_owned(), index, index_hash, packs }
    }

    /// Reads a reference.
    ///
    /// # Errors
    /// [`ChunkError::Damaged`], also if it contains an invalid object name.
    pub fn parse(bytes: &[u8]) -> Result<Self, ChunkError> {
        let reference: Self = serde_json::from_slice(bytes)
            .map_err(|error| ChunkError::damaged(format!("its reference is not valid: {error}")))?;
        if reference.version != VERSION {
            return Err(ChunkError::damaged(format!("version {} of the format is not supported", reference.version)));
        }
        if reference.packs.len() > MAX_PACKS {
            return Err(ChunkError::damaged(format!("its reference names more than {MAX_PACKS} packs")));
        }
        let invalid = reference.objects().map(|object| &object.name).find(|name| !is_object_name(name)).cloned();
        match invalid {
            Some(name) => Err(ChunkError::damaged(format!("`{name}` is not a valid object name"))),
            None => Ok(reference),
        }
    }

    /// Returns the stored form of the reference.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the index and the packs.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        std::iter::once(&self.index).chain(&self.packs)
    }
}

/// Returns whether a name is valid for a protection level: lowercase letters, digits and hyphens. It is thus one
/// component of a path.
pub(crate) fn is_level_name(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_valid)
}

/// Returns whether a name is valid for an object. It ends with `-index` or a number.
pub(crate) fn is_object_name(name: &str) -> bool {
    let is_end = |end: &str| end == "index" || !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
    is_level_name(name) && name.rsplit_once('-').is_some_and(|(id, end)| !id.is_empty() && is_end(end))
}
