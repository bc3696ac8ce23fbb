//! Unpacking archives, zip and tar with zstd (job-execution 9.3), so that nothing is written outside the target: neither by `..` nor by
//! an absolute name, nor through a link that is there already. Links of the archive are made last.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use filetime::FileTime;
use muster_steps::stop::Stop;
use time::OffsetDateTime;
use zip::ZipArchive;
use zip::extra_fields::ExtraField;
use zip::read::ZipFile;

use super::{UntilStopped, failure};
use crate::failure::Failure;
use crate::site::{Site, Tone};

/// The longest target of a link.
const MAX_LINK: u64 = 4096;

/// So many entries that could not be put in place are told one by one.
const MAX_TOLD: usize = 20;

/// What an archive holds and the directory did not take, as a directory with files where a file should be.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// Each with the reason, for people.
    told: Vec<String>,
    /// How many more there are.
    more: usize,
}

impl LeftOut {
    /// A line for each of the first ones, and one for all others.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let more = (self.more > 0).then(|| format!("{} more were not unpacked", self.more));
        self.told.iter().cloned().chain(more)
    }

    /// Warns of each.
    pub fn tell(&self, site: &dyn Site) {
        self.lines().for_each(|line| site.tell(Tone::Warning, &line));
    }

    fn add(&mut self, path: &Path, error: &io::Error) {
        if self.told.len() < MAX_TOLD {
            self.told.push(format!("{}: not unpacked, left as it is: {error}", path.display()));
        } else {
            self.more += 1;
        }
    }
}

/// Unpacks the archive into `root`; its format is told by its first bytes. Files that are there are replaced. What `root` has
/// something in the way of is left out.
///
/// # Errors
/// [`Failure::Step`] for what is no archive or wants to write elsewhere, else what the system has against it.
pub fn unpack(mut archive: File, root: &Path, stop: &Stop) -> Result<LeftOut, Failure> {
    let mut head = [0; 4];
    let length = archive.read(&mut head).and_then(|length| archive.rewind().map(|()| length));
    let length = length.map_err(Failure::io("cannot read the archive"))?;
    let root = fs::create_dir_all(root).and_then(|()| fs::canonicalize(root));
    let root = root.map_err(Failure::io("cannot find the directory to unpack to"))?;
    let mut unpacker = Unpacker {
        root: &root,
        stop,
        directories: HashSet::new(),
        links: Vec::new(),
        attributes: Vec::new(),
        left_out: LeftOut::default(),
    };
    match head.get(..length).unwrap_or_default() {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => unpacker.tar_zstd(archive)?,
        [0x1f, 0x8b, ..] => {
            return Err(Failure::Step("the archive is a gzip file, which cannot be unpacked".to_owned()));
        }
        _ => unpacker.zip(archive)?,
    }
    unpacker.finish().map_err(Failure::io("cannot finish unpacking"))
}

/// Whether an error is about what is at an entry's place, or about its name, and not about the machine.
fn is_in_the_way(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AlreadyExists, DirectoryNotEmpty, InvalidFilename, IsADirectory, NotADirectory, PermissionDenied,
    };
    matches!(
        error.kind(),
        AlreadyExists | DirectoryNotEmpty | InvalidFilename | IsADirectory | NotADirectory | PermissionDenied
    )
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

/// What an entry is.
enum Kind {
    Directory,
    /// A symbolic link, with its target.
    Link(PathBuf),
    File,
}

/// One entry, but its content.
struct Entry {
    name: String,
    kind: Kind,
    mode: Option<u32>,
    modified: Option<FileTime>,
}

struct Unpacker<'a> {
    root: &'a Path,
    stop: &'a Stop,
    /// Directories known to be real and inside.
    directories: HashSet<PathBuf>,
    links: Vec<(PathBuf, PathBuf)>,
    /// Permissions and times of directories, set last: a read-only one can be filled, and filling changes the time.
    attributes: Vec<(PathBuf, u32, Option<FileTime>)>,
    left_out: LeftOut,
}

impl Unpacker<'_> {
    fn zip(&mut self, archive: File) -> Result<(), Failure> {
        let broken = |error: zip::result::ZipError| broken(&error);
        let mut zip = ZipArchive::new(BufReader::new(archive)).map_err(broken)?;
        for index in 0..zip.len() {
            let mut file = zip.by_index(index).map_err(broken)?;
            let kind = if file.is_dir() {
                Kind::Directory
            } else if file.is_symlink() {
                let mut target = String::new();
                let read = file.by_ref().take(MAX_LINK).read_to_string(&mut target);
                read.map_err(|error| self::broken(&error))?;
                Kind::Link(target.into())
            } else {
                Kind::File
            };
            let (mode, modified) = (file.unix_mode(), zip_modified(&file));
            self.entry(Entry { name: file.name().to_owned(), kind, mode, modified }, &mut file)?;
        }
        Ok(())
    }

    fn tar_zstd(&mut self, archive: File) -> Result<(), Failure> {
        let broken = |error: io::Error| broken(&error);
        let mut tar = tar::Archive::new(zstd::Decoder::new(archive).map_err(broken)?);
        for file in tar.entries().map_err(broken)? {
            let mut file = file.map_err(broken)?;
            let name = file.path().map_err(broken)?.to_string_lossy().into_owned();
            let header = file.header();
            let (mode, modified) = (header.mode().ok(), header.mtime().ok().and_then(|time| i64::try_from(time).ok()));
            let kind = match header.entry_type() {
                tar::EntryType::Directory => Kind::Directory,
                tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => Kind::File,
                tar::EntryType::Symlink => {
                    Kind::Link(file.link_name().map_err(broken)?.map(Cow::into_owned).unwrap_or_default())
                }
                other => {
                    return Err(Failure::Step(format!(
                        "the archive's `{name}` is neither file, directory nor symbolic \
                                                      link ({other:?}): nothing more is unpacked"
                    )));
                }
            };
            let modified = modified.map(|seconds| FileTime::from_unix_time(seconds, 0));
            self.entry(Entry { name, kind, mode, modified }, &mut file)?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: Entry, content: &mut dyn Read) -> Result<(), Failure> {
        if let Some(cause) = self.stop.cause() {
            return Err(Failure::Stopped(cause));
        }
        let Some(relative) = enclosed(&entry.name) else {
            return Err(Failure::Step(format!(
                "the archive holds `{}`, which lies outside the project: nothing more is unpacked",
                entry.name
            )));
        };
        let name = relative.display().to_string();
        match self.put(&entry, &relative, content) {
            Err(error) if is_in_the_way(&error) && self.stop.cause().is_none() => {
                self.left_out.add(&relative, &error);
                Ok(())
            }
            put => put.map_err(failure(format!("cannot unpack `{name}`"), self.stop)),
        }
    }

    fn put(&mut self, entry: &Entry, relative: &Path, content: &mut dyn Read) -> io::Result<()> {
        if let Kind::Directory = entry.kind {
            self.directory(relative)?;
            let mode = entry.mode.map_or(0o755, |mode| mode & 0o777);
            self.attributes.push((self.root.join(relative), mode, entry.modified));
            return Ok(());
        }
        self.directory(relative.parent().unwrap_or(Path::new("")))?;
        let path = self.root.join(relative);
        if let Kind::Link(target) = &entry.kind {
            self.links.push((path, target.clone()));
            return Ok(());
        }
        remove(&path)?;
        let mode = entry.mode.map_or(0o644, |mode| mode & 0o777);
        let mut file = File::options().write(true).create_new(true).mode(mode | 0o200).open(&path)?;
        io::copy(&mut UntilStopped { content, stop: self.stop }, &mut file)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        if let Some(time) = entry.modified {
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
                        let why = "a link on its way leads out of the project";
                        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
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

    fn finish(mut self) -> io::Result<LeftOut> {
        for (path, target) in self.links {
            let made = remove(&path).and_then(|()| std::os::unix::fs::symlink(target, &path));
            match made {
                Err(error) if is_in_the_way(&error) => {
                    self.left_out.add(path.strip_prefix(self.root).unwrap_or(&path), &error);
                }
                made => made?,
            }
        }
        for (path, mode, time) in self.attributes.into_iter().rev() {
            match set_attributes(&path, mode, time) {
                // Someone else's directory: its files are in it, and that is what counts.
                Err(error) if is_in_the_way(&error) => {}
                set => set?,
            }
        }
        Ok(self.left_out)
    }
}

fn set_attributes(path: &Path, mode: u32, time: Option<FileTime>) -> io::Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    if let Some(time) = time {
        filetime::set_file_mtime(path, time)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
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

fn broken(error: &dyn std::error::Error) -> Failure {
    Failure::Step(format!("the archive cannot be read: {error}"))
}

fn zip_modified<R: Read>(entry: &ZipFile<'_, R>) -> Option<FileTime> {
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
