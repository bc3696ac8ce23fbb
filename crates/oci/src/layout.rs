//! OCI image layouts in a tar archive: one index, and everything that it refers to.
//!
//! The version is the annotation `org.opencontainers.image.ref.name` of the index in `index.json`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, EntryType, Header};

use crate::blob::Blob;
use crate::client::MAX_DOCUMENT_BYTES;
use crate::digest::{Digest, feed};
use crate::manifest::Descriptor;
use crate::publish::{BuiltIndex, Document};

const VERSION: &str = "org.opencontainers.image.ref.name";
const LAYOUT_FILE: &str = "oci-layout";
const INDEX_FILE: &str = "index.json";
const BLOBS: &str = "blobs/sha256/";
/// Maximum total size of the files in bytes.
const MAX_BYTES: u64 = 1024 * 1024 * 1024;
const MAX_FILES: usize = 10_000;

/// Reason why a file is not a valid image layout.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The archive cannot be read.
    #[error("failed to read the archive")]
    Io(#[from] io::Error),
    /// A document cannot be parsed.
    #[error("{name} is not a valid document")]
    Document {
        /// Name of the document in the archive.
        name: String,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// A file is missing.
    #[error("the archive has no file {0}")]
    Missing(String),
    /// The content of a file does not match the digest in its name.
    #[error("the file {0} does not match its digest")]
    Digest(String),
    /// The archive does not contain exactly one index with a version and images, or has no file `oci-layout`.
    #[error(
        "the archive must contain one index with images and with the annotation `{VERSION}`, and the file {LAYOUT_FILE}"
    )]
    NoIndex,
    /// A document is too large.
    #[error("the file {0} has more than {limit} bytes, the limit for an index or a manifest", limit = MAX_DOCUMENT_BYTES)]
    LargeDocument(String),
    /// The archive is too large.
    #[error("the archive has more than {MAX_FILES} files or {} MiB", MAX_BYTES / 1024 / 1024)]
    TooLarge,
}

#[derive(Deserialize)]
struct References {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

/// Writes an index and its version. The same index always produces the same archive.
///
/// # Errors
/// The error of the writer.
pub fn write_layout(to: impl Write, built: &BuiltIndex, version: &str) -> io::Result<()> {
    let digest = Digest::of(&built.index.bytes).to_string();
    let index = json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": built.index.media_type,
            "digest": digest,
            "size": built.index.bytes.len(),
            "annotations": {VERSION: version},
        }],
    });
    let documents = built.manifests.iter().chain([&built.index]).map(|document| Blob::from(document.bytes.clone()));
    // The map has each blob once, because images can share layers.
    let blobs: BTreeMap<String, Blob> = built
        .blobs
        .iter()
        .cloned()
        .chain(documents)
        .map(|blob| (blob_name(&blob.digest().to_string()), blob))
        .collect();
    let mut archive = Builder::new(to);
    add(&mut archive, LAYOUT_FILE, &br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec().into())?;
    add(&mut archive, INDEX_FILE, &index.to_string().into_bytes().into())?;
    for (name, blob) in blobs {
        add(&mut archive, &name, &blob)?;
    }
    archive.into_inner()?.flush()
}

fn add(archive: &mut Builder<impl Write>, name: &str, content: &Blob) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_size(content.size());
    archive.append_data(&mut header, name, content.reader())
}

fn blob_name(digest: &str) -> String {
    format!("{BLOBS}{}", digest.strip_prefix("sha256:").unwrap_or(digest))
}

/// Reads an index and its version from an archive. Blocks.
///
/// Verifies all digests. The returned blobs read their content from the archive on demand.
pub fn read_layout(from: File) -> Result<(String, BuiltIndex), LayoutError> {
    let mut files = read_files(from)?;
    let top = files.remove(INDEX_FILE).ok_or_else(|| LayoutError::Missing(INDEX_FILE.into()))?;
    let top: References = parse(INDEX_FILE, &document(INDEX_FILE, &top)?)?;
    let ([entry], true) = (top.manifests.as_slice(), files.contains_key(LAYOUT_FILE)) else {
        return Err(LayoutError::NoIndex);
    };
    let version = entry.annotations.get(VERSION).filter(|version| !version.is_empty()).ok_or(LayoutError::NoIndex)?;
    let index = Document { media_type: entry.media_type.clone(), bytes: take(&mut files, &entry.digest)? };
    let references: References = parse(&entry.digest, &index.bytes)?;
    let (mut blobs, mut manifests) = (Vec::new(), Vec::new());
    let mut digests = HashSet::new();
    // The index can have an image several times, for example for several versions of an operating system.
    for entry in references.manifests.iter().filter(|entry| digests.insert(&entry.digest)) {
        let manifest = Document { media_type: entry.media_type.clone(), bytes: take(&mut files, &entry.digest)? };
        let inner: References = parse(&entry.digest, &manifest.bytes)?;
        for blob in inner.config.iter().chain(&inner.layers) {
            // Images can share layers, so the blob is not removed from `files`.
            let name = blob_name(&blob.digest);
            let content = files.get(&name).ok_or(LayoutError::Missing(name))?;
            if !blobs.contains(content) {
                blobs.push(content.clone());
            }
        }
        manifests.push(manifest);
    }
    if manifests.is_empty() {
        return Err(LayoutError::NoIndex);
    }
    Ok((version.clone(), BuiltIndex { blobs, manifests, index }))
}

/// Finds blobs, `index.json` and `oci-layout` in an archive, and verifies the digests of the blobs.
fn read_files(from: File) -> Result<HashMap<String, Blob>, LayoutError> {
    let mut files = HashMap::new();
    let mut left = MAX_BYTES;
    let from = Arc::new(from);
    for entry in Archive::new(BufReader::new(&*from)).entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
        let is_blob = name.starts_with(BLOBS);
        if entry.header().entry_type() != EntryType::Regular || !(is_blob || name == LAYOUT_FILE || name == INDEX_FILE)
        {
            continue;
        }
        if entry.size() > left || files.len() == MAX_FILES {
            return Err(LayoutError::TooLarge);
        }
        let (start, size) = (entry.raw_file_position(), entry.size());
        left -= size;
        let mut hash = Sha256::new();
        if feed(&mut hash, &mut entry)? != size {
            return Err(LayoutError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let digest = Digest::finish(hash);
        if is_blob && blob_name(&digest.to_string()) != name {
            return Err(LayoutError::Digest(name));
        }
        files.insert(name, Blob::in_file(Arc::clone(&from), start, size, digest));
    }
    Ok(files)
}

fn take(files: &mut HashMap<String, Blob>, digest: &str) -> Result<Vec<u8>, LayoutError> {
    let name = blob_name(digest);
    let file = files.remove(&name).ok_or_else(|| LayoutError::Missing(name.clone()))?;
    document(&name, &file)
}

/// Reads a document of at most [`MAX_DOCUMENT_BYTES`].
fn document(name: &str, file: &Blob) -> Result<Vec<u8>, LayoutError> {
    if file.size() > MAX_DOCUMENT_BYTES {
        return Err(LayoutError::LargeDocument(name.to_owned()));
    }
    let mut content = Vec::new();
    file.reader().read_to_end(&mut content)?;
    Ok(content)
}

fn parse(name: &str, content: &[u8]) -> Result<References, LayoutError> {
    serde_json::from_slice(content).map_err(|source| LayoutError::Document { name: name.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Platform;
    use crate::publish::Image;

    fn built() -> BuiltIndex {
        let image = |os: &str, own: &[u8]| Image {
            platform: Platform { os: os.to_owned(), architecture: "amd64".to_owned(), ..Platform::default() },
            layers: [&b"common"[..], own].map(|layer| layer.to_vec().into()).into(),
        };
        BuiltIndex::new("layer/type", vec![image("linux", b"one"), image("plan9", b"two")], &BTreeMap::new())
    }

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = Builder::new(Vec::new());
        files.iter().for_each(|(name, content)| add(&mut archive, name, &content.to_vec().into()).unwrap());
        archive.into_inner().unwrap()
    }

    fn read(archive: &[u8]) -> Result<(String, BuiltIndex), LayoutError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(archive).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        read_layout(file)
    }

    #[test]
    fn index_is_the_same_after_it_was_written_and_read() {
        let mut file = Vec::new();
        write_layout(&mut file, &built(), "1.2.3").unwrap();
        let (version, read) = read(&file).unwrap();
        assert_eq!(version, "1.2.3");
        let written = built();
        assert_eq!((&read.index, &read.manifests), (&written.index, &written.manifests));
        assert_eq!(read.blobs.len(), 5, "the common layer is stored once");
        assert!(written.blobs.iter().all(|blob| read.blobs.contains(blob)));
        let mut again = Vec::new();
        write_layout(&mut again, &read, "1.2.3").unwrap();
        assert_eq!(again, file);
    }

    #[test]
    fn index_can_have_an_image_twice() {
        let image = || Image {
            platform: Platform { os: "linux".to_owned(), architecture: "amd64".to_owned(), ..Platform::default() },
            layers: [b"layer".to_vec().into()].into(),
        };
        let written = BuiltIndex::new("layer/type", vec![image(), image()], &BTreeMap::new());
        let mut file = Vec::new();
        write_layout(&mut file, &written, "1").unwrap();
        let (_, read) = read(&file).unwrap();
        assert_eq!(read.index, written.index);
        assert_eq!(read.manifests, written.manifests[..1], "an image is published once");
    }

    #[test]
    fn invalid_archives_are_rejected() {
        let layout = (LAYOUT_FILE, &b"{}"[..]);
        let entry =
            |name: &str| json!({"manifests": [{"digest": "sha256:ab", "annotations": {name: "1"}}]}).to_string();
        let (unnamed, named) = (entry("other"), entry(VERSION));
        for (files, message) in [
            (vec![layout], "the archive has no file index.json"),
            (vec![layout, (INDEX_FILE, &b"["[..])], "index.json is not a valid document"),
            (vec![layout, (INDEX_FILE, &b"{}"[..])], "must contain one index"),
            (vec![layout, (INDEX_FILE, unnamed.as_bytes())], "must contain one index"),
            (vec![(INDEX_FILE, named.as_bytes())], "must contain one index"),
            (vec![layout, (INDEX_FILE, named.as_bytes())], "the archive has no file blobs/sha256/ab"),
            (vec![layout, ("blobs/sha256/ab", &b"x"[..])], "blobs/sha256/ab does not match its digest"),
        ] {
            let error = read(&archive(&files)).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let valid = built();
        let mut file = Vec::new();
        write_layout(&mut file, &valid, "1").unwrap();
        assert!(read(&file[..file.len() / 2]).is_err(), "a truncated archive is an error");
    }
}
