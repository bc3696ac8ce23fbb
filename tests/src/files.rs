use std::path::{Path, PathBuf};

/// Calls `visit` with each file, and whether other users or the group may be able to read it.
pub(crate) fn visit_files(directory: &Path, visit: &mut impl FnMut(&Path, bool)) {
    visit_files_below(directory, true, visit);
}

fn visit_files_below(directory: &Path, is_reachable: bool, visit: &mut impl FnMut(&Path, bool)) {
    use std::os::unix::fs::PermissionsExt as _;
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let permits = |mask| is_reachable && metadata.permissions().mode() & mask != 0;
        if metadata.is_dir() {
            // A directory without permissions for others protects the files below it.
            visit_files_below(&entry.path(), permits(0o055), visit);
        } else if metadata.is_file() {
            visit(&entry.path(), permits(0o044));
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_file_is_visited_and_private_directories_protect_their_files() {
        let home = tempfile::tempdir().unwrap();
        for (name, directory_mode, file_mode) in
            [("private", 0o700, 0o644), ("group", 0o750, 0o640), ("public", 0o755, 0o644), ("secret", 0o755, 0o600)]
        {
            let directory = home.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("log"), "").unwrap();
            for (path, mode) in [(directory.join("log"), file_mode), (directory, directory_mode)] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        let mut files = Vec::new();
        visit_files(home.path(), &mut |path, is_readable| {
            files.push((path.strip_prefix(home.path()).unwrap().to_owned(), is_readable));
        });
        files.sort();
        let expected = [("group/log", true), ("private/log", false), ("public/log", true), ("secret/log", false)];
        assert_eq!(files, expected.map(|(path, is_readable)| (path.into(), is_readable)));
    }
}
