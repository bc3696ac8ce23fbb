//! A registry's content, fetched and verified by digest, unpacked within bounds; the lock-file format.
//!
//! [`Reference`] is what a user writes, [`Registry`] reads one repository (the distribution specification of OCI), [`unpack`] writes the
//! files of a layer, [`LockFile`] keeps the digests.
//!
//! Invariants: nothing that comes from a registry is used before it has the digest that was announced; everything is read up to a
//! limit; a download that breaks off is continued where it broke.

mod auth;
mod body;
mod client;
mod credentials;
mod digest;
mod docker_config;
mod download;
mod error;
mod lock_file;
mod manifest;
mod platform;
mod reference;
mod text;
mod unpack;
mod version;

pub use client::{Registry, TagList};
pub use credentials::{Credentials, CredentialsError};
pub use digest::Digest;
pub use docker_config::DockerConfig;
pub use error::RegistryError;
pub use lock_file::{Entry, LockFile, LockFileError};
pub use manifest::{Descriptor, Index, Manifest, Platform};
pub use platform::HostPlatform;
pub use reference::{Defaults, Reference, ReferenceError, Repository};
pub use unpack::{Target, UnpackError, Unpacked, unpack};
pub use version::{Constraint, Version, VersionError};
