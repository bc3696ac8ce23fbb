//! Removes directories that jobs have written.

use std::io;
use std::path::Path;

/// Removes a directory if it exists, even without write permissions (docs/spec/job-execution.md, section 4.3).
pub(crate) fn remove_tree(dir: &Path) -> io::Result<()> {
    match muster_files::remove_tree(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => muster_files::remove_locked_tree(dir),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn read_only_directory_is_removed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("locked/inner")).unwrap();
        fs::set_permissions(tree.join("locked"), fs::Permissions::from_mode(0o500)).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
    }

    /// A recursive removal of this tree would overflow the stack.
    #[test]
    fn deep_directory_is_removed_on_small_stack() {
        use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut deepest = openat(CWD, &tree, flags, Mode::empty()).unwrap();
        for _ in 0..40_000 {
            mkdirat(&deepest, "d", 0o755.into()).unwrap();
            deepest = openat(&deepest, "d", flags, Mode::empty()).unwrap();
        }
        // The deepest directory cannot be emptied before its permissions are changed.
        mkdirat(&deepest, "inner", 0o755.into()).unwrap();
        rustix::fs::fchmod(&deepest, 0o500.into()).unwrap();
        let removed = tree.clone();
        let removing = std::thread::Builder::new().stack_size(256 * 1024).spawn(move || remove_tree(&removed));
        removing.unwrap().join().unwrap().unwrap();
        assert!(!tree.exists());
    }
}
