//! Unpacking zip archives (job-execution 9.3), so that nothing is written outside the target: neither by `..` nor by
//! an absolute name, nor through a link that is there already. Links of the archive are made last.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use filetime::FileTime;
use muster_steps::stop::Stop;
use time::OffsetDateTime;
use zip::ZipArchive;
use zip::extra_fields::ExtraField;
use zip::read::ZipFile;

use crate::failure::Failure;

/// The longest target of a link.
const MAX_LINK: u64 = 4096;

/// Unpacks the zip archive into `root`. Files that are there are replaced.
pub(crate) fn zip(archive: File, root: &Path, stop: &Stop) -> Result<(), Failure> {
    let root = fs::create_dir_all(root).and_then(|()| fs::canonicalize(root));
    let root = root.map_err(Failure::io("cannot find the directory to unpack to"))?;
    let broken = |error: zip::result::ZipError| Failure::Step(format!("the archive cannot be read: {error}"));
    let mut zip = ZipArchive::new(io::BufReader::new(archive)).map_err(broken)?;
    let mut unpacker = Unpacker { root: &root, directories: HashSet::new(), links: Vec::new(), attributes: Vec::new() };
    for index in 0..zip.len() {
        if let Some(cause) = stop.cause() {
            return Err(Failure::Stopped(cause));
        }
        let mut entry = zip.by_index(index).map_err(broken)?;
        let Some(relative) = enclosed(entry.name()) else {
            return Err(Failure::Step(format!(
                "the archive holds `{}`, which lies outside the project: nothing more is unpacked",
                entry.name()
            )));
        };
        let name = relative.display().to_string();
        unpacker.entry(&mut entry, relative).map_err(Failure::io(format!("cannot unpack `{name}`")))?;
    }
    unpacker.finish().map_err(Failure::io("cannot finish unpacking"))
}

/// The name as a relative path that stays inside; none for any other.
fn enclosed(name: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return None,
        }
    }
    (!name.contains('\0')).then_some(path)
}

struct Unpacker<'a> {
    root: &'a Path,
    /// Directories known to be real and inside.
    directories: HashSet<PathBuf>,
    links: Vec<(PathBuf, PathBuf)>,
    /// Permissions and times of directories, set last: a read-only one can be filled, and filling changes the time.
    attributes: Vec<(PathBuf, u32, Option<FileTime>)>,
}

impl Unpacker<'_> {
    fn entry<R: Read>(&mut self, entry: &mut ZipFile<'_, R>, relative: PathBuf) -> io::Result<()> {
        if entry.is_dir() {
            self.directory(&relative)?;
            let mode = entry.unix_mode().map_or(0o755, |mode| mode & 0o777);
            self.attributes.push((self.root.join(&relative), mode, modified(entry)));
            return Ok(());
        }
        self.directory(relative.parent().unwrap_or(Path::new("")))?;
        let path = self.root.join(&relative);
        if entry.is_symlink() {
            let mut target = String::new();
            entry.by_ref().take(MAX_LINK).read_to_string(&mut target)?;
            self.links.push((path, target.into()));
            return Ok(());
        }
        remove(&path)?;
        let mode = entry.unix_mode().map_or(0o644, |mode| mode & 0o777);
        let mut file = File::options().write(true).create_new(true).mode(mode | 0o200).open(&path)?;
        io::copy(entry, &mut file)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        if let Some(time) = modified(entry) {
            filetime::set_file_handle_times(&file, None, Some(time))?;
        }
        Ok(())
    }

    /// Makes a directory with those above it. A link among them is only accepted if it leads to a place inside.
    fn directory(&mut self, relative: &Path) -> io::Result<()> {
        let mut path = PathBuf::new();
        for part in relative.components() {
            path.push(part);
            if self.directories.contains(&path) {
                continue;
            }
            let full = self.root.join(&path);
            match fs::symlink_metadata(&full) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(&full)?,
                Err(error) => return Err(error),
                Ok(metadata) if metadata.is_dir() => {}
                Ok(metadata) if metadata.is_symlink() => {
                    if !fs::canonicalize(&full).is_ok_and(|to| to.starts_with(self.root) && to.is_dir()) {
                        return Err(io::Error::other("a link on its way leads out of the project"));
                    }
                }
                Ok(_) => {
                    fs::remove_file(&full)?;
                    fs::create_dir(&full)?;
                }
            }
            self.directories.insert(path.clone());
        }
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        for (path, target) in self.links {
            remove(&path)?;
            std::os::unix::fs::symlink(target, &path)?;
        }
        for (path, mode, time) in self.attributes.into_iter().rev() {
            if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
                if let Some(time) = time {
                    filetime::set_file_mtime(&path, time)?;
                }
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            }
        }
        Ok(())
    }
}

/// Removes what is in a file's way; a directory only if it is empty.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
    }
}

fn modified<R: Read>(entry: &ZipFile<'_, R>) -> Option<FileTime> {
    let exact = entry.extra_data_fields().find_map(|field| match field {
        ExtraField::ExtendedTimestamp(stamp) => stamp.mod_time(),
        ExtraField::Ntfs(_) => None,
    });
    if let Some(seconds) = exact {
        return Some(FileTime::from_unix_time(i64::from(seconds.cast_signed()), 0));
    }
    let time = OffsetDateTime::try_from(entry.last_modified()?).ok()?;
    Some(FileTime::from_unix_time(time.unix_timestamp(), 0))
}

#[cfg(test)]
mod tests;
