//! Reads the entries of an archive.

mod tar;
mod zip;

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use filetime::FileTime;
use flate2::read::MultiGzDecoder;

use crate::UnpackError;
use crate::limits::Limits;
use crate::meter::{Meter, Packed};
use crate::name;

pub use self::zip::read_at;
pub(crate) use self::zip::{Header, ZipFiles, visit_zip};

/// Maximum length of a link's target in bytes.
pub(crate) const MAX_LINK_TARGET: u64 = 4096;
/// Maximum length of an entry's name in bytes, as for paths on Linux.
const MAX_NAME: usize = 4096;
/// Number of bytes that the error quotes of a name that is too long.
const QUOTED_NAME_BYTES: usize = 100;

/// Format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Zip with stored, deflate and zstd members.
    Zip,
    /// Tar without compression.
    Tar,
    /// Tar with gzip.
    TarGzip,
    /// Tar with zstd.
    TarZstd,
}

impl Format {
    /// Returns the format with these first bytes. Plain tar is not recognized.
    #[must_use]
    pub fn from_magic(head: &[u8]) -> Option<Self> {
        match head {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::TarZstd),
            [0x1f, 0x8b, ..] => Some(Self::TarGzip),
            [b'P', b'K', ..] => Some(Self::Zip),
            _ => None,
        }
    }
}

/// Kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link with this target.
    Link(PathBuf),
}

/// Entry of an archive without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative path without `.` and `..`. Empty means the directory itself.
    pub path: PathBuf,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Permissions without setuid, setgid and sticky, if the archive has them.
    pub mode: Option<u32>,
    /// Modification time, if the archive has it.
    pub modified: Option<FileTime>,
    /// Size of the content in bytes, as the archive declares it. `None` means that it is unknown.
    pub size: Option<u64>,
}

/// Function that gets each entry with its content.
type Visit<'a, E> = dyn FnMut(&Entry, &mut dyn Read) -> Result<(), E> + 'a;

/// Calls `visit` for each entry in order. `meter` must be new.
///
/// Entries are directories, files or symbolic links with paths in the target directory. `visit` need not read the
/// content.
///
/// # Errors
/// [`UnpackError`], or the error that `visit` returns.
pub fn read<R: Read + Seek, E: From<UnpackError>>(
    mut archive: R,
    format: Format,
    meter: &Meter<'_>,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let size = archive.seek(SeekFrom::End(0)).and_then(|size| archive.rewind().map(|()| size));
    meter.set_size(size.map_err(UnpackError::Broken)?);
    let archive = Packed { inner: archive, meter };
    let read = match format {
        Format::Zip => zip::read(archive, meter, visit),
        Format::Tar => tar::read(BufReader::new(archive), meter, visit),
        Format::TarGzip => tar::read(MultiGzDecoder::new(BufReader::new(archive)), meter, visit),
        Format::TarZstd => match zstd::Decoder::new(archive) {
            Ok(content) => tar::read(content, meter, visit),
            Err(error) => Err(UnpackError::Broken(error).into()),
        },
    };
    // Libraries wrap a stop or an exceeded limit in their own error, so the cause is returned instead.
    read.map_err(|error| meter.cause().map_or(error, E::from))
}

/// Checks that a file is a zip archive within the limits. Reads only headers.
pub fn check_zip<R: Read + Seek>(archive: R, limits: &Limits) -> Result<(), UnpackError> {
    let meter = Meter::new(*limits, &|| false);
    zip::check(archive, &meter).map_err(|error| meter.cause().unwrap_or(error))
}

/// Reads one file of a zip archive, if it exists.
///
/// # Errors
/// [`UnpackError`], also if the file is larger than [`Limits::bytes`].
pub fn read_zip_file<R: Read + Seek>(archive: R, name: &str, limits: &Limits) -> Result<Option<Vec<u8>>, UnpackError> {
    let meter = Meter::new(*limits, &|| false);
    zip::find(archive, name, &meter).map_err(|error| meter.cause().unwrap_or(error))
}

/// Fails if a name is longer than a valid path.
fn check_length(name: &[u8]) -> Result<(), UnpackError> {
    if name.len() <= MAX_NAME {
        return Ok(());
    }
    let start = String::from_utf8_lossy(name.get(..QUOTED_NAME_BYTES).unwrap_or_default());
    Err(UnpackError::Kind { name: format!("{start}..."), kind: "file with a name of more than 4096 bytes" })
}

/// Returns the path of an entry's name: relative, without `.` and `..`.
///
/// # Errors
/// [`UnpackError::Outside`] if the name leaves the target directory, is empty, or is not a valid file name.
pub fn path(name: PathBuf, kind: &EntryKind) -> Result<PathBuf, UnpackError> {
    match name::relative(&name) {
        Some(path) if *kind == EntryKind::Directory || !path.as_os_str().is_empty() => Ok(path),
        _ => Err(UnpackError::Outside { name: name.display().to_string() }),
    }
}

fn broken(error: impl Into<io::Error>) -> UnpackError {
    UnpackError::Broken(error.into())
}
