//! Unpacks zip archives with several threads.

use std::fs::File;

use cap_std::fs::Dir;

use crate::UnpackError;
use crate::limits::Limits;
use crate::meter::Meter;
use crate::parallel::write_files;
use crate::place::FileTarget;
use crate::read::{Header, ZipFiles, visit_zip};
use crate::skipped::SkippedEntries;

/// Unpacks a zip archive as [`crate::unpack`] does.
pub(crate) fn unpack(
    archive: &File,
    into: &Dir,
    limits: &Limits,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<SkippedEntries, UnpackError> {
    let meter = &Meter::new(*limits, stop);
    let worker = || {
        let mut files = ZipFiles::new(archive, meter);
        move |header: &Header, target: &mut FileTarget<'_>| {
            let written = files.unpack(header, |content| target.write(content));
            written.unwrap_or_else(|error| Err(UnpackError::Broken(error).into()))
        }
    };
    write_files(into, meter, worker, |add| visit_zip(archive, meter, add))
}
