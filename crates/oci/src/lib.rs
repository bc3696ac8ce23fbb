//! Fetches content from OCI registries, verifies its digest and unpacks it. Also packs and publishes content, and
//! defines the lock file.
//!
//! [`Registry`] is the client of one repository (OCI distribution specification).

mod auth;
mod blob;
mod body;
mod client;
mod copy;
mod credential_helper;
mod credentials;
mod digest;
mod docker_config;
mod download;
mod error;
mod idle;
mod layout;
mod lock_file;
mod manifest;
mod pack;
mod platform;
mod publish;
mod push;
mod reference;
mod referrers;
mod retry;
mod unpack;
mod version;

pub use blob::{Blob, BlobReader};
pub use client::{Registry, TagList};
pub use copy::copy;
pub use credential_helper::CredentialHelper;
pub use credentials::{Credentials, CredentialsError, HelperError};
pub use digest::{Digest, DigestError};
pub use docker_config::{DockerConfig, credentials_in};
pub use error::{RegistryError, ResponseError, ShownUrl};
pub use layout::{LayoutError, read_layout, write_layout};
pub use lock_file::{Entry, LockFile, LockFileError};
pub use manifest::{Descriptor, Index, Manifest, Platform};
pub use pack::{PackError, PackOptions, pack};
pub use platform::HostPlatform;
pub use publish::{BuiltIndex, Document, Image, publish};
pub use reference::{Defaults, Reference, ReferenceError, Repository};
pub use unpack::{Target, UnpackError, Unpacked, unpack};
pub use version::{Constraint, Version, VersionError};
