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
mod lookup;
mod store;
mod unpack;
mod verify;

use muster_oci::Defaults;

pub use error::InstallError;
pub use installer::{Done, LAYER_ANNOTATION, Options, Outcome, available};
pub use lookup::{BuiltIn, Found, ResolveError, Surroundings, resolve};
pub use store::{Installed, Store};

pub use verify::{Finding, Verdict};

/// The parts that the name of a plugin may leave out: what GitLab publishes needs only its name.
pub const DEFAULTS: Defaults = Defaults { registry: "registry.gitlab.com", group: "gitlab-org/fleeting/plugins" };

/// The executable in a version's folder.
const EXECUTABLE: &str = "plugin";
