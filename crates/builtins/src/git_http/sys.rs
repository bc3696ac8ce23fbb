//! Settings of libgit2 for the whole process.
#![expect(unsafe_code, reason = "libgit2 does not synchronize its global settings")]

use git2::Remote;
use git2::transport::Transport;

/// Registers the transport for HTTP. Lets libgit2 open repositories of any owner, as `safe.directory = *` does.
///
/// Must be called once, before any other use of libgit2.
pub(super) fn register(transport: fn(&Remote<'_>) -> Result<Transport, git2::Error>) -> Result<(), git2::Error> {
    for scheme in ["http", "https"] {
        // SAFETY: the parent module calls this function once, before the process uses libgit2.
        unsafe { git2::transport::register(scheme, transport) }?;
    }
    // SAFETY: as above. The owner does not matter, because libgit2 executes no command of the configuration.
    unsafe { git2::opts::set_verify_owner_validation(false) }
}
