//! Signed URLs. The module `servers` transfers objects to and from servers.

mod servers;

use std::collections::BTreeMap;

use muster_config::settings::{AzureSettings, GcsCredentials, GcsSettings, S3AccessKey, S3Encryption, S3Settings};
use muster_job::Secret;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn s3() -> S3Settings {
    let access_key = S3AccessKey { id: Secret::new("AKID"), secret: Secret::new("the-secret"), session: None };
    S3Settings {
        server: Some("minio.example:9000".to_owned()),
        bucket: "bucket".to_owned(),
        access_key: Some(access_key),
        ..S3Settings::default()
    }
}

fn query(url: &Url) -> BTreeMap<String, String> {
    url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

async fn open(settings: CacheStoreSettings) -> CacheStore {
    CacheStore::open(&settings).await.unwrap()
}

#[tokio::test]
async fn s3_url_is_limited_to_one_object_one_method_and_the_time_of_the_job() {
    let store = open(CacheStoreSettings::S3(s3())).await;
    let get = store.download_url("project/5/key", Duration::from_secs(90)).await.unwrap();
    assert_eq!(get.as_str().split('?').next(), Some("https://minio.example:9000/bucket/project/5/key"));
    assert_eq!(query(&get)["X-Amz-Expires"], "90");
    let head = store.head_url("project/5/key", Duration::from_secs(90)).await.unwrap();
    assert_ne!(
        query(&get)["X-Amz-Signature"],
        query(&head)["X-Amz-Signature"],
        "the signature must depend on the method"
    );
    assert!(!get.as_str().contains("the-secret"));
    let long = store.download_url("project/5/key", HOUR * 24 * 30).await.unwrap();
    assert_eq!(query(&long)["X-Amz-Expires"], "604800", "the validity must be limited to a week, as S3 requires");
}

#[tokio::test]
async fn s3_upload_has_signed_headers_for_encryption_and_cache_key() {
    let encrypted = S3Settings { encryption: Some(S3Encryption::Kms(Some("arn:k".to_owned()))), ..s3() };
    let store = open(CacheStoreSettings::S3(encrypted)).await;
    let upload = store.upload_url("a", HOUR, UploadOptions { cache_key: "main 1", max_bytes: 7 }).await.unwrap();
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        upload.headers,
        [
            header("x-amz-server-side-encryption", "aws:kms"),
            header("x-amz-server-side-encryption-aws-kms-key-id", "arn:k"),
            header("x-amz-meta-cachekey", "main 1"),
        ]
    );
    let signed = "host;x-amz-meta-cachekey;x-amz-server-side-encryption;x-amz-server-side-encryption-aws-kms-key-id";
    assert_eq!(query(&upload.url)["X-Amz-SignedHeaders"], signed);
    let unprintable = UploadOptions { cache_key: "größe", max_bytes: 0 };
    assert_eq!(store.upload_url("a", HOUR, unprintable).await.unwrap().headers.len(), 2);
}

#[tokio::test]
async fn session_token_of_a_temporary_key_is_part_of_the_url() {
    let mut settings = s3();
    settings.access_key.as_mut().unwrap().session = Some(Secret::new("token+1"));
    let url = open(CacheStoreSettings::S3(settings)).await.download_url("a", HOUR).await.unwrap();
    assert_eq!(query(&url)["X-Amz-Security-Token"], "token+1");
}

#[tokio::test]
async fn error_of_an_invalid_role_server_names_its_variable() {
    let settings = S3Settings { role: Some("arn:aws:iam::1:role/r".to_owned()), ..s3() };
    let variable = |name: &str| (name == "AWS_ENDPOINT_URL_STS").then(|| "http://not a host".to_owned());
    let error = s3::S3::open(&settings, &variable).await.unwrap_err().to_string();
    assert!(error.contains("`http://not a host`") && error.contains("AWS_ENDPOINT_URL_STS"), "{error}");
    assert!(!error.contains("ServerAddress"), "{error}");
}

#[tokio::test]
async fn invalid_object_name_is_an_error() {
    let store = open(CacheStoreSettings::S3(s3())).await;
    for name in ["", "/a", "a/", "a//b", "a/../b", "a\nb"] {
        let error = store.download_url(name, HOUR).await.unwrap_err();
        assert!(error.to_string().contains("choose another cache key"), "{name:?}: {error}");
    }
}

/// The account of this key does not exist.
fn private_key() -> String {
    include_str!("key.pem").to_owned()
}

#[tokio::test]
async fn google_upload_has_signed_headers_for_size_and_cache_key() {
    let credentials =
        GcsCredentials::Key { account: "me@p.example".to_owned(), private_key: Secret::new(private_key()) };
    let settings = GcsSettings { bucket: "bucket".to_owned(), credentials, domain: None };
    let store = open(CacheStoreSettings::Gcs(settings)).await;
    let get = store.download_url("project/5/test job#1/50%/ü", HOUR).await.unwrap();
    assert_eq!(
        get.as_str().split('?').next(),
        Some("https://storage.googleapis.com/bucket/project/5/test%20job%231/50%25/%C3%BC")
    );
    let values = query(&get);
    assert_eq!((values["X-Goog-Expires"].as_str(), values["X-Goog-SignedHeaders"].as_str()), ("3600", "host"));
    assert!(values["X-Goog-Credential"].starts_with("me@p.example/"), "{values:?}");
    let put = store.upload_url("a", HOUR, UploadOptions { cache_key: "k", max_bytes: 9 }).await.unwrap();
    assert_eq!(put.headers[0], ("x-goog-content-length-range".to_owned(), "0,9".to_owned()));
    let signed = "host;x-goog-content-length-range;x-goog-meta-cachekey";
    assert_eq!(query(&put.url)["X-Goog-SignedHeaders"], signed);
}

#[tokio::test]
async fn another_universe_of_google_has_its_own_domain() {
    let credentials = GcsCredentials::Key { account: "me".to_owned(), private_key: Secret::new(private_key()) };
    let settings = GcsSettings { bucket: "b".to_owned(), credentials, domain: Some("example.cloud".to_owned()) };
    let url = open(CacheStoreSettings::Gcs(settings)).await.download_url("a", HOUR).await.unwrap();
    assert_eq!(url.host_str(), Some("storage.example.cloud"));
}

#[tokio::test]
async fn invalid_key_is_an_error_that_does_not_contain_it() {
    let credentials = GcsCredentials::Key { account: "me".to_owned(), private_key: Secret::new("no key at all") };
    let settings = GcsSettings { bucket: "b".to_owned(), credentials, domain: None };
    let error = CacheStore::open(&CacheStoreSettings::Gcs(settings)).await.unwrap_err();
    assert!(!muster_job::error_chain(&error).contains("no key at all"), "{error:?}");
    let azure = AzureSettings {
        account: "me".to_owned(),
        container: "c".to_owned(),
        key: Some(Secret::new("not base64!")),
        domain: None,
    };
    let error = CacheStore::open(&CacheStoreSettings::Azure(azure)).await.unwrap_err();
    assert!(!muster_job::error_chain(&error).contains("not base64!"), "{error:?}");
}

#[tokio::test]
async fn azure_url_reads_or_writes_one_blob() {
    let key = Secret::new("a2V5");
    let settings = AzureSettings { account: "me".to_owned(), key: Some(key), container: "c".to_owned(), domain: None };
    let store = open(CacheStoreSettings::Azure(settings)).await;
    let get = store.download_url("project/5/key", HOUR).await.unwrap();
    assert_eq!(get.as_str().split('?').next(), Some("https://me.blob.core.windows.net/c/project/5/key"));
    assert_eq!((query(&get)["sp"].as_str(), query(&get)["sr"].as_str()), ("r", "b"));
    let put = store.upload_url("project/5/key", HOUR, UploadOptions { cache_key: "k", max_bytes: 0 }).await.unwrap();
    assert_eq!(query(&put.url)["sp"], "cw");
    assert_eq!(put.headers[0], ("x-ms-blob-type".to_owned(), "BlockBlob".to_owned()));
}

#[tokio::test]
async fn open_store_is_reused_until_its_settings_change() {
    let stores = CacheStores::default();
    let first = stores.get(&CacheStoreSettings::S3(s3())).await.unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &stores.get(&CacheStoreSettings::S3(s3())).await.unwrap()));
    let other = CacheStoreSettings::S3(S3Settings { bucket: "other".to_owned(), ..s3() });
    assert!(!std::sync::Arc::ptr_eq(&first, &stores.get(&other).await.unwrap()));
}

fn store_of(kind: Kind) -> CacheStore {
    CacheStore { kind, http: Transport::new().unwrap() }
}
