//! Azure Blob Storage.
//!
//! With an account key, this module computes the signatures itself, because those of `object_store` are not valid for
//! names with characters that are escaped in URLs. With a managed identity, such names are rejected.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use muster_config::settings::AzureSettings;
use object_store::ObjectStore;
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use ring::hmac;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use url::Url;

use crate::http::{Transport, retries};
use crate::{CacheStoreError, SignedUpload, UploadOptions, metadata, object_path, owned, sign};

const DEFAULT_DOMAIN: &str = "blob.core.windows.net";
/// Version of Azure's protocol that defines the signed text.
const VERSION: &str = "2020-12-06";

#[derive(Debug)]
pub(crate) struct Azure {
    container: Url,
    /// Name of the container in signatures.
    resource: String,
    signer: Signer,
    /// Has the credentials of the manager.
    client: MicrosoftAzure,
}

#[derive(Debug)]
enum Signer {
    Key(hmac::Key),
    /// Identity of `client`, such as a managed identity.
    Identity,
}

impl Azure {
    pub(crate) fn open(settings: &AzureSettings) -> Result<Self, CacheStoreError> {
        let domain = settings.domain.as_deref().unwrap_or(DEFAULT_DOMAIN);
        Self::at(&format!("https://{}.{domain}", settings.account), settings)
    }

    pub(crate) fn at(account_url: &str, settings: &AzureSettings) -> Result<Self, CacheStoreError> {
        let url = || Url::parse(&format!("{account_url}/{}", settings.container)).ok();
        let container = url().ok_or_else(|| CacheStoreError::AzureAddress(account_url.to_owned()))?;
        let builder = MicrosoftAzureBuilder::new()
            .with_http_connector(Transport::new()?)
            .with_retry(retries())
            .with_account(&settings.account)
            .with_container_name(&settings.container)
            .with_endpoint(account_url.to_owned())
            .with_allow_http(true);
        let (builder, signer) = match &settings.key {
            Some(key) => {
                let decoded = STANDARD.decode(key.expose().trim()).map_err(|_| CacheStoreError::AzureKey)?;
                let signer = Signer::Key(hmac::Key::new(hmac::HMAC_SHA256, &decoded));
                (builder.with_access_key(key.expose().trim()), signer)
            }
            None => (builder.with_credential_type("managed_identity"), Signer::Identity),
        };
        let resource = format!("/blob/{}/{}", settings.account, settings.container);
        Ok(Self { container, resource, signer, client: builder.build()? })
    }

    pub(crate) fn bucket(&self) -> &dyn ObjectStore {
        &self.client
    }

    /// Returns the URL to read an object with GET or HEAD.
    pub(crate) async fn signed_url(&self, name: &str, expires_in: Duration) -> Result<Url, CacheStoreError> {
        self.signed(Method::GET, "r", name, expires_in).await
    }

    pub(crate) async fn signed_upload(
        &self,
        name: &str,
        expires_in: Duration,
        options: UploadOptions<'_>,
    ) -> Result<SignedUpload, CacheStoreError> {
        // The headers are not part of the signature.
        let mut headers = vec![("x-ms-blob-type", "BlockBlob".to_owned())];
        headers.extend(metadata("x-ms-meta-cachekey", options.cache_key));
        // `w` permits replacing an object, and `c` permits creating one.
        let url = self.signed(Method::PUT, "cw", name, expires_in).await?;
        Ok(SignedUpload { url, headers: owned(headers) })
    }

    async fn signed(
        &self,
        method: Method,
        permissions: &str,
        name: &str,
        expires_in: Duration,
    ) -> Result<Url, CacheStoreError> {
        let path = object_path(name)?;
        let mut url = self.container.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(name.split('/'));
        }
        match &self.signer {
            Signer::Key(key) => {
                sign_with_key(&mut url, key, &format!("{}/{name}", self.resource), permissions, expires_in);
                Ok(url)
            }
            Signer::Identity if !url.path().ends_with(name) => Err(CacheStoreError::Name(name.to_owned())),
            Signer::Identity => sign(&self.client, method, &path, expires_in, &[]).await,
        }
    }
}

/// Adds the query of a shared access signature for one blob.
fn sign_with_key(url: &mut Url, key: &hmac::Key, resource: &str, permissions: &str, expires_in: Duration) {
    let expiry = OffsetDateTime::from(SystemTime::now() + expires_in);
    // A time after the year 9999 cannot be formatted.
    let expiry = expiry.replace_nanosecond(0).unwrap_or(expiry).format(&Rfc3339).unwrap_or_default();
    // The empty fields are: the start time; the stored policy, addresses, protocols; the snapshot, the encryption
    // scope, and five response headers.
    let fields = [permissions, "", &expiry, resource, "", "", "", VERSION, "b", "", "", "", "", "", "", ""].join("\n");
    let signature = STANDARD.encode(hmac::sign(key, fields.as_bytes()));
    url.query_pairs_mut()
        .append_pair("sv", VERSION)
        .append_pair("se", &expiry)
        .append_pair("sr", "b")
        .append_pair("sp", permissions)
        .append_pair("sig", &signature);
}
