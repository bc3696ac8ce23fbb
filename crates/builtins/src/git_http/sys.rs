//! Settings of libgit2 for the whole process.
#![expect(unsafe_code, reason = "libgit2 does not synchronize its global settings")]

use git2::Remote;
use git2::transport::Transport;

/// Registers the transport for HTTP, and makes libgit2 open repositories of any owner, as `safe.directory = *` does for git.
///
/// This function must be called once, before any other use of libgit2.
pub(super) fn register(transport: fn(&Remote<'_>) -> Result<Transport, git2::Error>) -> Result<(), git2::Error> {
    for scheme in ["http", "https"] {
        // SAFETY: the parent module calls this function once, before it uses libgit2, and nothing else in the process uses libgit2 before that.
        unsafe { git2::transport::register(scheme, transport) }?;
    }
    // SAFETY: as above. The owner of a checkout does not matter, because a job may do everything with its own checkout. No command of its
    // configuration is executed.
    unsafe { git2::opts::set_verify_owner_validation(false) }
}
