//! Replaces a file so that the old or the new one always exists.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::EditError;

/// Maximum number of names that are tried for the new file, `.<name>.new-<process ID>-<number>`.
const MAX_NAMES: u32 = 100;

/// Creates the directory of the file `path` with mode 0700. An existing directory is not changed.
pub(super) fn create_directory(path: &Path) -> Result<(), EditError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    created.map_err(|source| EditError::Io { doing: "create the directory", path: directory.to_owned(), source })
}

/// Replaces the text of the file, which must still be `before`, with `text`. `before` is `None` if there was no file.
pub(super) fn replace(path: &Path, before: Option<&str>, text: &str) -> Result<(), EditError> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| EditError::Io { doing, path, source }
    };
    remove_leftovers(path);
    let (new, mut file) = create_new_beside(path).map_err(failed("write a file beside", path))?;
    let written =
        copy_mode_and_owner(path, &file).and_then(|()| file.write_all(text.as_bytes())).and_then(|()| file.sync_all());
    let remove_new = || drop(fs::remove_file(&new));
    if let Err(source) = written {
        remove_new();
        return Err(failed("write", path)(source));
    }
    match fs::read(path) {
        Ok(current) if before.is_some_and(|before| before.as_bytes() == current) => {}
        Err(error) if before.is_none() && error.kind() == ErrorKind::NotFound => {}
        Err(source) if source.kind() != ErrorKind::NotFound => {
            remove_new();
            return Err(failed("read", path)(source));
        }
        _ => {
            remove_new();
            return Err(EditError::ModifiedConcurrently { path: path.to_owned() });
        }
    }
    match fs::rename(&new, path) {
        Ok(()) => {}
        // A container engine mounted the file itself, which can then only be overwritten.
        Err(error) if matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::CrossesDevices) => {
            overwrite(path, text).map_err(failed(super::OVERWRITE, path))?;
            remove_new();
        }
        Err(source) => {
            remove_new();
            return Err(failed("replace", path)(source));
        }
    }
    // Makes the rename durable, if the file system needs that.
    let _ = path.parent().map_or(Ok(()), |directory| File::open(directory).and_then(|directory| directory.sync_all()));
    Ok(())
}

fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

/// Deletes the files of interrupted saves, because they contain tokens. Under the lock, no other process writes them.
fn remove_leftovers(path: &Path) {
    let prefix = format!(".{}.new-", path.file_name().unwrap_or_default().to_string_lossy());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    for entry in path.parent().and_then(|directory| fs::read_dir(directory).ok()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let numbers = name.strip_prefix(&prefix).and_then(|rest| rest.split_once('-'));
        if numbers.is_some_and(|(process, number)| is_number(process) && is_number(number)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn create_new_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for number in 0..MAX_NAMES {
        let new = path.with_file_name(format!(".{name}.new-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new) {
            Ok(file) => return Ok((new, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, format!("{MAX_NAMES} files `.{name}.new-*` exist; remove them")))
}

/// Gives the new file the mode and owner of the file at `path`. If that does not exist, the mode stays 0600.
fn copy_mode_and_owner(path: &Path, file: &File) -> io::Result<()> {
    let old = match fs::metadata(path) {
        Ok(old) => old,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let new = file.metadata()?;
    if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
        // Only root can keep the owner.
        let _ = std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid()));
    }
    file.set_permissions(Permissions::from_mode(old.mode() & 0o777))
}
