//! Tar archives.

use std::borrow::Cow;
use std::io::{self, Read};

use filetime::FileTime;
use tar::{Archive, EntryType};

use super::{Entry, EntryKind, MAX_LINK_TARGET, Visit, broken, check_length, path};
use crate::UnpackError;
use crate::meter::{Content, Headers, Meter};

pub(super) fn read<E: From<UnpackError>>(
    archive: impl Read,
    meter: &Meter<'_>,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let mut archive = Archive::new(Headers { inner: archive, meter });
    let mut entries = archive.entries().map_err(broken)?;
    // The previous content was read to its end, so only headers are read here.
    while let Some(file) = meter.limit_headers(|| entries.next()) {
        let mut file = file.map_err(broken)?;
        meter.count_entry()?;
        let entry = entry(&file)?;
        let mut content = Content { inner: &mut file, meter };
        if let Some(entry) = entry {
            visit(&entry, &mut content)?;
        }
        io::copy(&mut content, &mut io::sink()).map_err(broken)?;
    }
    Ok(())
}

/// Returns the entry. `None` means a pax global header.
fn entry(file: &tar::Entry<'_, impl Read>) -> Result<Option<Entry>, UnpackError> {
    let header = file.header();
    check_length(&file.path_bytes())?;
    let name = file.path().map_err(broken)?.into_owned();
    let kind = match kind(header.entry_type()) {
        Ok(Some(EntryKind::Link(_))) => {
            let target = file.link_name().map_err(broken)?.map(Cow::into_owned).unwrap_or_default();
            if target.as_os_str().len() as u64 > MAX_LINK_TARGET {
                return Err(UnpackError::Kind {
                    name: name.display().to_string(),
                    kind: "link with a target of more than 4096 bytes",
                });
            }
            EntryKind::Link(target)
        }
        Ok(Some(kind)) => kind,
        Ok(None) => return Ok(None),
        Err(kind) => return Err(UnpackError::Kind { name: name.display().to_string(), kind }),
    };
    let modified = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
    Ok(Some(Entry {
        path: path(name, &kind)?,
        kind,
        mode: header.mode().ok().map(|mode| mode & 0o777),
        modified: modified.map(|seconds| FileTime::from_unix_time(seconds, 0)),
        size: Some(file.size()),
    }))
}

/// Returns the kind of an entry, or `None` for a pax global header. The error is the name of an unsupported kind.
fn kind(kind: EntryType) -> Result<Option<EntryKind>, &'static str> {
    match kind {
        EntryType::Directory => Ok(Some(EntryKind::Directory)),
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Ok(Some(EntryKind::File)),
        EntryType::Symlink => Ok(Some(EntryKind::Link(std::path::PathBuf::new()))),
        EntryType::XGlobalHeader => Ok(None),
        EntryType::Link => Err("hard link"),
        EntryType::Char | EntryType::Block => Err("device"),
        EntryType::Fifo => Err("pipe"),
        _ => Err("file of an unknown kind"),
    }
}
