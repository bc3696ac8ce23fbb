//! Private files at paths to which the job can write.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Replaces what exists at the path with a private file.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    create(path)?.write_all(content)
}

/// Replaces what exists at the path with an empty private file, which is open for writing.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    remove(path)?;
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Removes a file, a link, or a directory at the path.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) => {
            muster_files::remove_locked_tree(path)
        }
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn file_replaces_whatever_the_job_has_created() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        fs::write(&other, "other").unwrap();
        let create: [&dyn Fn(); 4] = [
            &|| {},
            &|| symlink(&other, &path).unwrap(),
            &|| {
                fs::write(&path, "long old content").unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
            },
            &|| fs::create_dir_all(path.join("inner")).unwrap(),
        ];
        for create in create {
            create();
            write(&path, b"new").unwrap();
            let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
            assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode & 0o777), ("new", 0o600));
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
    }
}
