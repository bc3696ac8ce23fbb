//! Registries of plugins, as OCI images (fleeting.md 6).
//!
//! [`Reference`] is what a user writes, [`Registry`] reads one repository. What comes from a registry is believed by its
//! digest only, and read up to a limit; a download that breaks off is taken up where it broke.

mod auth;
mod client;
mod credentials;
mod digest;
mod docker_config;
mod download;
mod error;
mod manifest;
mod platform;
mod reference;
mod version;

pub use client::{Registry, TagList};
pub use credentials::{Credentials, CredentialsError};
pub use digest::Digest;
pub use docker_config::DockerConfig;
pub use error::RegistryError;
pub use manifest::{Descriptor, Index, LAYER_ANNOTATION, Manifest, Platform};
pub use platform::Host;
pub use reference::{DEFAULT_REGISTRY, Reference, ReferenceError, Repository};
pub use version::{Constraint, Version, VersionError};

/// What this program calls itself at registries.
const USER_AGENT: &str = concat!("muster/", env!("CARGO_PKG_VERSION"));
