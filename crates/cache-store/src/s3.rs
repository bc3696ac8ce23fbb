//! Amazon S3 and S3-compatible servers.

use std::time::Duration;

use http::Method;
use muster_config::settings::{S3Encryption, S3Settings};
use object_store::ObjectStore;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use url::Url;

use crate::http::{Transport, retries};
use crate::role::AssumedRole;
use crate::{CacheStoreError, SignedUpload, UploadOptions, metadata, object_path, owned, sign};

const DEFAULT_REGION: &str = "us-east-1";

/// Environment variables from which Amazon's own programs read their credentials.
const CREDENTIALS: [(&str, AmazonS3ConfigKey); 10] = [
    ("AWS_ACCESS_KEY_ID", AmazonS3ConfigKey::AccessKeyId),
    ("AWS_SECRET_ACCESS_KEY", AmazonS3ConfigKey::SecretAccessKey),
    ("AWS_SESSION_TOKEN", AmazonS3ConfigKey::Token),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile),
    ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
    ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", AmazonS3ConfigKey::ContainerCredentialsRelativeUri),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", AmazonS3ConfigKey::ContainerCredentialsFullUri),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", AmazonS3ConfigKey::ContainerAuthorizationTokenFile),
    ("AWS_EC2_METADATA_SERVICE_ENDPOINT", AmazonS3ConfigKey::MetadataEndpoint),
];
/// Environment variable with the address of the STS server, which issues credentials for roles.
const ROLE_SERVER: &str = "AWS_ENDPOINT_URL_STS";

#[derive(Debug)]
pub(crate) struct S3 {
    downloads: AmazonS3,
    uploads: AmazonS3,
    /// Headers with which uploads request encryption.
    encryption: Vec<(&'static str, String)>,
}

impl S3 {
    pub(crate) async fn open(
        settings: &S3Settings,
        variable: &(dyn Fn(&str) -> Option<String> + Sync),
    ) -> Result<Self, CacheStoreError> {
        let http = Transport::new()?;
        let region = match (&settings.region, &settings.server) {
            (Some(region), _) => region.clone(),
            (None, Some(_)) => DEFAULT_REGION.to_owned(),
            (None, None) => http.bucket_region(&settings.bucket).await.unwrap_or_else(|| DEFAULT_REGION.to_owned()),
        };
        let endpoint = Endpoint::new(settings, &region)?;
        let builder = || {
            AmazonS3Builder::new()
                .with_http_connector(http.clone())
                .with_retry(retries())
                .with_region(&region)
                .with_bucket_name(&settings.bucket)
                .with_endpoint(&endpoint.url)
                .with_virtual_hosted_style_request(endpoint.bucket_in_host)
                .with_allow_http(true)
        };
        let own = match &settings.access_key {
            Some(key) => {
                let static_key =
                    builder().with_access_key_id(key.id.expose()).with_secret_access_key(key.secret.expose());
                match &key.session {
                    Some(token) => static_key.with_token(token.expose()),
                    None => static_key,
                }
            }
            None => CREDENTIALS.into_iter().fold(builder(), |builder, (name, key)| match variable(name) {
                Some(value) => builder.with_config(key, value),
                None => builder,
            }),
        };
        let own = own.build()?;
        let assume = |role: &str| {
            let server =
                variable(ROLE_SERVER).unwrap_or_else(|| format!("https://sts.{region}.{}", amazon_domain(&region)));
            let role = AssumedRole::new(role, &server, &region, own.credentials(), http.clone())?;
            Ok::<_, CacheStoreError>(builder().with_credentials(std::sync::Arc::new(role)).build()?)
        };
        Ok(match (&settings.role, &settings.upload_role) {
            (Some(role), _) => Self::from_clients(assume(role)?, None, settings),
            (None, Some(role)) => {
                let uploads = assume(role)?;
                Self::from_clients(own, Some(uploads), settings)
            }
            (None, None) => Self::from_clients(own, None, settings),
        })
    }

    fn from_clients(downloads: AmazonS3, uploads: Option<AmazonS3>, settings: &S3Settings) -> Self {
        let uploads = uploads.unwrap_or_else(|| downloads.clone());
        Self { downloads, uploads, encryption: encryption(settings.encryption.as_ref()) }
    }

    pub(crate) fn bucket(&self) -> &dyn ObjectStore {
        &self.uploads
    }

    pub(crate) async fn signed_url(
        &self,
        method: Method,
        name: &str,
        expires_in: Duration,
    ) -> Result<Url, CacheStoreError> {
        sign(&self.downloads, method, &object_path(name)?, expires_in, &[]).await
    }

    pub(crate) async fn signed_upload(
        &self,
        name: &str,
        expires_in: Duration,
        options: UploadOptions<'_>,
    ) -> Result<SignedUpload, CacheStoreError> {
        let mut headers = self.encryption.clone();
        headers.extend(metadata("x-amz-meta-cachekey", options.cache_key));
        let url = sign(&self.uploads, Method::PUT, &object_path(name)?, expires_in, &headers).await?;
        Ok(SignedUpload { url, headers: owned(headers) })
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Endpoint {
    url: String,
    /// Whether the host name of `url` contains the bucket.
    bucket_in_host: bool,
}

impl Endpoint {
    fn new(settings: &S3Settings, region: &str) -> Result<Self, CacheStoreError> {
        let bucket = &settings.bucket;
        let scheme = if settings.insecure { "http" } else { "https" };
        let host = match &settings.server {
            Some(server) => server.clone(),
            None => {
                let stack = if settings.dual_stack.unwrap_or(true) { ".dualstack" } else { "" };
                let domain = amazon_domain(region);
                if settings.accelerate {
                    format!("s3-accelerate{stack}.{domain}")
                } else {
                    format!("s3{stack}.{region}.{domain}")
                }
            }
        };
        let url = Url::parse(&format!("{scheme}://{host}"));
        let is_plain = url.is_ok_and(|url| {
            url.has_host()
                && url.path() == "/"
                && url.query().is_none()
                && url.fragment().is_none()
                && url.username().is_empty()
        });
        if !is_plain || host.contains('/') {
            return Err(CacheStoreError::Server(host));
        }
        // A certificate for `*.s3.amazonaws.com` does not cover a bucket whose name has dots.
        let fails_with_tls = bucket.contains('.') && !settings.insecure;
        let is_amazon = settings.server.as_ref().is_none_or(|server| server.ends_with(".amazonaws.com"));
        let bucket_in_host = match settings.path_style {
            // Transfer acceleration requires the bucket in the host name.
            _ if settings.accelerate && settings.server.is_none() => true,
            Some(path_style) => !path_style,
            None => is_amazon && !fails_with_tls,
        };
        let url = if bucket_in_host { format!("{scheme}://{bucket}.{host}") } else { format!("{scheme}://{host}") };
        Ok(Self { url, bucket_in_host })
    }
}

fn amazon_domain(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

fn encryption(encryption: Option<&S3Encryption>) -> Vec<(&'static str, String)> {
    let (kind, key) = match encryption {
        None => return Vec::new(),
        Some(S3Encryption::S3) => ("AES256", &None),
        Some(S3Encryption::Kms(key)) => ("aws:kms", key),
        Some(S3Encryption::DsseKms(key)) => ("aws:kms:dsse", key),
    };
    let mut headers = vec![("x-amz-server-side-encryption", kind.to_owned())];
    headers.extend(key.as_ref().map(|key| ("x-amz-server-side-encryption-aws-kms-key-id", key.clone())));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_follows_server_region_and_style() {
        let server = |server: &str| S3Settings { server: Some(server.to_owned()), ..S3Settings::default() };
        let amazon = S3Settings::default;
        for (settings, region, url, in_host) in [
            (amazon(), "eu-west-1", "https://b.s3.dualstack.eu-west-1.amazonaws.com", true),
            (amazon(), "cn-north-1", "https://b.s3.dualstack.cn-north-1.amazonaws.com.cn", true),
            (
                S3Settings { dual_stack: Some(false), ..amazon() },
                "eu-west-1",
                "https://b.s3.eu-west-1.amazonaws.com",
                true,
            ),
            (
                S3Settings { accelerate: true, ..amazon() },
                "eu-west-1",
                "https://b.s3-accelerate.dualstack.amazonaws.com",
                true,
            ),
            (
                S3Settings { path_style: Some(true), dual_stack: Some(false), ..amazon() },
                "eu-west-1",
                "https://s3.eu-west-1.amazonaws.com",
                false,
            ),
            (server("minio:9000"), "us-east-1", "https://minio:9000", false),
            (S3Settings { insecure: true, ..server("minio:9000") }, "us-east-1", "http://minio:9000", false),
            (S3Settings { path_style: Some(false), ..server("s3.example") }, "us-east-1", "https://b.s3.example", true),
            (server("s3.eu-west-1.amazonaws.com"), "eu-west-1", "https://b.s3.eu-west-1.amazonaws.com", true),
        ] {
            let settings = S3Settings { bucket: "b".to_owned(), ..settings };
            let endpoint = Endpoint::new(&settings, region).unwrap();
            assert_eq!((endpoint.url.as_str(), endpoint.bucket_in_host), (url, in_host), "{settings:?}");
        }
        let dots = S3Settings { bucket: "a.b".to_owned(), dual_stack: Some(false), ..S3Settings::default() };
        let endpoint = Endpoint::new(&dots, "eu-west-1").unwrap();
        assert_eq!((endpoint.url.as_str(), endpoint.bucket_in_host), ("https://s3.eu-west-1.amazonaws.com", false));
        for invalid in ["http://minio:9000", "minio:9000/path", "", "user@host", "minio:port"] {
            let error = Endpoint::new(&server(invalid), "us-east-1").unwrap_err();
            assert!(error.to_string().contains("set ServerAddress"), "{invalid}: {error}");
        }
    }

    #[test]
    fn encryption_is_requested_by_headers() {
        let of = |value: S3Encryption| encryption(Some(&value));
        let kind = |kind: &str| ("x-amz-server-side-encryption", kind.to_owned());
        assert_eq!(of(S3Encryption::S3), [kind("AES256")]);
        assert_eq!(of(S3Encryption::Kms(None)), [kind("aws:kms")]);
        let key = ("x-amz-server-side-encryption-aws-kms-key-id", "arn".to_owned());
        assert_eq!(of(S3Encryption::DsseKms(Some("arn".to_owned()))), [kind("aws:kms:dsse"), key]);
    }
}
