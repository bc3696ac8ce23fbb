//! Google Cloud Storage.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use muster_config::settings::{GcsCredentials, GcsSettings};
use object_store::gcp::{GcpCredential, GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::path::Path;
use object_store::{ObjectStore, StaticCredentialProvider};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::http::{Transport, retries};
use crate::{CacheStoreError, SignedUpload, UploadOptions, metadata, object_path, owned, sign};

const DEFAULT_DOMAIN: &str = "googleapis.com";
/// Environment variable with the address of a server that replaces Google's. Google's own libraries read it, too.
const EMULATOR: &str = "STORAGE_EMULATOR_HOST";
/// Environment variable with the path of the credentials. Google's own libraries read it, too.
const CREDENTIALS: &str = "GOOGLE_APPLICATION_CREDENTIALS";
/// Characters that are escaped in the path of a URL.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

#[derive(Debug)]
pub(crate) struct Gcs {
    signer: GoogleCloudStorage,
    /// Client without credentials, which an emulator does not check. `None` means that the store is not an emulator.
    emulator: Option<GoogleCloudStorage>,
}

impl Gcs {
    pub(crate) fn open(
        settings: &GcsSettings,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, CacheStoreError> {
        let emulator = variable(EMULATOR);
        let url = match &emulator {
            Some(url) if url.contains("://") => url.clone(),
            Some(address) => format!("http://{address}"),
            None => format!("https://storage.{}", settings.domain.as_deref().unwrap_or(DEFAULT_DOMAIN)),
        };
        let builder = GoogleCloudStorageBuilder::new()
            .with_http_connector(Transport::new()?)
            .with_retry(retries())
            .with_bucket_name(&settings.bucket)
            .with_base_url(url.trim_end_matches('/'));
        // Without a credential, some requests would ask the metadata service of the machine for one.
        let no_credential = Arc::new(StaticCredentialProvider::new(GcpCredential { bearer: String::new() }));
        let anonymous = || builder.clone().with_skip_signature(true).with_credentials(no_credential);
        let emulator = emulator.map(|_| anonymous().build()).transpose()?;
        let builder = match &settings.credentials {
            GcsCredentials::Default => match variable(CREDENTIALS) {
                Some(path) => builder.with_application_credentials(path),
                None => builder,
            },
            GcsCredentials::File(path) => builder.with_service_account_path(path.to_string_lossy()),
            GcsCredentials::Key { account, private_key } => {
                let account = serde_json::json!({
                    "type": "service_account", "client_email": account, "private_key": private_key.expose(),
                    "private_key_id": "",
                });
                builder.with_service_account_key(account.to_string())
            }
        };
        Ok(Self { signer: builder.build()?, emulator })
    }

    pub(crate) fn bucket(&self) -> &dyn ObjectStore {
        self.emulator.as_ref().unwrap_or(&self.signer)
    }

    pub(crate) async fn signed_url(
        &self,
        method: Method,
        name: &str,
        expires_in: Duration,
    ) -> Result<Url, CacheStoreError> {
        sign(&self.signer, method, &escaped(name)?, expires_in, &[]).await
    }

    pub(crate) async fn signed_upload(
        &self,
        name: &str,
        expires_in: Duration,
        options: UploadOptions<'_>,
    ) -> Result<SignedUpload, CacheStoreError> {
        let mut headers = Vec::new();
        if options.max_bytes > 0 {
            headers.push(("x-goog-content-length-range", format!("0,{}", options.max_bytes)));
        }
        headers.extend(metadata("x-goog-meta-cachekey", options.cache_key));
        let url = sign(&self.signer, Method::PUT, &escaped(name)?, expires_in, &headers).await?;
        Ok(SignedUpload { url, headers: owned(headers) })
    }
}

/// Returns the path of an object as in a URL, because the signer does not escape it.
fn escaped(name: &str) -> Result<Path, CacheStoreError> {
    object_path(name)?;
    object_path(&utf8_percent_encode(name, &ESCAPED).to_string())
}
