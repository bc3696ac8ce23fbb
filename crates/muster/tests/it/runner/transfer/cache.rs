//! `cache-archiver` and `cache-extractor`, without and with a store.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::store::Store;
use super::{check_unpacked, create_project, run_in, zip_files};
use crate::process::{CommandResult, until};
use crate::runner::support::Home;

const OLD: &str = "Wed, 01 Jan 2020 10:00:00 GMT";
const NEW: &str = "Tue, 01 Jan 2041 10:00:00 GMT";

fn archiver(home: &Home, more: &[&str]) -> CommandResult {
    let common = ["cache-archiver", "--file", "../cache/key/cache.zip", "--path", "out", "--retry-time", "1ms"];
    run_in(home, "project", &[&common, more].concat())
}

fn extractor(home: &Home, more: &[&str]) -> CommandResult {
    run_in(
        home,
        "other",
        &[&["cache-extractor", "--file", "../cache/key/cache.zip", "--retry-time", "1ms"], more].concat(),
    )
}

#[test]
fn local_cache_works_in_every_format() {
    for format in ["", "zip", "zipzstd", "TarZstd"] {
        let home = Home::new();
        create_project(&home);
        let flags =
            ["--compression-format", format, "--compression-level", "fast", "--metadata", "{\"cachekey\":\"k\"}"];
        archiver(&home, &flags).check(0, &["No URL provided, cache will not be uploaded"]);
        assert_eq!(std::fs::read_to_string(home.path("cache/key/metadata.json")).unwrap(), "{\"cachekey\":\"k\"}");
        archiver(&home, &flags).check(0, &["Archive is up to date!"]);
        extractor(&home, &[]).check(0, &["No URL provided, cache will not be downloaded"]);
        check_unpacked(&home.path("other"));
    }
}

#[test]
fn missing_files_missing_caches_and_unsupported_urls_are_reported() {
    let home = Home::new();
    run_in(&home, "project", &["cache-archiver", "--file", "c.zip", "--path", "none"])
        .check(0, &["No files to cache."]);
    run_in(&home, "project", &["cache-archiver"]).check(1, &["Missing --file"]);
    extractor(&home, &[]).check(1, &["Cache file does not exist"]);
    run_in(&home, "project", &["cache-extractor"]).check(1, &["Missing cache file"]);
    create_project(&home);
    let messages = ["--gocloud-url is not supported", "(\"azblob\")", "?SAS", "'x-ms-blob-type: BlockBlob'"];
    archiver(&home, &["--gocloud-url", "azblob://c/o"]).check(1, &messages);
    let messages = ["--alternate-gocloud-url is not supported", "(\"s3\")", "set --alternate-url to it"];
    extractor(&home, &["--alternate-gocloud-url", "s3://b/o"]).check(1, &messages);
    std::fs::create_dir_all(home.path("cache/key")).unwrap();
    std::fs::write(home.path("cache/key/cache.zip"), "no archive").unwrap();
    extractor(&home, &[]).check(1, &["failed to read the archive"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_is_uploaded_with_headers_and_downloaded() {
    let (store, home) = (Store::start().await, Home::new());
    create_project(&home);
    store.respond_with_statuses(&[500, 503]);
    let url = format!("{}/bucket/object?signature=secret", store.url);
    let headers = ["--header", "x-amz-meta-cachekey: k", "--header", "Content-Type: application/zip"];
    let result = archiver(&home, &[&["--url", &url], &headers[..]].concat());
    let result = result.check(0, &["Uploading cache.zip to http", "received: 503", "Retrying..."]);
    assert!(!result.stderr.contains("secret"), "{}", result.stderr);
    let requests = store.take_requests();
    assert_eq!(requests.len(), 3);
    let header = |name: &str| requests[2].headers.get(name).map(String::as_str);
    assert_eq!((header("x-amz-meta-cachekey"), header("content-type")), (Some("k"), Some("application/zip")));
    assert!(
        header("last-modified").is_some()
            && header("content-length").is_some()
            && header("transfer-encoding").is_none()
    );
    assert_eq!(zip_files(&store.object("/bucket/object").unwrap())["out/a"], "first");

    std::fs::remove_dir_all(home.path("cache")).unwrap();
    store.respond_with_statuses(&[502]);
    let messages = ["Downloading cache from http", "/bucket/object ETag=\"tag\"", "Retrying..."];
    extractor(&home, &["--url", &url]).check(0, &messages);
    check_unpacked(&home.path("other"));
    extractor(&home, &["--url", &url]).check(0, &["cache.zip is up to date"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_transfer_is_a_warning_with_exit_code_1() {
    let (store, home) = (Store::start().await, Home::new());
    create_project(&home);
    let url = format!("{}/object", store.url);
    extractor(&home, &["--url", &url]).check(1, &["file does not exist"]);
    let body = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>Request has\nexpired</Message></Error>";
    store.respond_with(403, &[], body);
    let messages = ["received: 403 Forbidden. Request failed with code: AccessDenied, message: Request has expired"];
    extractor(&home, &["--url", &url]).check(1, &messages);
    store.respond_with_statuses(&[500, 500]);
    extractor(&home, &["--url", &url, "--retry", "1"]).check(1, &["received: 500"]);
    store.respond_with_statuses(&[403]);
    archiver(&home, &["--url", &url]).check(1, &["received: 403"]);
    archiver(&home, &["--url", &url]).check(0, &["Archive is up to date!"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn archive_above_the_limit_is_not_uploaded() {
    let (store, home) = (Store::start().await, Home::new());
    create_project(&home);
    let url = format!("{}/object", store.url);
    let flags = ["--url", &url, "--max-uploaded-archive-size", "10"];
    archiver(&home, &flags).check(0, &["is too big (Limit is set to 10). Cache will be stored only locally."]);
    assert!(store.take_requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_is_found_under_the_other_form_of_its_key() {
    let (store, home) = (Store::start().await, Home::new());
    create_project(&home);
    let (new, old) = (format!("{}/new", store.url), format!("{}/old", store.url));
    // A cache file is named after its key or after the key's hash. An earlier job has used the other form.
    run_in(&home, "project", &["cache-archiver", "--file", "../cache/old/cache.zip", "--path", "out"]).check(0, &[]);
    let flags = ["--alternate-file", "../cache/old/cache.zip", "--url", &new, "--check-url", &new];
    archiver(&home, &flags).check(0, &["Archive is up to date!", "uploading existing archive"]);
    assert!(!home.path("cache/old/cache.zip").exists() && home.path("cache/key/cache.zip").exists());
    archiver(&home, &flags).check(0, &["already exists remotely, skipping upload"]);
    // If the store has both forms, the newer object is used. Here, this is `/old`.
    let content = store.object("/new").unwrap();
    store.put("/new", b"older, and no archive".to_vec(), OLD);
    store.put("/old", content, NEW);
    std::fs::remove_dir_all(home.path("cache")).unwrap();
    let heads = ["--head-url", &new, "--alternate-head-url", &old];
    extractor(&home, &[&["--url", &new, "--alternate-url", &old], &heads[..]].concat()).check(0, &["/old"]);
    check_unpacked(&home.path("other"));
    // Without head URLs, the cache at `--alternate-url` is used only if `--url` has no cache.
    std::fs::remove_dir_all(home.path("cache")).unwrap();
    extractor(&home, &["--url", &format!("{}/none", store.url), "--alternate-url", &old]).check(0, &["/old"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_leaves_no_partial_archive() {
    let home = Home::new();
    create_project(&home);
    let large = std::fs::File::create(home.path("project/out/large")).unwrap();
    large.set_len(8 << 30).unwrap();
    let arguments = ["cache-archiver", "--file", "../cache/cache.zip", "--path", "out"];
    let mut child = home.command(&arguments).current_dir(home.path("project")).stderr(Stdio::null()).spawn().unwrap();
    let parts = || std::fs::read_dir(home.path("cache")).into_iter().flatten().count();
    until(async || if parts() > 0 { Ok(()) } else { Err("no archive was started".to_owned()) }).await;
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(1), None));
    assert_eq!(parts(), 0);
}
