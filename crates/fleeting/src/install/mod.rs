//! Plugins on this machine: brought from registries, found by name, checked by digest.
//!
//! ```text
//! <folder>/plugins.lock                                digests of all that was ever installed
//! <folder>/<registry>/<path>/<version>/plugin          an installed plugin; several versions side by side
//! <folder>/.partial/<digest>                           a download that broke off
//! ```
//!
//! A version is complete or not there: it is unpacked beside its place and renamed. Its digest is durable before that, so
//! what was installed once under a version is the same bytes for ever, unless the user says otherwise. The folder is
//! GitLab's: plugins that its tools installed are found, and the other way round.

mod error;
mod folder;
mod installer;
mod lock_file;
mod lookup;
mod store;
mod unpack;

pub use error::InstallError;
pub use installer::{Done, Options, Outcome};
pub use lock_file::{Entry, LockFile, LockFileError};
pub use lookup::{BuiltIn, Found, ResolveError, Surroundings, resolve};
pub use store::{Installed, Store};
pub use unpack::UnpackError;

pub use verify::{Finding, Verdict};
mod verify;

/// The executable in a version's folder.
const EXECUTABLE: &str = "plugin";
