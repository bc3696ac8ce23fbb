//! Names of entries.

use std::path::{Component, Path, PathBuf};

/// Returns the name as a relative path without `.`. Returns `None` if the name is empty or absolute, or contains `..` or NUL.
///
/// The path is empty for the root directory (`.`). A backslash is an ordinary character, as in the file systems of Unix.
pub(crate) fn relative(name: &Path) -> Option<PathBuf> {
    if name.as_os_str().is_empty() || name.as_os_str().as_encoded_bytes().contains(&0) {
        return None;
    }
    let mut path = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}
