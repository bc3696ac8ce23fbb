//! `artifacts-uploader` and `artifacts-downloader`, with a coordinator, and with a server with scripted responses.

use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use muster_runner_api::client::{Client, Progress};
use muster_runner_api::test_support::{Call, Fault, MemoryCoordinator, RUNNER_TOKEN, Served, serve};
use muster_runner_api::wire::JobRequest;
use serde_json::json;

use super::store::Store;
use super::{check_unpacked, create_project, run_in, zip_files};
use crate::process::CommandResult;
use crate::runner::support::Home;

const TOKEN: &str = "job-secret-1";

async fn coordinator() -> (Arc<MemoryCoordinator>, Served) {
    let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_millis(50)));
    let served = serve(coordinator.clone()).await.unwrap();
    let payload = json!({ "id": 1, "token": TOKEN, "job_info": { "name": "test", "project_id": 1 } });
    coordinator.enqueue(serde_json::from_value(payload).unwrap());
    let request = JobRequest { token: RUNNER_TOKEN.to_owned(), ..JobRequest::default() };
    Client::new(&served.url)
        .unwrap()
        .request_job(&request, &Progress::default())
        .await
        .unwrap()
        .job
        .expect("the job must be assigned");
    (coordinator, served)
}

fn run(home: &Home, directory: &str, name: &str, url: &str, more: &[&str]) -> CommandResult {
    let common = [name, "--url", url, "--token", TOKEN, "--id", "1"];
    run_in(home, directory, &[&common, more].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn uploaded_archives_download_unchanged_in_every_format() {
    for format in ["", "zip", "zipzstd", "tarzstd"] {
        let ((coordinator, served), home) = (coordinator().await, Home::new());
        create_project(&home);
        let flags =
            ["--path", "out", "--artifact-format", format, "--expire-in", "1 day", "--artifact-type", "archive"];
        let url = served.url.as_str();
        let result = run(&home, "project", "artifacts-uploader", url, &flags);
        let messages =
            ["out: found 5 matching artifact files and directories", "Uploading artifacts as \"archive\" to"];
        result.check(0, &messages).check(0, &["201 Created"]);
        let (name, query) = coordinator.job(JobId(1)).unwrap().uploads[0].clone();
        assert_eq!(name, if format == "tarzstd" { "artifacts.tar.zst" } else { "artifacts.zip" });
        assert_eq!(query.expire_in.as_deref(), Some("1 day"));
        let result = run(&home, "other", "artifacts-downloader", url, &[]);
        result.check(0, &["Downloading artifacts from coordinator... ok"]);
        check_unpacked(&home.path("other"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_and_raw_artifacts_are_uploaded_without_an_archive() {
    let ((coordinator, served), home) = (coordinator().await, Home::new());
    create_project(&home);
    let url = served.url.as_str();
    let flags = |format| ["--path", "out/a", "--name", "report.txt", "--artifact-format", format];
    run(&home, "project", "artifacts-uploader", url, &flags("gzip")).check(0, &[]);
    run(&home, "project", "artifacts-uploader", url, &flags("raw")).check(0, &[]);
    let job = coordinator.job(JobId(1)).unwrap();
    assert_eq!(job.artifacts["report.txt"], "first".as_bytes());
    // The first bytes of every gzip file.
    assert_eq!(job.artifacts["report.txt.gz"][..2], [0x1f, 0x8b]);
    run(&home, "other", "artifacts-downloader", url, &[]).check(1, &["a gzip file, which is not supported"]);
    let two = ["--path", "out", "--artifact-format", "raw"];
    run(&home, "project", "artifacts-uploader", url, &two).check(1, &["must be exactly one file"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_failures_are_retried_and_rejections_are_not() {
    let home = Home::new();
    create_project(&home);
    let (coordinator, served) = coordinator().await;
    coordinator.fail(Call::UploadArtifact, [Fault::FailBefore]);
    let url = served.url.as_str();
    run(&home, "project", "artifacts-uploader", url, &["--path", "out"]).check(0, &["Retrying...", "201 Created"]);
    let store = Store::start().await;
    for (status, message) in [(403, "forbidden"), (401, "unauthorized"), (404, "not found"), (413, "too large")] {
        store.respond_with_statuses(&[status]);
        run(&home, "project", "artifacts-uploader", &store.url, &["--path", "out"]).check(1, &[message]);
        assert_eq!(store.take_requests().len(), 1, "{status}");
    }
    for (status, message) in [(403, "forbidden"), (401, "unauthorized"), (404, "not found")] {
        store.respond_with_statuses(&[status]);
        run(&home, "other", "artifacts-downloader", &store.url, &[]).check(1, &[message]);
        assert_eq!(store.take_requests().len(), 1, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_download_attempt_is_direct() {
    let (store, home) = (Store::start().await, Home::new());
    store.respond_with_statuses(&[503, 500, 502, 500]);
    let flags = ["--retry", "3", "--retry-time", "1ms", "--direct-download"];
    run(&home, "other", "artifacts-downloader", &store.url, &flags).check(1, &["failed", "Retrying..."]);
    let targets: Vec<String> = store.take_requests().into_iter().map(|request| request.target).collect();
    let plain = "/api/v4/jobs/1/artifacts";
    assert_eq!(targets, [&format!("{plain}?direct_download=true"), plain, plain, plain]);
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_follows_redirects() {
    let (from, to, home) = (Store::start().await, Store::start().await, Home::new());
    create_project(&home);
    // `/elsewhere` is ignored: a redirect changes only the part of the URL before `/api/v4/`.
    from.respond_with(307, &[("location", format!("{}/elsewhere?x=1", to.url))], "");
    run(&home, "project", "artifacts-uploader", &from.url, &["--path", "out"]).check(0, &["201 Created"]);
    let requests = to.take_requests();
    assert_eq!(requests[0].target, "/api/v4/jobs/1/artifacts");
    assert_eq!(requests[0].headers["job-token"], TOKEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_without_files_or_credentials() {
    let (store, home) = (Store::start().await, Home::new());
    let result = run(&home, "project", "artifacts-uploader", &store.url, &["--path", "nothing"]);
    result.check(0, &["nothing: no matching files", "No files to upload"]);
    assert!(store.take_requests().is_empty());
    let uploader = |flags: &[&str]| run_in(&home, "project", &[&["artifacts-uploader"], flags].concat());
    uploader(&[]).check(1, &["Missing runner credentials"]);
    uploader(&["--url", &store.url, "--token", "t"]).check(1, &["Missing build ID"]);
    run_in(&home, "project", &["artifacts-downloader", "--id", "-1"]).check(1, &["--url, --token, --id"]);
    uploader(&["--url", "nonsense", "--token", "t", "--id", "1", "--path", "."]).check(1, &["--url nonsense"]);
    let mut by_variables = home.command(&["artifacts-uploader", "--path", "none"]);
    by_variables.env("CI_SERVER_URL", &store.url).env("CI_JOB_TOKEN", "t").env("CI_JOB_ID", "1");
    CommandResult::of(by_variables.output().unwrap()).check(0, &["No files to upload"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn provenance_statement_is_added_to_the_archive() {
    let ((coordinator, served), home) = (coordinator().await, Home::new());
    create_project(&home);
    let url = served.url.as_str();
    let common = ["--path", "out", "--exclude", "out/sub/**", "--name", "all-$X", "--generate-artifacts-metadata"];
    let repo = ["--runner-id", "7", "--repo-url", "https://g/p", "--repo-digest", "abc", "--job-name", "make"];
    let times = ["--started-at", "2025-01-01T00:00:00Z", "--ended-at", "2025-01-01T00:01:00Z"];
    let rest = ["--executor-name", "shell", "--runner-name", "r", "--metadata-parameter", "CI"];
    let all = [&common[..], &repo, &times, &rest].concat();
    run(&home, "project", "artifacts-uploader", url, &all).check(0, &["Generating artifacts metadata"]);
    let files = zip_files(&coordinator.job(JobId(1)).unwrap().artifacts["all-.zip"]);
    assert_eq!(files.keys().map(String::as_str).collect::<Vec<_>>(), ["all--metadata.json", "out/a"]);
    let statement: serde_json::Value = serde_json::from_str(&files["all--metadata.json"]).unwrap();
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let first = json!({ "name": "out/a", "digest": { "sha256":
        "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e" } });
    assert_eq!(statement["subject"], json!([first]));
    assert_eq!(statement["predicate"]["runDetails"]["builder"]["id"], "https://g/p/-/runners/7");
    let external = &statement["predicate"]["buildDefinition"]["externalParameters"];
    assert_eq!(*external, json!({ "CI": "", "entryPoint": "make", "source": "https://g/p" }));
    // The name of the statement must not escape the directory, neither with `..` nor through a link.
    let outside = home.path("outside");
    std::fs::write(&outside, "unchanged").unwrap();
    std::os::unix::fs::symlink(&outside, home.path("project/escape-metadata.json")).unwrap();
    let escaping =
        [&["--path", "out", "--name", "../../escape", "--generate-artifacts-metadata"][..], &repo, &times].concat();
    run(&home, "project", "artifacts-uploader", url, &escaping).check(0, &["Generating artifacts metadata"]);
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "unchanged");
    let packed = zip_files(&coordinator.job(JobId(1)).unwrap().artifacts["escape.zip"]);
    assert!(packed["escape-metadata.json"].contains("slsa"), "{packed:?}");
    let invalid = ["--path", "out", "--generate-artifacts-metadata", "--started-at", "today"];
    run(&home, "project", "artifacts-uploader", url, &invalid)
        .check(1, &["--started-at: `today` is not a valid RFC 3339 time"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_on_standard_output() {
    let (store, home) = (Store::start().await, Home::new());
    create_project(&home);
    let mut command = home.command(&["artifacts-uploader", "--path", "out/a", "--artifact-format", "raw", "--id", "1"]);
    command.args(["--url", &store.url, "--token", "t", "--transfer-meter-frequency", "1s"]);
    let result = CommandResult::of(command.current_dir(home.path("project")).output().unwrap()).check(0, &[]);
    assert!(result.stdout.contains("\rUploading artifacts 5 B/5 B ("), "{:?}", result.stdout);
}
