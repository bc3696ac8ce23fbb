//! Packing files: zip, gzip and raw (job-execution 9.3).

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};
use muster_steps::stop::Stop;
use time::OffsetDateTime;
use zip::write::{ExtendedFileOptions, FileOptions};
use zip::{CompressionMethod, DateTime, ZipWriter};

use crate::failure::Failure;

/// From this size on, a zip entry needs 64-bit sizes. Below the limit of 4 GiB, since a file may grow meanwhile.
const LARGE: u64 = 2 * 1024 * 1024 * 1024;
/// Extra field with the modification time in Unix seconds.
const UNIX_TIME: u16 = 0x5455;

/// How hard to compress (`ARTIFACT_COMPRESSION_LEVEL`, `CACHE_COMPRESSION_LEVEL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level(Option<u32>);

impl Level {
    /// The level of a name; an unknown one is the default.
    pub(crate) fn from_name(name: Option<&str>) -> Self {
        Self(match name.unwrap_or_default() {
            "fastest" => None,
            "fast" => Some(1),
            "slow" => Some(7),
            "slowest" => Some(9),
            _ => Some(5),
        })
    }
}

/// Writes `files`, relative to `root`, as a zip archive.
pub(crate) fn zip(root: &Path, files: &[PathBuf], level: Level, target: &File, stop: &Stop) -> Result<(), Failure> {
    let mut zip = ZipWriter::new(BufWriter::new(target));
    for file in files {
        if let Some(cause) = stop.cause() {
            return Err(Failure::Stopped(cause));
        }
        match add(&mut zip, root, file, level) {
            // Gone since it was found, as temporary files are.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(Failure::io(format!("cannot pack `{}`", file.display())))?,
        }
    }
    let finished = zip.finish().map_err(io::Error::from).and_then(|mut writer| writer.flush());
    finished.map_err(Failure::io("cannot write the archive"))
}

fn add(zip: &mut ZipWriter<BufWriter<&File>>, root: &Path, file: &Path, level: Level) -> io::Result<()> {
    let path = root.join(file);
    let metadata = fs::symlink_metadata(&path)?;
    let name = file.to_string_lossy();
    let modified = OffsetDateTime::from_unix_timestamp(metadata.mtime()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let mut options = FileOptions::<ExtendedFileOptions>::default()
        .unix_permissions(metadata.permissions().mode() & 0o7777)
        .last_modified_time(DateTime::try_from(modified).unwrap_or_default());
    if let Ok(seconds) = i32::try_from(metadata.mtime()) {
        let mut field = vec![1];
        field.extend(seconds.to_le_bytes());
        options.add_extra_data(UNIX_TIME, field, false)?;
    }
    if metadata.is_symlink() {
        zip.add_symlink(name, fs::read_link(&path)?.to_string_lossy(), options)?;
    } else if metadata.is_dir() {
        zip.add_directory(name, options)?;
    } else if metadata.is_file() {
        let mut content = File::open(&path)?;
        options = match level.0 {
            None => options.compression_method(CompressionMethod::Stored),
            Some(level) => {
                options.compression_method(CompressionMethod::Deflated).compression_level(Some(i64::from(level)))
            }
        };
        zip.start_file(name, options.large_file(metadata.len() >= LARGE))?;
        io::copy(&mut content, zip)?;
    }
    // Sockets, pipes and devices have no content to keep.
    Ok(())
}

/// Writes one gzip member per regular file, one after the other.
pub(crate) fn gzip(root: &Path, files: &[PathBuf], level: Level, target: &File, stop: &Stop) -> Result<(), Failure> {
    let mut out = BufWriter::new(target);
    for file in files {
        if let Some(cause) = stop.cause() {
            return Err(Failure::Stopped(cause));
        }
        gzip_one(&mut out, root, file, level).map_err(Failure::io(format!("cannot pack `{}`", file.display())))?;
    }
    out.flush().map_err(Failure::io("cannot write the archive"))
}

fn gzip_one(out: &mut impl Write, root: &Path, file: &Path, level: Level) -> io::Result<()> {
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
        .write(out, Compression::new(level.0.unwrap_or(0)));
    io::copy(&mut File::open(&path)?, &mut gzip)?;
    gzip.finish().map(|_| ())
}

/// Writes the one regular file as it is.
pub(crate) fn raw(root: &Path, files: &[PathBuf], mut target: &File) -> Result<(), Failure> {
    let mut regular = files.iter().filter(|file| fs::metadata(root.join(file)).is_ok_and(|m| m.is_file()));
    let (Some(file), None) = (regular.next(), regular.next()) else {
        return Err(Failure::Step("an artifact of format `raw` must be exactly one file".to_owned()));
    };
    let copied = File::open(root.join(file)).and_then(|mut content| {
        let mut buffer = vec![0; 128 * 1024];
        loop {
            let length = content.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            target.write_all(buffer.get(..length).unwrap_or_default())?;
        }
    });
    copied.map_err(Failure::io(format!("cannot read `{}`", file.display())))
}
