//! Reads zip archives entry by entry, with constant memory.

mod content;
mod directory;
mod files;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::os::unix::ffi::OsStringExt;

use self::content::Lazy;
use self::directory::Directory;
use super::{Entry, EntryKind, MAX_LINK_TARGET, Visit, broken, check_length, path};
use crate::UnpackError;
use crate::meter::{Content, Meter, Packed};

pub(crate) use self::directory::Header;
pub(crate) use self::files::ZipFiles;
pub use self::files::read_at;

const FILE_TYPE_MASK: u32 = 0o170_000;

pub(super) fn read<E: From<UnpackError>>(
    archive: impl Read + Seek,
    meter: &Meter<'_>,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let mut archive = BufReader::new(archive);
    let mut directory = Directory::open(&mut archive, meter)?;
    while let Some(header) = directory.next(&mut archive).map_err(broken)? {
        meter.count_entry()?;
        check_length(&header.name)?;
        let mut content = Content { inner: Lazy::new(&mut archive, &header), meter };
        let entry = entry(&header, &mut content)?;
        visit(&entry, &mut content)?;
    }
    Ok(())
}

/// Calls `visit` with each entry and its header, with which [`ZipFiles`] reads the content.
pub(crate) fn visit_zip(
    archive: &File,
    meter: &Meter<'_>,
    visit: &mut dyn FnMut(Entry, Header) -> Result<(), UnpackError>,
) -> Result<(), UnpackError> {
    meter.set_size(archive.metadata().map_err(UnpackError::Broken)?.len());
    let mut archive = BufReader::new(Packed { inner: archive, meter });
    let mut directory = Directory::open(&mut archive, meter)?;
    while let Some(header) = directory.next(&mut archive).map_err(broken)? {
        meter.count_entry()?;
        check_length(&header.name)?;
        let entry = entry(&header, &mut Content { inner: Lazy::new(&mut archive, &header), meter })?;
        visit(entry, header)?;
    }
    Ok(())
}

/// Returns the entry of a header. Only the target of a link is read from the content.
fn entry(header: &Header, content: &mut impl Read) -> Result<Entry, UnpackError> {
    let kind = kind(header, content)?;
    Ok(Entry {
        path: path(OsString::from_vec(header.name.clone()).into(), &kind)?,
        kind,
        mode: header.mode.map(|mode| mode & 0o777),
        modified: header.modified,
        size: Some(header.unpacked),
    })
}

/// Checks the headers of all entries.
pub(super) fn check(archive: impl Read + Seek, meter: &Meter<'_>) -> Result<(), UnpackError> {
    let mut archive = BufReader::new(archive);
    let mut directory = Directory::open(&mut archive, meter)?;
    while directory.next(&mut archive).map_err(broken)?.is_some() {
        meter.count_entry()?;
    }
    Ok(())
}

/// Reads the last file with this name, if there is one.
pub(super) fn find(archive: impl Read + Seek, name: &str, meter: &Meter<'_>) -> Result<Option<Vec<u8>>, UnpackError> {
    let mut archive = BufReader::new(archive);
    let mut directory = Directory::open(&mut archive, meter)?;
    let mut found = None;
    while let Some(header) = directory.next(&mut archive).map_err(broken)? {
        meter.count_entry()?;
        if header.name == name.as_bytes() {
            found = Some(header);
        }
    }
    let Some(header) = found else { return Ok(None) };
    let mut bytes = Vec::new();
    let mut content = Content { inner: Lazy::new(&mut archive, &header), meter };
    content.read_to_end(&mut bytes).map_err(broken)?;
    Ok(Some(bytes))
}

fn kind(header: &Header, content: &mut impl Read) -> Result<EntryKind, UnpackError> {
    let unsupported = |kind| Err(UnpackError::Kind { name: String::from_utf8_lossy(&header.name).into_owned(), kind });
    match header.mode.unwrap_or_default() & FILE_TYPE_MASK {
        0o120_000 => {
            let mut target = Vec::new();
            content.take(MAX_LINK_TARGET + 1).read_to_end(&mut target).map_err(broken)?;
            if target.len() as u64 > MAX_LINK_TARGET {
                return unsupported("link with a target of more than 4096 bytes");
            }
            Ok(EntryKind::Link(OsString::from_vec(target).into()))
        }
        0o010_000 => unsupported("pipe"),
        0o020_000 | 0o060_000 => unsupported("device"),
        0o140_000 => unsupported("socket"),
        0o040_000 => Ok(EntryKind::Directory),
        _ if header.name.ends_with(b"/") => Ok(EntryKind::Directory),
        _ => Ok(EntryKind::File),
    }
}
