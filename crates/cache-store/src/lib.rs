//! Signs the URLs with which jobs access their caches in an object store (docs/spec/job-execution.md, section 10.5).
//!
//! ```text
//! [runners.cache] --CacheStore::open--> signer (S3, Google Cloud Storage, Azure) --sign--> URL + headers --plan--> agent
//! ```
//!
//! [`CacheStore::collect`] deletes what no cache needs.
//!
//! Only the manager has the keys of the store. An agent gets URLs for one object and a limited time, so no job can
//! access the caches of another project.

mod azure;
mod collect;
mod gcs;
mod http;
mod role;
mod s3;
mod stores;

use std::time::Duration;

use ::http::Method;
use object_store::ObjectStore;
use object_store::path::Path;
use object_store::signer::Signer;
use url::Url;

use muster_config::settings::CacheStoreSettings;

use crate::http::Transport;

pub use collect::CollectOptions;
pub use stores::CacheStores;

/// Longest validity of a signed URL that S3 and Google Cloud Storage accept.
const MAX_EXPIRY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Maximum length of the value of a metadata header. The stores limit all metadata of an object to between 2 and 8 KiB.
const MAX_METADATA_BYTES: usize = 1024;
/// Validity of the URLs for the manager's own requests.
const READ_EXPIRY: Duration = Duration::from_secs(60);

/// Reason why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheStoreError {
    /// The settings are not valid, there are no credentials for the store, or a request of the manager has failed.
    #[error("the object store for caches cannot be used")]
    Store(#[from] object_store::Error),
    /// The address of the server is not valid.
    #[error("`{0}` is not a valid server address; set ServerAddress of [runners.cache.s3] to host or host:port")]
    Server(String),
    /// The address of the server for roles is not valid.
    #[error(
        "`{0}` is not a valid URL of a server for roles; correct AWS_ENDPOINT_URL_STS in the environment of the runner manager, or \
         BucketLocation of [runners.cache.s3] if the variable is not set"
    )]
    RoleServer(String),
    /// The address of the storage account is not valid.
    #[error(
        "`{0}` is not a valid address; check AccountName, ContainerName and StorageDomain of [runners.cache.azure]"
    )]
    AzureAddress(String),
    /// The key of the storage account is not valid.
    #[error("AccountKey of [runners.cache.azure] is not valid Base64")]
    AzureKey,
    /// The name of the object is not valid.
    #[error("`{0}` is not a valid object name; choose another cache key")]
    Name(String),
    /// A role was not assumed.
    #[error("failed to assume the role {role}: {reason}")]
    Role {
        /// ARN of the role.
        role: String,
        /// Error of the request, or of the answer.
        reason: String,
    },
    /// The HTTP client cannot be created.
    #[error("failed to create the HTTP client")]
    Client(#[source] reqwest::Error),
    /// An object cannot be read.
    #[error("failed to read the object `{name}`")]
    Read {
        /// Name of the object.
        name: String,
        /// Error of the request.
        source: object_store::client::HttpError,
    },
    /// No credentials for the store arrived in time.
    #[error("failed to get credentials for the object store for caches within {} s", stores::SIGN_TIMEOUT.as_secs())]
    Timeout,
}

/// URL for an upload, with the headers that the upload must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedUpload {
    /// URL for PUT.
    pub url: Url,
    /// Names and values of headers.
    pub headers: Vec<(String, String)>,
}

/// Upload for which a URL is signed.
#[derive(Debug, Clone, Copy)]
pub struct UploadOptions<'a> {
    /// Human-readable key of the cache, for the metadata of the object.
    pub cache_key: &'a str,
    /// Maximum size in bytes, which only Google Cloud Storage enforces. 0 means no limit.
    pub max_bytes: u64,
}

/// An object store that signs URLs.
#[derive(Debug)]
pub struct CacheStore {
    kind: Kind,
    http: Transport,
}

#[derive(Debug)]
enum Kind {
    S3(s3::S3),
    Gcs(gcs::Gcs),
    Azure(Box<azure::Azure>),
}

impl CacheStore {
    /// Opens a store. Sends no request, except to Amazon for the region of an S3 bucket without a configured region.
    ///
    /// # Errors
    /// [`CacheStoreError`] if the settings are not valid, or the HTTP client cannot be created.
    pub async fn open(settings: &CacheStoreSettings) -> Result<Self, CacheStoreError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let kind = match settings {
            CacheStoreSettings::S3(settings) => Kind::S3(s3::S3::open(settings, &variable).await?),
            CacheStoreSettings::Gcs(settings) => Kind::Gcs(gcs::Gcs::open(settings, &variable)?),
            CacheStoreSettings::Azure(settings) => Kind::Azure(Box::new(azure::Azure::open(settings)?)),
        };
        Ok(Self { kind, http: Transport::new()? })
    }

    /// Returns the URL to download an object.
    ///
    /// # Errors
    /// [`CacheStoreError`] if the name is not valid or there are no credentials.
    pub async fn download_url(&self, name: &str, expires_in: Duration) -> Result<Url, CacheStoreError> {
        self.signed_url(Method::GET, name, expires_in).await
    }

    /// Returns the URL to query the age of an object.
    ///
    /// # Errors
    /// As for [`Self::download_url`].
    pub async fn head_url(&self, name: &str, expires_in: Duration) -> Result<Url, CacheStoreError> {
        self.signed_url(Method::HEAD, name, expires_in).await
    }

    async fn signed_url(&self, method: Method, name: &str, expires_in: Duration) -> Result<Url, CacheStoreError> {
        let expires_in = expires_in.min(MAX_EXPIRY);
        match &self.kind {
            Kind::S3(store) => store.signed_url(method, name, expires_in).await,
            Kind::Gcs(store) => store.signed_url(method, name, expires_in).await,
            Kind::Azure(store) => store.signed_url(name, expires_in).await,
        }
    }

    /// Returns the store for requests of the manager itself.
    fn bucket(&self) -> &dyn ObjectStore {
        match &self.kind {
            Kind::S3(store) => store.bucket(),
            Kind::Gcs(store) => store.bucket(),
            Kind::Azure(store) => store.bucket(),
        }
    }

    /// Reads an object of at most `max_bytes`. `None` if it does not exist.
    ///
    /// # Errors
    /// [`CacheStoreError`] if the store does not answer, or the object is larger.
    pub async fn read_object(&self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, CacheStoreError> {
        let url = self.download_url(name, READ_EXPIRY).await?;
        self.http.read(&url, max_bytes).await.map_err(|source| CacheStoreError::Read { name: name.to_owned(), source })
    }

    /// Returns the URL to upload an object.
    ///
    /// # Errors
    /// As for [`Self::download_url`].
    pub async fn upload_url(
        &self,
        name: &str,
        expires_in: Duration,
        options: UploadOptions<'_>,
    ) -> Result<SignedUpload, CacheStoreError> {
        let expires_in = expires_in.min(MAX_EXPIRY);
        match &self.kind {
            Kind::S3(store) => store.signed_upload(name, expires_in, options).await,
            Kind::Gcs(store) => store.signed_upload(name, expires_in, options).await,
            Kind::Azure(store) => store.signed_upload(name, expires_in, options).await,
        }
    }
}

fn object_path(name: &str) -> Result<Path, CacheStoreError> {
    Path::parse(name)
        .ok()
        .filter(|path| path.as_ref() == name && !name.is_empty())
        .ok_or_else(|| CacheStoreError::Name(name.to_owned()))
}

async fn sign(
    signer: &dyn Signer,
    method: Method,
    path: &Path,
    expires_in: Duration,
    headers: &[(&'static str, String)],
) -> Result<Url, CacheStoreError> {
    let mut options = object_store::signer::SignedUrlOptions::new();
    for (name, value) in headers {
        let Ok(value) = ::http::HeaderValue::from_str(value) else { continue };
        options = options.with_signed_header(::http::HeaderName::from_static(name), value);
    }
    Ok(signer.signed_url_opts(method, path, expires_in, &options).await?)
}

/// Returns the metadata header with the key of the cache. `None` if the key is empty or too long, or a header cannot
/// contain it.
fn metadata(name: &'static str, cache_key: &str) -> Option<(&'static str, String)> {
    let fits = cache_key.len() <= MAX_METADATA_BYTES
        && !cache_key.is_empty()
        && cache_key.trim() == cache_key
        && !cache_key.contains("  ")
        && cache_key.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    fits.then(|| (name, cache_key.to_owned()))
}

fn owned(headers: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests;
