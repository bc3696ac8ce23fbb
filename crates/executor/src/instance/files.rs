//! Files of a fleet: the ledger of its scaler, and beside it the host keys of its instances.

use std::io;
use std::path::{Path, PathBuf};

use muster_taskscaler::driver::{FileLedger, LedgerError};

/// Returns the path of the file with the instances' host keys.
///
/// Keeping the keys means that a new key is trusted only once, and not after each start of the manager.
pub(super) fn hosts(books: &Path) -> PathBuf {
    books.with_extension("hosts")
}

/// Moves the files of a fleet to another ledger in the same directory.
///
/// # Errors
/// [`LedgerError`] if a file cannot be renamed.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), LedgerError> {
    done("rename", from, std::fs::rename(hosts(from), hosts(to)))?;
    FileLedger::rename(from, to)
}

/// Deletes the files of a fleet that no runner will use again.
///
/// # Errors
/// [`LedgerError`] if a file cannot be deleted.
pub(super) fn discard(books: &Path) -> Result<(), LedgerError> {
    done("remove", books, std::fs::remove_file(hosts(books)))?;
    FileLedger::discard(books)
}

/// Treats a missing file as success.
fn done(doing: &'static str, books: &Path, result: io::Result<()>) -> Result<(), LedgerError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(LedgerError::File { doing, path: hosts(books), source })
        }
        _ => Ok(()),
    }
}
