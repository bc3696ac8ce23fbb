//! Names of entries.

use std::path::{Component, Path, PathBuf};

/// Returns a name as a relative path without `.`. `None` means that it is empty or absolute, or contains `..` or NUL.
///
/// The path of the root directory (`.`) is empty. A backslash is an ordinary character.
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
