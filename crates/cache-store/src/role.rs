//! An AWS role that the manager assumes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use object_store::CredentialProvider;
use object_store::aws::{AwsAuthorizer, AwsCredential, AwsCredentialProvider};
use url::form_urlencoded::Serializer;

use crate::CacheStoreError;
use crate::http::Transport;

/// Lifetime of the role's credentials. Amazon allows at most this time if one role assumes another.
const LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Age at which the role is assumed again, so that a signed URL is valid for most of the lifetime.
const MAX_AGE: Duration = Duration::from_secs(5 * 60);
const VERSION: &str = "2011-06-15";
const SESSION: &str = "muster-cache";

#[derive(Debug)]
pub(crate) struct AssumedRole {
    role: String,
    server: http::Uri,
    region: String,
    /// Credentials with which the role is assumed.
    own: AwsCredentialProvider,
    http: Transport,
    /// Current credentials, and when they were obtained. The lock is held during a request, so that concurrent jobs
    /// make one request.
    current: tokio::sync::Mutex<Option<(Arc<AwsCredential>, Instant)>>,
}

impl AssumedRole {
    pub(crate) fn new(
        role: &str,
        server: &str,
        region: &str,
        own: &AwsCredentialProvider,
        http: Transport,
    ) -> Result<Self, CacheStoreError> {
        let server: http::Uri = server.parse().map_err(|_| CacheStoreError::RoleServer(server.to_owned()))?;
        let (role, region) = (role.to_owned(), region.to_owned());
        Ok(Self { role, server, region, own: Arc::clone(own), http, current: tokio::sync::Mutex::new(None) })
    }

    async fn assume(&self) -> Result<AwsCredential, CacheStoreError> {
        let failed = |reason: String| CacheStoreError::Role { role: self.role.clone(), reason };
        let own = self.own.get_credential().await?;
        let form = Serializer::new(String::new())
            .append_pair("Action", "AssumeRole")
            .append_pair("Version", VERSION)
            .append_pair("RoleArn", &self.role)
            .append_pair("RoleSessionName", SESSION)
            .append_pair("DurationSeconds", &LIFETIME.as_secs().to_string())
            .finish();
        let mut request = Request::new(form.into());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.server.clone();
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, kind);
        AwsAuthorizer::new(&own, "sts", &self.region).try_authorize(&mut request, None)?;
        let answer = self.http.send(request).await.map_err(|error| failed(error.to_string()))?;
        let status = answer.status();
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        let document =
            roxmltree::Document::parse(&text).map_err(|_| failed(format!("the server answered {status}")))?;
        let value = |name: &str| {
            let node = document.descendants().find(|node| node.tag_name().name() == name);
            node.and_then(|node| node.text()).map(str::to_owned)
        };
        if !status.is_success() {
            let reason = [value("Code"), value("Message")].into_iter().flatten().collect::<Vec<_>>().join(": ");
            return Err(failed(format!("the server answered {status}: {reason}")));
        }
        let missing = |name: &str| failed(format!("the answer has no {name}"));
        Ok(AwsCredential {
            key_id: value("AccessKeyId").ok_or_else(|| missing("AccessKeyId"))?,
            secret_key: value("SecretAccessKey").ok_or_else(|| missing("SecretAccessKey"))?,
            token: Some(value("SessionToken").ok_or_else(|| missing("SessionToken"))?),
        })
    }
}

#[async_trait]
impl CredentialProvider for AssumedRole {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut current = self.current.lock().await;
        if let Some((credential, obtained)) = &*current
            && obtained.elapsed() < MAX_AGE
        {
            return Ok(Arc::clone(credential));
        }
        let to_store_error =
            |error: CacheStoreError| object_store::Error::Generic { store: "S3", source: Box::new(error) };
        let credential = Arc::new(self.assume().await.map_err(to_store_error)?);
        *current = Some((Arc::clone(&credential), Instant::now()));
        Ok(credential)
    }
}
