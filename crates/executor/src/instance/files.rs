//! The files of a fleet: the books of its scaler, and beside them the host keys of its instances.

use std::io;
use std::path::{Path, PathBuf};

use muster_taskscaler::driver::{FileLedger, LedgerError};

/// Where host keys are kept: which machine is which is believed once, and not at each start.
pub(super) fn hosts(books: &Path) -> PathBuf {
    books.with_extension("hosts")
}

/// A fleet's files are from now on those of other books, in the same directory.
///
/// # Errors
/// [`StoreError`].
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), LedgerError> {
    done("rename", from, std::fs::rename(hosts(from), hosts(to)))?;
    FileLedger::rename(from, to)
}

/// Removes the files of a fleet that nobody will go on from.
///
/// # Errors
/// [`StoreError`].
pub(super) fn discard(books: &Path) -> Result<(), LedgerError> {
    done("remove", books, std::fs::remove_file(hosts(books)))?;
    FileLedger::discard(books)
}

/// What is not there is done.
fn done(doing: &'static str, books: &Path, result: io::Result<()>) -> Result<(), LedgerError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(LedgerError::File { doing, path: hosts(books), source })
        }
        _ => Ok(()),
    }
}
