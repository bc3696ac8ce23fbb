//! Zip archives.

use std::ffi::OsString;
use std::io::{BufReader, Read, Seek};
use std::os::unix::ffi::OsStringExt;

use filetime::FileTime;
use time::OffsetDateTime;
use zip::ZipArchive;
use zip::extra_fields::ExtraField;
use zip::read::ZipFile;

use super::meter::{Content, Headers, Meter};
use super::{Entry, EntryKind, MAX_LINK, Visit, broken, check_length, path};
use crate::UnpackError;

/// Bits of a mode that tell the kind of a file.
const KIND: u32 = 0o170_000;

pub(super) fn read<E: From<UnpackError>>(
    archive: impl Read + Seek,
    meter: &Meter<'_>,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let archive = Headers { inner: BufReader::new(archive), meter };
    let mut zip = meter.headers(|| ZipArchive::new(archive)).map_err(broken)?;
    for index in 0..zip.len() {
        meter.entry()?;
        let mut file = zip.by_index(index).map_err(broken)?;
        check_length(file.name().as_bytes())?;
        let kind = kind(&mut file, meter)?;
        let entry = Entry {
            path: path(file.name().into(), &kind)?,
            kind,
            mode: file.unix_mode().map(|mode| mode & 0o777),
            modified: modified(&file),
        };
        visit(&entry, &mut Content { inner: &mut file, meter })?;
    }
    Ok(())
}

fn kind<R: Read>(file: &mut ZipFile<'_, R>, meter: &Meter<'_>) -> Result<EntryKind, UnpackError> {
    let refused = |name: &str, kind| Err(UnpackError::Kind { name: name.to_owned(), kind });
    match file.unix_mode().unwrap_or_default() & KIND {
        0o120_000 => {
            let mut target = Vec::new();
            let content = Content { inner: &mut *file, meter };
            content.take(MAX_LINK + 1).read_to_end(&mut target).map_err(broken)?;
            if target.len() as u64 > MAX_LINK {
                return refused(file.name(), "link of more than 4096 bytes");
            }
            Ok(EntryKind::Link(OsString::from_vec(target).into()))
        }
        0o010_000 => refused(file.name(), "pipe"),
        0o020_000 | 0o060_000 => refused(file.name(), "device"),
        0o140_000 => refused(file.name(), "socket"),
        _ if file.is_dir() => Ok(EntryKind::Directory),
        _ => Ok(EntryKind::File),
    }
}

fn modified<R: Read>(file: &ZipFile<'_, R>) -> Option<FileTime> {
    let exact = file.extra_data_fields().find_map(|field| match field {
        ExtraField::ExtendedTimestamp(stamp) => stamp.mod_time(),
        ExtraField::Ntfs(_) => None,
    });
    if let Some(seconds) = exact {
        return Some(FileTime::from_unix_time(i64::from(seconds.cast_signed()), 0));
    }
    let time = OffsetDateTime::try_from(file.last_modified()?).ok()?;
    Some(FileTime::from_unix_time(time.unix_timestamp(), 0))
}
