//! The bare repository of a run, which stores only objects that the user's repository does not have.

use std::fs;
use std::io;
use std::path::Path;

use crate::SnapshotError;
use crate::locate::FoundRepository;

/// Creates or updates the files of the store. Idempotent.
pub(super) fn prepare_store(store: &Path, located: &FoundRepository) -> Result<(), SnapshotError> {
    let write = || -> io::Result<()> {
        fs::create_dir_all(store.join("objects/info"))?;
        fs::create_dir_all(store.join("refs"))?;
        write_atomically(&store.join("objects/info/alternates"), &alternates(&located.common_dir.join("objects")))?;
        let mut config = String::from("[core]\n\tbare = true\n");
        if located.object_format == "sha1" {
            config.push_str("\trepositoryformatversion = 0\n");
        } else {
            config.push_str("\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = ");
            config.push_str(&located.object_format);
            config.push('\n');
        }
        config.push_str("[uploadpack]\n\tallowAnySHA1InWant = true\n\tallowFilter = true\n");
        write_atomically(&store.join("config"), config.as_bytes())?;
        match fs::read(located.common_dir.join("shallow")) {
            Ok(shallow) => write_atomically(&store.join("shallow"), &shallow)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        write_atomically(&store.join("HEAD"), format!("{}\n", located.head).as_bytes())
    };
    write().map_err(store_error(store))
}

/// Returns the line of `objects/info/alternates`, quoted for git if necessary.
fn alternates(objects: &Path) -> Vec<u8> {
    let bytes = objects.as_os_str().as_encoded_bytes();
    let mut line = Vec::with_capacity(bytes.len() + 3);
    if bytes.iter().any(|byte| matches!(byte, b'\n' | b'"' | b'#')) {
        line.push(b'"');
        for byte in bytes {
            match byte {
                b'\n' => line.extend_from_slice(b"\\n"),
                b'"' | b'\\' => line.extend_from_slice(&[b'\\', *byte]),
                _ => line.push(*byte),
            }
        }
        line.push(b'"');
    } else {
        line.extend_from_slice(bytes);
    }
    line.push(b'\n');
    line
}

/// Copies the index with its modification time, from which git decides which files it reads again.
pub(super) fn copy_index(from: &Path, to: &Path) -> Result<(), SnapshotError> {
    let copy = || -> io::Result<()> {
        let modified = match fs::metadata(from) {
            Ok(meta) => meta.modified()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        fs::copy(from, to)?;
        fs::File::options().write(true).open(to)?.set_modified(modified)
    };
    copy().map_err(store_error(to))
}

pub(super) fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(directory)?;
    io::Write::write_all(&mut file, content)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

pub(super) fn store_error(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError + use<> {
    let path = path.to_owned();
    move |source| SnapshotError::Store { path, source }
}
