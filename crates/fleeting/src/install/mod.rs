//! Installs plugins from registries, resolves their names and verifies their digests.
//!
//! ```text
//! <directory>/plugins.lock                          digests of all versions ever installed, except forgotten ones
//! <directory>/<registry>/<path>/<version>/plugin    an installed plugin; several versions side by side
//! <directory>/.partial/<digest>                     an incomplete download
//! ```
//!
//! A version is complete or does not exist: it is unpacked next to its final directory and renamed, after its digest
//! was stored. A version that is installed again must have the same digest, unless the user accepts a new one, or has
//! removed the version with `--forget-digest`. GitLab's tools and Muster find each other's plugins, because the layout
//! is GitLab's.

mod error;
mod installer;
mod lock;
mod plugin_archive;
mod resolve;
mod store;
mod verify;

use muster_oci::Defaults;

pub use error::InstallError;
pub use installer::{InstallOptions, InstallOutcome, InstallResult, LAYER_ANNOTATION, available};
pub use resolve::{BuiltIn, LookupContext, ResolveError, ResolvedPlugin, resolve};
pub use store::{Installed, Store};
pub use verify::{Finding, VerifyOutcome};

/// Registry and group of a plugin whose name omits them. GitLab publishes its plugins there.
pub const DEFAULTS: Defaults = Defaults { registry: "registry.gitlab.com", group: "gitlab-org/fleeting/plugins" };

/// Name of the executable in a version's directory.
const EXECUTABLE: &str = "plugin";
/// Mode of the lock file. Its content is not secret, and other users may verify what is installed.
const LOCK_FILE_MODE: u32 = 0o644;
