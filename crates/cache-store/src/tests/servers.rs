//! Signed URLs at servers. Azurite verifies signatures. moto (S3, roles and the metadata service of machines) and
//! fake-gcs-server do not.
//!
//! The signatures for S3 and Google Cloud Storage are compared with those of Amazon's and Google's own libraries.

use futures::TryStreamExt as _;
use muster_test_prerequisites::object_stores::{
    AZURITE_ACCOUNT, AZURITE_KEY, GCS_BUCKET, Server, azurite, fake_gcs, moto, python_program,
};
use object_store::ObjectStoreExt as _;
use object_store::azure::{AzureAuthorizer, AzureCredential};
use object_store::client::HttpRequest;
use reqwest::StatusCode;

use super::*;

const NAMES: [&str; 2] = ["runner/abc/project/5/deps-main-protected", "project/5/test job/größe #1+2 50%?=&"];

fn settings(server: &Server) -> S3Settings {
    S3Settings { server: Some(server.address.clone()), insecure: true, ..s3() }
}

async fn put(upload: &SignedUpload, body: &str) -> StatusCode {
    let call = reqwest::Client::new().put(upload.url.clone()).body(body.to_owned());
    let call = upload.headers.iter().fold(call, |call, (name, value)| call.header(name, value));
    call.send().await.unwrap().status()
}

async fn get(url: Url) -> (StatusCode, String) {
    let answer = reqwest::get(url).await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

async fn status_of_head(url: Url) -> StatusCode {
    reqwest::Client::new().head(url).send().await.unwrap().status()
}

fn options() -> UploadOptions<'static> {
    UploadOptions { cache_key: "deps main", max_bytes: 1000 }
}

async fn assert_transfers_work(store: &CacheStore) {
    for name in NAMES {
        assert_eq!(status_of_head(store.head_url(name, HOUR).await.unwrap()).await, StatusCode::NOT_FOUND, "{name}");
        let upload = store.upload_url(name, HOUR, options()).await.unwrap();
        let status = put(&upload, name).await;
        assert!(status.is_success(), "{name}: {status}");
        assert_eq!(status_of_head(store.head_url(name, HOUR).await.unwrap()).await, StatusCode::OK, "{name}");
        assert_eq!(get(store.download_url(name, HOUR).await.unwrap()).await, (StatusCode::OK, name.to_owned()));
    }
}

/// Returns the signature or the signed URL from the vendor's library. `None` if the Python environment is missing.
fn signed_by_library(input: &serde_json::Value) -> Option<String> {
    let output = python_program("python3")?.args(["-c", include_str!("libraries.py")]).arg(input.to_string()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

async fn all_urls(store: &CacheStore, name: &str) -> Vec<(&'static str, Url, serde_json::Value)> {
    let upload = store.upload_url(name, HOUR, options()).await.unwrap();
    let headers = upload.headers.into_iter().map(|(name, value)| (name, value.into())).collect();
    vec![
        ("GET", store.download_url(name, HOUR).await.unwrap(), serde_json::json!({})),
        ("HEAD", store.head_url(name, HOUR).await.unwrap(), serde_json::json!({})),
        ("PUT", upload.url, serde_json::Value::Object(headers)),
    ]
}

#[tokio::test]
async fn signatures_of_s3_are_those_of_amazons_library() {
    let encrypted = S3Settings { encryption: Some(S3Encryption::Kms(Some("arn:k".to_owned()))), ..s3() };
    let store = open(CacheStoreSettings::S3(encrypted)).await;
    for name in NAMES {
        for (method, url, headers) in all_urls(&store, name).await {
            let (unsigned, signature) = url.as_str().split_once("&X-Amz-Signature=").unwrap();
            let time = &query(&url)["X-Amz-Date"];
            let input = serde_json::json!({
                "store": "s3", "method": method, "url": unsigned, "headers": headers, "time": time,
                "key": "AKID", "secret": "the-secret", "region": "us-east-1",
            });
            let Some(expected) = signed_by_library(&input) else { return };
            assert_eq!(signature, expected, "{method} {url}");
        }
    }
}

#[tokio::test]
async fn signatures_of_google_are_those_of_googles_library() {
    let credentials = GcsCredentials::Key { account: "me".to_owned(), private_key: Secret::new(private_key()) };
    let settings = GcsSettings { bucket: "bucket".to_owned(), credentials, domain: None };
    let store = open(CacheStoreSettings::Gcs(settings)).await;
    for name in NAMES {
        for (method, url, headers) in all_urls(&store, name).await {
            let input = serde_json::json!({
                "store": "gcs", "method": method, "path": url.path(), "headers": headers, "expires": HOUR.as_secs(),
                "time": query(&url)["X-Goog-Date"], "key": "me", "secret": private_key(),
            });
            let Some(expected) = signed_by_library(&input) else { return };
            let expected = Url::parse(&expected).unwrap();
            assert_eq!((url.path(), query(&url)), (expected.path(), query(&expected)), "{method} {name}");
        }
    }
}

#[tokio::test]
async fn s3_server_stores_objects_under_their_exact_names() {
    let Some(server) = moto() else { return };
    create_bucket(&server).await;
    assert_transfers_work(&open(CacheStoreSettings::S3(settings(&server))).await).await;
    let listing = get(format!("{}/bucket", server.url()).parse().unwrap()).await.1;
    let listing = roxmltree::Document::parse(&listing).unwrap();
    let keys = listing.descendants().filter(|node| node.tag_name().name() == "Key").filter_map(|node| node.text());
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    assert_eq!(keys, [NAMES[1], NAMES[0]]);
}

fn gcs_at(address: String) -> CacheStore {
    let credentials = GcsCredentials::Key { account: "me".to_owned(), private_key: Secret::new(private_key()) };
    let settings = GcsSettings { bucket: GCS_BUCKET.to_owned(), credentials, domain: None };
    let variable = |name: &str| (name == "STORAGE_EMULATOR_HOST").then(|| address.clone());
    store_of(Kind::Gcs(gcs::Gcs::open(&settings, &variable).unwrap()))
}

#[tokio::test]
async fn google_server_stores_objects_under_their_exact_names() {
    let Some(server) = fake_gcs() else { return };
    let store = gcs_at(server.url());
    assert_transfers_work(&store).await;
    let mut names: Vec<String> =
        store.bucket().list(None).map_ok(|object| object.location.to_string()).try_collect().await.unwrap();
    names.sort_unstable();
    assert_eq!(names, [NAMES[1], NAMES[0]]);
    let answer = reqwest::get(store.download_url(NAMES[1], HOUR).await.unwrap()).await.unwrap();
    assert_eq!(answer.headers().get("x-goog-meta-cachekey").unwrap(), "deps main");
    let part = store.download_url(NAMES[0], HOUR).await.unwrap();
    let part = reqwest::Client::new().get(part).header("range", "bytes=7-9").send().await.unwrap();
    assert_eq!((part.status(), part.text().await.unwrap().as_str()), (StatusCode::PARTIAL_CONTENT, "abc"));
    // The address may have no scheme, and a slash at its end.
    for address in [server.address.clone(), format!("{}/", server.url())] {
        let url = gcs_at(address).download_url(NAMES[0], HOUR).await.unwrap();
        assert_eq!(get(url).await, (StatusCode::OK, NAMES[0].to_owned()));
    }
    for name in NAMES {
        store.bucket().delete(&object_path(name).unwrap()).await.unwrap();
        assert_eq!(store.read_object(name, 1000).await.unwrap(), None, "{name}");
    }
}

async fn azure_at(server: &Server) -> CacheStore {
    let account = format!("{}/{AZURITE_ACCOUNT}", server.url());
    let key = object_store::azure::AzureAccessKey::try_new(AZURITE_KEY).unwrap();
    let mut create = HttpRequest::new(String::new().into());
    *create.method_mut() = Method::PUT;
    *create.uri_mut() = format!("{account}/caches?restype=container").parse().unwrap();
    create.headers_mut().insert("content-length", ::http::HeaderValue::from_static("0"));
    AzureAuthorizer::new(&AzureCredential::AccessKey(key), AZURITE_ACCOUNT).try_authorize(&mut create).unwrap();
    let answer = http::Transport::new().unwrap().send(create).await.unwrap();
    assert!(answer.status().is_success(), "{}", String::from_utf8_lossy(answer.body()));
    let settings = AzureSettings {
        account: AZURITE_ACCOUNT.to_owned(),
        key: Some(Secret::new(AZURITE_KEY)),
        container: "caches".to_owned(),
        domain: None,
    };
    store_of(Kind::Azure(Box::new(azure::Azure::at(&account, &settings).unwrap())))
}

#[tokio::test]
async fn azure_server_accepts_the_signatures() {
    let Some(server) = azurite() else { return };
    let store = azure_at(&server).await;
    assert_transfers_work(&store).await;
    for name in NAMES {
        let upload = store.upload_url(name, HOUR, options()).await.unwrap();
        let download = store.download_url(name, HOUR).await.unwrap();
        let write = SignedUpload { url: download.clone(), headers: upload.headers.clone() };
        assert_eq!(put(&write, "replaced").await, StatusCode::FORBIDDEN, "{name}");
        let mut other = download.clone();
        other.set_path(&format!("{}x", download.path()));
        assert_eq!(get(other).await.0, StatusCode::FORBIDDEN, "{name}");
        assert_eq!(get(upload.url).await.0, StatusCode::FORBIDDEN, "{name}");
    }
}

#[tokio::test]
async fn collection_reads_marks_of_more_than_one_mebibyte() {
    let Some(server) = moto() else { return };
    create_bucket(&server).await;
    let store = open(CacheStoreSettings::S3(settings(&server))).await;
    let name = |file: &str| format!("chunks/5/unprotected/{file}");
    let marks: BTreeMap<String, u64> = (0..40_000).map(|number| (format!("1-0123456789abcdef-{number}"), 1)).collect();
    let marks = serde_json::to_string(&marks).unwrap();
    assert!(marks.len() > 1 << 20);
    for (file, content) in [("marks.json", marks.as_str()), ("objects/1-0123456789abcdef-7", "content")] {
        let upload = store.upload_url(&name(file), HOUR, options()).await.unwrap();
        assert_eq!(put(&upload, content).await, StatusCode::OK);
    }
    let error = store.read_object(&name("objects/1-0123456789abcdef-7"), 6).await.unwrap_err();
    assert!(muster_job::error_chain(&error).contains("longer than 6 bytes"), "{error:?}");
    let collections = store.collect("", collect_options()).await.unwrap();
    assert_eq!(collections.iter().map(|(_, collection)| collection.deleted).collect::<Vec<_>>(), [(1, 7)]);
    assert_eq!(store.read_object(&name("objects/1-0123456789abcdef-7"), 1 << 20).await.unwrap(), None);
}

fn collect_options() -> CollectOptions {
    CollectOptions {
        now: std::time::SystemTime::now(),
        grace: Duration::from_secs(1),
        max_age: None,
        min_interval: None,
        dry_run: false,
    }
}

/// Saves a cache whose prefix and key have special characters, and deletes it because of its age.
async fn assert_cache_expires(store: &CacheStore) {
    let name = "ci~größe/chunks/5/unprotected/keys/test~job/größe #1 50%/reference.json";
    assert!(put(&store.upload_url(name, HOUR, options()).await.unwrap(), "{}").await.is_success());
    let options = CollectOptions { now: std::time::SystemTime::now() + HOUR * 2, ..collect_options() };
    let expired = async |max_age| {
        let options = CollectOptions { max_age: Some(max_age), ..options };
        let collections = store.collect("ci~größe", options).await.unwrap();
        collections.iter().map(|(_, collection)| collection.expired).collect::<Vec<_>>()
    };
    assert_eq!(expired(HOUR * 3).await, [0]);
    assert!(store.read_object(name, 1000).await.unwrap().is_some());
    assert_eq!(expired(HOUR).await, [1]);
    assert_eq!(store.read_object(name, 1000).await.unwrap(), None);
}

#[tokio::test]
async fn s3_cache_with_special_characters_expires() {
    let Some(server) = moto() else { return };
    create_bucket(&server).await;
    assert_cache_expires(&open(CacheStoreSettings::S3(settings(&server))).await).await;
}

#[tokio::test]
async fn azure_cache_with_special_characters_expires() {
    let Some(server) = azurite() else { return };
    assert_cache_expires(&azure_at(&server).await).await;
}

#[tokio::test]
async fn cache_that_was_saved_after_the_listing_does_not_expire() {
    let bucket = object_store::memory::InMemory::new();
    let path = object_path("keys/größe/reference.json").unwrap();
    bucket.put(&path, "new".into()).await.unwrap();
    let saved: std::time::SystemTime = bucket.head(&path).await.unwrap().last_modified.into();
    assert!(!collect::delete_unless_saved(&bucket, path.as_ref(), saved - HOUR).await.unwrap());
    assert!(collect::delete_unless_saved(&bucket, path.as_ref(), saved).await.unwrap());
    assert!(bucket.head(&path).await.is_err());
}

async fn create_bucket(server: &Server) {
    let answer = reqwest::Client::new().put(format!("{}/bucket", server.url())).send().await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
}

#[tokio::test]
async fn upload_has_the_encryption_and_the_metadata_at_the_server() {
    let Some(server) = moto() else { return };
    create_bucket(&server).await;
    let encrypted = S3Settings { encryption: Some(S3Encryption::S3), ..settings(&server) };
    let store = open(CacheStoreSettings::S3(encrypted)).await;
    assert_eq!(put(&store.upload_url("a", HOUR, options()).await.unwrap(), "content").await, StatusCode::OK);
    let answer = reqwest::get(store.download_url("a", HOUR).await.unwrap()).await.unwrap();
    let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("x-amz-server-side-encryption").as_deref(), Some("AES256"));
    assert_eq!(header("x-amz-meta-cachekey").as_deref(), Some("deps main"));
}

#[tokio::test]
async fn role_is_assumed_once_for_several_urls() {
    let Some(server) = moto() else { return };
    create_bucket(&server).await;
    let role = "arn:aws:iam::123456789012:role/cache";
    let address = server.url();
    let variable = |name: &str| (name == "AWS_ENDPOINT_URL_STS").then(|| address.clone());
    let store =
        |settings: S3Settings| async move { store_of(Kind::S3(s3::S3::open(&settings, &variable).await.unwrap())) };
    let with_role = store(S3Settings { role: Some(role.to_owned()), ..settings(&server) }).await;
    let token = |url: &Url| query(url).get("X-Amz-Security-Token").cloned();
    let first = with_role.download_url("a", HOUR).await.unwrap();
    assert!(token(&first).is_some(), "{first}");
    assert_ne!(query(&first)["X-Amz-Credential"].split('/').next(), Some("AKID"));
    let second = with_role.upload_url("a", HOUR, options()).await.unwrap();
    assert_eq!(token(&first), token(&second.url), "the credentials must be cached");
    assert_eq!(put(&second, "content").await, StatusCode::OK);
    let uploads = store(S3Settings { upload_role: Some(role.to_owned()), ..settings(&server) }).await;
    assert_eq!(token(&uploads.download_url("a", HOUR).await.unwrap()), None);
    assert!(token(&uploads.upload_url("a", HOUR, options()).await.unwrap().url).is_some());
    let unreachable = |name: &str| (name == "AWS_ENDPOINT_URL_STS").then(|| "http://127.0.0.1:9".to_owned());
    let settings = S3Settings { role: Some(role.to_owned()), ..settings(&server) };
    let store = store_of(Kind::S3(s3::S3::open(&settings, &unreachable).await.unwrap()));
    let error = muster_job::error_chain(&store.download_url("a", HOUR).await.unwrap_err());
    assert!(error.contains("failed to assume the role arn:aws:iam::123456789012:role/cache"), "{error}");
}

#[tokio::test]
async fn credentials_of_the_machine_are_used_without_an_access_key() {
    let Some(server) = moto() else { return };
    let address = server.url();
    let variable = |name: &str| (name == "AWS_EC2_METADATA_SERVICE_ENDPOINT").then(|| address.clone());
    let settings = S3Settings { access_key: None, ..settings(&server) };
    let store = store_of(Kind::S3(s3::S3::open(&settings, &variable).await.unwrap()));
    let url = store.download_url("a", HOUR).await.unwrap();
    assert!(query(&url).contains_key("X-Amz-Security-Token"), "{url}");
}

#[tokio::test]
async fn machine_without_metadata_service_is_an_error_in_bounded_time() {
    let settings = S3Settings { access_key: None, ..s3() };
    let variable = |name: &str| (name == "AWS_EC2_METADATA_SERVICE_ENDPOINT").then(|| "http://127.0.0.1:9".to_owned());
    let store = store_of(Kind::S3(s3::S3::open(&settings, &variable).await.unwrap()));
    let began = std::time::Instant::now();
    store.download_url("a", HOUR).await.unwrap_err();
    assert!(began.elapsed() < stores::SIGN_TIMEOUT, "{:?}", began.elapsed());
}
