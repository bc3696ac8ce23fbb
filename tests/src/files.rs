use std::path::{Path, PathBuf};

/// Calls `visit` with each file that other users may be able to reach, and whether they can read it.
pub(crate) fn walk(directory: &Path, visit: &mut impl FnMut(&Path, bool)) {
    use std::os::unix::fs::PermissionsExt as _;
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            // Other users cannot reach files in a directory without permissions for them.
            if metadata.permissions().mode() & 0o005 != 0 {
                walk(&entry.path(), visit);
            }
        } else if metadata.is_file() {
            visit(&entry.path(), metadata.permissions().mode() & 0o044 != 0);
        }
    }
}

/// Returns the nonempty directories for temporary files of jobs (`*.tmp`).
pub(crate) fn nonempty_temporary_directories(builds: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(builds).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        let path = entry.path();
        let is_nonempty = std::fs::read_dir(&path).is_ok_and(|mut content| content.next().is_some());
        if path.extension().is_some_and(|extension| extension == "tmp") {
            found.extend(is_nonempty.then_some(path));
        } else {
            found.extend(nonempty_temporary_directories(&path));
        }
    }
    found
}
