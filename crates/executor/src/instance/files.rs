//! Files of a fleet: the ledger of its scaler, and the host keys of its instances.

use std::io;
use std::path::{Path, PathBuf};

use muster_taskscaler::driver::{FileLedger, LedgerError};

/// Returns the path of the file with the host keys, by which a restarted manager detects and rejects a different key.
pub(super) fn known_hosts_path(ledger: &Path) -> PathBuf {
    ledger.with_extension("hosts")
}

/// Renames the files of a fleet, so that its ledger is `to`, which is in the same directory.
///
/// # Errors
/// [`LedgerError`] if a file cannot be renamed.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), LedgerError> {
    ignore_missing("rename", from, std::fs::rename(known_hosts_path(from), known_hosts_path(to)))?;
    FileLedger::rename(from, to)
}

/// Deletes the files of a fleet.
///
/// # Errors
/// [`LedgerError`] if a file cannot be deleted.
pub(super) fn discard(ledger: &Path) -> Result<(), LedgerError> {
    ignore_missing("remove", ledger, std::fs::remove_file(known_hosts_path(ledger)))?;
    FileLedger::discard(ledger)
}

fn ignore_missing(doing: &'static str, ledger: &Path, result: io::Result<()>) -> Result<(), LedgerError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(LedgerError::File { doing, path: known_hosts_path(ledger), source })
        }
        _ => Ok(()),
    }
}
