//! Opens and reads regular files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

/// Maximum time of one read, which only a broken file system exceeds.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a file, and advice for a larger one.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Maximum number of bytes.
    pub bytes: u64,
    /// Advice for a larger file, such as `keep large values in a file`.
    pub remedy: &'static str,
}

/// Error of opening or reading a file.
#[derive(Debug, thiserror::Error)]
#[error("failed to read `{}`: {problem}", path.display())]
pub struct FileError {
    /// Path of the file.
    pub path: PathBuf,
    /// Reason why the file could not be read.
    pub problem: Problem,
}

/// Reason why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Error of the system.
    #[error("{0}")]
    Io(io::Error),
    /// The path is not a regular file. Contains the type with an article.
    #[error("it is {0}, but only a regular file can be read; replace it with a regular file")]
    NotRegular(&'static str),
    /// The file is larger than the limit.
    #[error("it is larger than {} bytes; {}", .0.bytes, .0.remedy)]
    TooLarge(Limit),
    /// The file is not valid UTF-8.
    #[error("it is not valid UTF-8; save it as UTF-8 text")]
    NotText,
    /// Reading took longer than [`READ_TIMEOUT`].
    #[error("reading took longer than {} s; check the file system that contains it", READ_TIMEOUT.as_secs())]
    Timeout,
}

impl FileError {
    fn new(path: &Path, problem: Problem) -> Self {
        Self { path: path.to_owned(), problem }
    }

    /// Returns whether the file does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(&self.problem, Problem::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        let kind = match &error.problem {
            Problem::Io(source) => source.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

/// Opens a regular file for reading.
///
/// # Errors
/// [`FileError`] if the file cannot be opened, is not regular, or is a symbolic link.
pub fn open(path: &Path) -> Result<File, FileError> {
    open_with(File::options().read(true), path)
}

/// Opens a regular file for reading. Follows symbolic links, so the path must come from an operator.
///
/// # Errors
/// [`FileError`] if the file cannot be opened or is not regular.
pub fn open_following_links(path: &Path) -> Result<File, FileError> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    require_regular(opened, path, || path.metadata())
}

/// Opens a regular file with `options`.
///
/// # Errors
/// [`FileError`] if the file cannot be opened, is not regular, or is a symbolic link.
pub fn open_with(options: &mut OpenOptions, path: &Path) -> Result<File, FileError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    require_regular(opened, path, || path.symlink_metadata())
}

/// Opens the regular file `name` in a directory, which must not be a symbolic link.
///
/// # Errors
/// [`FileError`] if the file cannot be opened or is not regular, or if `name` is not a file name (such as `..` or
/// `a/b`).
pub fn open_in(dir: &Path, name: &str) -> Result<File, FileError> {
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH | OFlags::DIRECTORY;
    let directory = rustix::fs::open(dir, flags, Mode::empty());
    let directory = directory.map_err(|error| {
        let kind = dir.symlink_metadata().ok().and_then(|metadata| irregular_type(metadata.file_type()));
        let problem = kind.filter(|kind| *kind != DIRECTORY).map(Problem::NotRegular);
        FileError::new(dir, problem.unwrap_or(Problem::Io(error.into())))
    })?;
    open_at(directory, dir, name)
}

/// Opens the regular file `name` in an open directory. `dir` is its path, for errors.
///
/// # Errors
/// [`FileError`] if the file cannot be opened or is not regular, or if `name` is not a file name (such as `..` or
/// `a/b`).
pub fn open_at(directory: impl AsFd, dir: &Path, name: &str) -> Result<File, FileError> {
    let path = dir.join(name);
    if name.is_empty() || matches!(name, "." | "..") || name.contains('/') {
        return Err(FileError::new(&path, Problem::Io(io::ErrorKind::InvalidFilename.into())));
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::openat(directory, name, flags, Mode::empty());
    require_regular(opened.map(File::from).map_err(Into::into), &path, || path.symlink_metadata())
}

/// Reads an open file.
///
/// # Errors
/// [`FileError`], also if the file exceeds the limit.
pub fn read_open(file: File, path: &Path, limit: Limit) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let too_large = || FileError::new(path, Problem::TooLarge(limit));
    let io = |error| FileError::new(path, Problem::Io(error));
    // Avoids reading a large file. The file may still grow, so the read below is limited, too.
    if file.metadata().map_err(io)?.len() > limit.bytes {
        return Err(too_large());
    }
    file.take(limit.bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit.bytes { Err(too_large()) } else { Ok(bytes) }
}

/// Reads a text file.
pub async fn read(path: PathBuf, limit: Limit) -> Result<String, FileError> {
    let error_path = path.clone();
    run_blocking(&error_path, move || decode_text(read_open(open(&path)?, &path, limit)?, &path)).await
}

/// Reads the text file `name` in a directory, which must not be a symbolic link.
pub async fn read_in(dir: PathBuf, name: String, limit: Limit) -> Result<String, FileError> {
    let path = dir.join(&name);
    let error_path = path.clone();
    run_blocking(&error_path, move || decode_text(read_open(open_in(&dir, &name)?, &path, limit)?, &path)).await
}

/// Reads up to `bytes` bytes from the end of a file. Invalid UTF-8 is replaced.
pub async fn read_tail(path: PathBuf, bytes: u64) -> Result<String, FileError> {
    let error_path = path.clone();
    let tail = run_blocking(&error_path, move || {
        let mut file = open(&path)?;
        let mut tail = Vec::new();
        let length = file.seek(SeekFrom::End(0));
        let start = length.and_then(|length| file.seek(SeekFrom::Start(length.saturating_sub(bytes))));
        let read = start.and_then(|_| file.take(bytes).read_to_end(&mut tail));
        read.map(|_| tail).map_err(|error| FileError::new(&path, Problem::Io(error)))
    });
    Ok(String::from_utf8_lossy(&tail.await?).into_owned())
}

/// Runs blocking work on a thread. A timeout error names `path`.
///
/// # Errors
/// The error of the work, or [`Problem::Timeout`] after [`READ_TIMEOUT`]. The thread then continues.
pub async fn run_blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    match tokio::time::timeout(READ_TIMEOUT, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(FileError::new(path, Problem::Io(io::Error::other(error)))),
        Err(_) => Err(FileError::new(path, Problem::Timeout)),
    }
}

fn decode_text(bytes: Vec<u8>, path: &Path) -> Result<String, FileError> {
    String::from_utf8(bytes).map_err(|_| FileError::new(path, Problem::NotText))
}

/// Returns the opened file if it is regular.
///
/// After an error, `read_metadata` returns the metadata of the path, so that the error can name the type.
fn require_regular(
    opened: io::Result<File>,
    path: &Path,
    read_metadata: impl FnOnce() -> io::Result<std::fs::Metadata>,
) -> Result<File, FileError> {
    let found = opened.and_then(|file| file.metadata().map(|metadata| (file, metadata)));
    match found {
        Ok((file, metadata)) => match irregular_type(metadata.file_type()) {
            None => Ok(file),
            Some(kind) => Err(FileError::new(path, Problem::NotRegular(kind))),
        },
        Err(error) => {
            let kind = read_metadata().ok().and_then(|metadata| irregular_type(metadata.file_type()));
            Err(FileError::new(path, kind.map_or(Problem::Io(error), Problem::NotRegular)))
        }
    }
}

const DIRECTORY: &str = "a directory";

/// Returns a type of file with an article, or `None` for a regular file.
fn irregular_type(kind: std::fs::FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_symlink() => Some("a symbolic link"),
        kind if kind.is_dir() => Some(DIRECTORY),
        kind if kind.is_fifo() => Some("a FIFO"),
        kind if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const LIMIT: Limit = Limit { bytes: 8, remedy: "keep it short" };

    fn create_fifo(path: &Path) {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }

    #[tokio::test]
    async fn read_accepts_only_regular_files_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "12345678").unwrap();
        std::fs::write(at("large"), "123456789").unwrap();
        std::fs::write(at("binary"), b"\xff").unwrap();
        File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        create_fifo(&at("fifo"));
        symlink("/dev/zero", at("device")).unwrap();
        symlink("file", at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert_eq!(read(at("file"), LIMIT).await.unwrap(), "12345678");
        for (name, problem) in [
            ("large", "it is larger than 8 bytes; keep it short"),
            ("sparse", "it is larger than 8 bytes"),
            ("binary", "it is not valid UTF-8"),
            ("directory", "it is a directory"),
            ("fifo", "it is a FIFO"),
            ("device", "it is a symbolic link"),
            ("link", "it is a symbolic link"),
            ("dangling", "it is a symbolic link"),
            ("socket", "it is a socket"),
            ("missing", "No such file"),
        ] {
            let by_path = read(at(name), LIMIT).await.unwrap_err();
            let in_directory = read_in(dir.path().to_owned(), name.to_owned(), LIMIT).await.unwrap_err();
            for error in [by_path, in_directory] {
                assert_eq!(error.is_missing(), name == "missing");
                assert!(error.path.ends_with(name) && error.to_string().contains(problem), "{name}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn read_tail_reads_only_the_end_of_a_long_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "short").unwrap();
        assert_eq!(read_tail(path.clone(), 8).await.unwrap(), "short");
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        std::io::Write::write_all(&mut File::options().append(true).open(&path).unwrap(), b"and the end").unwrap();
        assert_eq!(read_tail(path.clone(), 7).await.unwrap(), "the end");
        std::fs::remove_file(&path).unwrap();
        create_fifo(&path);
        assert!(read_tail(path, 8).await.unwrap_err().to_string().contains("it is a FIFO"));
    }

    #[tokio::test]
    async fn read_in_rejects_a_directory_that_is_a_symbolic_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("own")).unwrap();
        std::fs::write(dir.path().join("own/file"), "text").unwrap();
        symlink("own", dir.path().join("link")).unwrap();
        let read = |name: &str| read_in(dir.path().join(name), "file".to_owned(), LIMIT);
        assert_eq!(read("own").await.unwrap(), "text");
        assert!(read("link").await.unwrap_err().to_string().contains("it is a symbolic link"));
        assert!(read("none").await.unwrap_err().is_missing());
        for name in ["", ".", "..", "../own/file"] {
            assert!(open_in(&dir.path().join("own"), name).is_err(), "{name:?}");
        }
    }
}
