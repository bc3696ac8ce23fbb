//! Packs files into archives (docs/spec/job-execution.md, section 9.3).

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use super::format::{Format, Level};
use super::zip::{self, ZipCompression};
use super::{UntilStopped, failure};

/// Maximum number of threads for one archive.
const MAX_THREADS: usize = 16;

/// Packs `files` into `target`. The paths are relative to `root`.
pub(crate) fn pack(
    format: Format,
    root: &Path,
    files: &[PathBuf],
    level: Level,
    target: &File,
    stop: &StopToken,
) -> Result<(), Failure> {
    match format {
        Format::Zip => zip::pack(root, files, ZipCompression::deflate(level), target, stop),
        Format::ZipZstd => zip::pack(root, files, ZipCompression::Zstd(level.zstd()), target, stop),
        Format::TarZstd => tar_zstd(root, files, level, target, stop),
        Format::Gzip => gzip(root, files, level, target, stop),
        Format::Raw => raw(root, files, target, stop),
    }
}

/// Calls `add` for each file. Skips files that no longer exist.
fn for_each_file(
    files: &[PathBuf],
    stop: &StopToken,
    mut add: impl FnMut(&Path) -> io::Result<()>,
) -> Result<(), Failure> {
    for file in files {
        if let Some(cause) = stop.cause() {
            return Err(Failure::Stopped(cause));
        }
        add(file).unless_removed(file, stop)?;
    }
    Ok(())
}

pub(super) trait PathFailure<T> {
    /// Returns `None` if the file no longer exists.
    fn unless_removed(self, file: &Path, stop: &StopToken) -> Result<Option<T>, Failure>;
}

impl<T> PathFailure<T> for io::Result<T> {
    fn unless_removed(self, file: &Path, stop: &StopToken) -> Result<Option<T>, Failure> {
        match self {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                Err(Failure::Step(format!("failed to pack `{}`: {error}", shown(file))))
            }
            other => other.map(Some).map_err(failure(format!("failed to pack `{}`", shown(file)), stop)),
        }
    }
}

/// Returns a path for messages. If it is not UTF-8, all except printable ASCII is escaped.
pub(super) fn shown(path: &Path) -> impl std::fmt::Display {
    path.to_str().map_or_else(|| path.as_os_str().as_encoded_bytes().escape_ascii().to_string(), str::to_owned)
}

fn tar_zstd(root: &Path, files: &[PathBuf], level: Level, target: &File, stop: &StopToken) -> Result<(), Failure> {
    let failed = || Failure::io("failed to write the archive");
    let mut out = zstd::Encoder::new(BufWriter::new(target), level.zstd()).map_err(failed())?;
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MAX_THREADS);
    // The output does not depend on the number of threads.
    out.multithread(u32::try_from(threads).unwrap_or(1)).map_err(failed())?;
    let mut tar = tar::Builder::new(out);
    tar.follow_symlinks(false);
    for_each_file(files, stop, |file| {
        let path = root.join(file);
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            return tar.append_dir(file, &path);
        }
        if metadata.is_symlink() {
            let mut header = tar::Header::new_gnu();
            header.set_metadata(&metadata);
            header.set_size(0);
            return tar.append_link(&mut header, file, fs::read_link(&path)?);
        }
        // Sockets, pipes and devices have no content.
        if !metadata.is_file() {
            return Ok(());
        }
        let content = UntilStopped { content: muster_files::open(&path)?, stop };
        let mut header = tar::Header::new_gnu();
        header.set_metadata(&metadata);
        // The content must have the length in the header, even if the file changes meanwhile.
        tar.append_data(&mut header, file, content.take(metadata.len()).chain(Zeros).take(metadata.len()))
    })?;
    let finished = tar.into_inner().and_then(zstd::Encoder::finish).and_then(|mut out| out.flush());
    finished.map_err(failed())
}

/// Endless zeros, which replace the missing end of a file that shrank.
struct Zeros;

impl Read for Zeros {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(0);
        Ok(buffer.len())
    }
}

fn gzip(root: &Path, files: &[PathBuf], level: Level, target: &File, stop: &StopToken) -> Result<(), Failure> {
    let mut out = BufWriter::new(target);
    for_each_file(files, stop, |file| gzip_one(&mut out, root, file, level, stop))?;
    out.flush().map_err(Failure::io("failed to write the archive"))
}

fn gzip_one(out: &mut impl Write, root: &Path, file: &Path, level: Level, stop: &StopToken) -> io::Result<()> {
    let path = root.join(file);
    let metadata = fs::symlink_metadata(&path)?;
    if !metadata.is_file() {
        return Ok(());
    }
    let name = file.file_name().map(|name| name.as_encoded_bytes().to_vec()).unwrap_or_default();
    let mut gzip = GzBuilder::new()
        .filename(name)
        .comment(file.as_os_str().as_encoded_bytes())
        .mtime(u32::try_from(metadata.mtime()).unwrap_or_default())
        .write(out, Compression::new(level.deflate().unwrap_or(0)));
    io::copy(&mut UntilStopped { content: muster_files::open(&path)?, stop }, &mut gzip)?;
    gzip.finish().map(|_| ())
}

fn raw(root: &Path, files: &[PathBuf], mut target: &File, stop: &StopToken) -> Result<(), Failure> {
    let mut regular = files.iter().filter(|file| fs::metadata(root.join(file)).is_ok_and(|m| m.is_file()));
    let (Some(file), None) = (regular.next(), regular.next()) else {
        return Err(Failure::Step("an artifact of format `raw` must be exactly one file".to_owned()));
    };
    // As in gitlab-runner, the file may be a symbolic link.
    let copied = muster_files::open_following_links(&root.join(file))
        .map_err(io::Error::from)
        .and_then(|content| io::copy(&mut UntilStopped { content, stop }, &mut target).map(drop));
    copied.map_err(failure(format!("failed to read `{}`", file.display()), stop))
}
