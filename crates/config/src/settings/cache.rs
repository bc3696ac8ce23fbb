//! `[runners.cache]`: the object store that shares the caches of jobs among machines (docs/spec/job-execution.md, section 10.5).

use std::path::PathBuf;
use std::time::Duration;

use muster_job::Secret;
use serde::{Deserialize, Serialize};

/// Settings of the caches of a runner's jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheSettings {
    /// Store of the caches. `None` means that each machine has separate caches.
    pub store: Option<CacheStoreSettings>,
    /// Prefix of the names of objects.
    pub path: String,
    /// Whether all runners share one cache for each project and key.
    pub shared: bool,
    /// Maximum size of an archive in bytes. A larger one is stored only on the machine of the job. 0 means no limit.
    pub max_archive_bytes: u64,
    /// Whether caches are stored as chunks that several caches share, unless a job chooses an archive format.
    pub chunks: bool,
    /// Automatic deletion of chunks that no cache needs. `None` means that only `muster cache gc` deletes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<ChunkGcSettings>,
}

/// Automatic deletion of chunks that no cache needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkGcSettings {
    /// Minimum time between two collections of a store.
    pub interval: Duration,
    /// Minimum age of unused data before it is marked, and minimum time from the mark to the deletion.
    pub grace: Duration,
    /// Time without a save after which a cache is deleted. `None` means never.
    pub max_age: Option<Duration>,
}

impl CacheSettings {
    /// Returns whether these are the settings of a runner without `[runners.cache]`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Object store of caches, by the `Type` of `[runners.cache]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheStoreSettings {
    /// Amazon S3, or a server with its protocol.
    S3(S3Settings),
    /// Google Cloud Storage.
    Gcs(GcsSettings),
    /// Azure Blob Storage.
    Azure(AzureSettings),
}

/// `[runners.cache.s3]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct S3Settings {
    /// Host and optional port of the server. `None` means Amazon's server of the region.
    pub server: Option<String>,
    /// Whether the server is reached by HTTP without TLS.
    pub insecure: bool,
    /// Bucket.
    pub bucket: String,
    /// Region. `None` means `us-east-1` if `server` is set. Otherwise Amazon S3 is queried for the region of the bucket.
    pub region: Option<String>,
    /// Access key. `None` means the credentials in Amazon's environment variables, or else the role of this machine.
    pub access_key: Option<S3AccessKey>,
    /// Encryption of objects at the server.
    pub encryption: Option<S3Encryption>,
    /// Whether Amazon's endpoint for both IPv4 and IPv6 is used. `None` means yes.
    pub dual_stack: Option<bool>,
    /// Whether the bucket is in the path of URLs instead of the host name. `None` means that the server's address and the bucket's name decide.
    pub path_style: Option<bool>,
    /// Whether Amazon's transfer acceleration is used.
    pub accelerate: bool,
    /// Role that the manager assumes, with the access key or the role of this machine, to sign the URLs of downloads and uploads.
    pub role: Option<String>,
    /// Role that the manager assumes to sign the URLs of uploads, and to delete unused chunks. It is ignored if `role` is set.
    pub upload_role: Option<String>,
}

/// Static credentials of S3.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3AccessKey {
    /// ID of the key.
    pub id: Secret,
    /// Key.
    pub secret: Secret,
    /// Token of a temporary key.
    #[serde(default)]
    pub session: Option<Secret>,
}

/// Encryption of objects by S3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum S3Encryption {
    /// Encryption with a key of S3.
    S3,
    /// Encryption with a key of KMS. `None` means the account's default key.
    Kms(Option<String>),
    /// Two layers of encryption with a key of KMS. `None` means the account's default key.
    DsseKms(Option<String>),
}

/// `[runners.cache.gcs]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GcsSettings {
    /// Bucket.
    pub bucket: String,
    /// Credentials of the manager.
    pub credentials: GcsCredentials,
    /// Domain of Google's servers. `None` means `googleapis.com`.
    pub domain: Option<String>,
}

/// Credentials for Google Cloud Storage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GcsCredentials {
    /// The application default credentials: `GOOGLE_APPLICATION_CREDENTIALS`, or the service account of this machine.
    #[default]
    Default,
    /// File with the JSON key of a service account.
    File(PathBuf),
    /// Service account and its private key.
    Key {
        /// Email address of the service account.
        account: String,
        /// Private key as PEM.
        private_key: Secret,
    },
}

/// `[runners.cache.azure]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AzureSettings {
    /// Storage account.
    pub account: String,
    /// Key of the account. `None` means the managed identity of this machine.
    pub key: Option<Secret>,
    /// Container.
    pub container: String,
    /// Domain of the storage. `None` means `blob.core.windows.net`.
    pub domain: Option<String>,
}
