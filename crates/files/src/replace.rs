//! Replaces a whole file.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes or replaces a file. Readers find either the old or the new content, even after a power failure. Blocks the
/// thread.
///
/// The new file has the permissions `mode`. A symbolic link is replaced.
///
/// # Errors
/// The error of the system. The file is then unchanged, unless only the final sync of the directory failed.
pub fn replace(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new().prefix(".new-").tempfile_in(directory)?;
    new.write_all(content)?;
    new.as_file().set_permissions(Permissions::from_mode(mode))?;
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn file_has_the_new_content_and_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for (mode, content) in [(0o600, "secret"), (0o644, "longer than before")] {
            replace(&path, mode, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file must remain");
    }

    #[test]
    fn target_of_a_symbolic_link_keeps_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        replace(&link, 0o600, b"new").unwrap();
        assert_eq!(
            (fs::read_to_string(&target).unwrap(), fs::read_to_string(&link).unwrap()),
            ("old".into(), "new".into())
        );
    }
}
