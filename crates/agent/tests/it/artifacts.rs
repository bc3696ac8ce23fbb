//! Artifacts that a job uploads and another job downloads.

use std::io::Read;
use std::sync::Arc;

use muster_agent_api::builtin::{
    ArtifactSource, ArtifactsDownload, ArtifactsUpload, ArtifactsUploadList, ProvenanceInfo,
};
use muster_agent_api::plan::{ArtifactEndpoint, Call, JobPlan, Step, When};
use muster_agent_api::result::Outcome;
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{Call as ApiCall, Fault, MemoryCoordinator, Served, serve};

use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::harness::*;

const JOB: JobId = JobId(7);

async fn coordinator() -> (Arc<MemoryCoordinator>, Served) {
    let coordinator = Arc::new(MemoryCoordinator::default());
    coordinator.enqueue(serde_json::from_value(serde_json::json!({"id": JOB.0, "token": "t0ken"})).unwrap());
    coordinator.set_status(JOB, JobStatus::Running);
    let served = serve(coordinator.clone()).await.unwrap();
    (coordinator, served)
}

fn upload(artifacts: ArtifactsUpload) -> Step {
    step(
        "upload_artifacts_on_success",
        When::Always,
        Call::builtin(&ArtifactsUploadList { artifacts: vec![artifacts] }),
    )
}

fn with_coordinator(served: &Served, plan: JobPlan) -> JobPlan {
    let coordinator = ArtifactEndpoint {
        url: served.url.to_string(),
        job_id: JOB.0,
        token: "t0ken".to_owned(),
        ..ArtifactEndpoint::default()
    };
    JobPlan { coordinator, ..plan }
}

fn archive() -> ArtifactsUpload {
    ArtifactsUpload {
        name: "out-$NAME".to_owned(),
        paths: vec!["out/**/*.txt".to_owned(), "out/run".to_owned()],
        exclude: vec!["out/skip.txt".to_owned()],
        artifact_type: "archive".to_owned(),
        artifact_format: "zip".to_owned(),
        ..ArtifactsUpload::default()
    }
}

fn download(token: &str) -> Step {
    let from = vec![ArtifactSource { job_id: JOB.0, name: "build".to_owned(), token: token.to_owned() }];
    step("download_artifacts", When::OnSuccess, Call::builtin(&ArtifactsDownload { from }))
}

const CREATE_FILES: &str = "mkdir -p out/sub; echo a > out/sub/a.txt; echo b > out/skip.txt; echo c > out/c.log; \
                    printf '#!/bin/sh\\necho ran' > out/run; chmod 755 out/run; export NAME=x; echo NAME=x >> $GITLAB_ENV";

#[tokio::test]
async fn archive_is_uploaded_and_downloaded_by_another_job() {
    let (coordinator, served) = coordinator().await;
    coordinator.fail(ApiCall::UploadArtifact, [Fault::FailBefore]);
    let mut agent = Agent::start().await;
    let (log, result) =
        agent.complete(&with_coordinator(&served, agent.plan(vec![script(&[CREATE_FILES]), upload(archive())]))).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    for text in [
        "out/**/*.txt: found 1 matching artifact files and directories",
        "out/skip.txt: excluded 1 files",
        "Retrying...",
        "Uploading artifacts as \"archive\" to coordinator... 201 Created id=7",
    ] {
        assert!(log.contains(text), "{text} in {log}");
    }
    assert_eq!(coordinator.job(JOB).unwrap().artifacts.keys().collect::<Vec<_>>(), ["out-x.zip"]);

    std::fs::remove_dir_all(agent.project()).unwrap();
    let inspect = script(&["find out -type f | sort; out/run"]);
    let (log, _) = agent.complete(&with_coordinator(&served, agent.plan(vec![download("t0ken"), inspect]))).await;
    assert!(log.contains("Downloading artifacts for build (7)...") && log.contains("... ok id=7"), "{log}");
    assert!(log.contains("\nout/run\nout/sub/a.txt\nran"), "{log}");
}

#[tokio::test]
async fn provenance_statement_is_uploaded_with_the_files() {
    let (coordinator, served) = coordinator().await;
    let mut agent = Agent::start().await;
    let origin = ProvenanceInfo {
        job_name: "build".to_owned(),
        parameters: vec!["KEY".to_owned()],
        ..ProvenanceInfo::default()
    };
    let upload = upload(ArtifactsUpload { provenance: Some(origin), ..archive() });
    let before = OffsetDateTime::now_utc() - Duration::SECOND;
    let (log, result) =
        agent.complete(&with_coordinator(&served, agent.plan(vec![script(&[CREATE_FILES]), upload]))).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let archive = coordinator.job(JOB).unwrap().artifacts["out-x.zip"].clone();
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    let statement: serde_json::Value =
        serde_json::from_reader(archive.by_name("out-x-metadata.json").unwrap()).unwrap();
    let names: Vec<_> = statement["subject"].as_array().unwrap().iter().map(|file| &file["name"]).collect();
    assert_eq!(names, ["out/run", "out/sub/a.txt"]);
    let definition = &statement["predicate"]["buildDefinition"];
    assert_eq!(definition["externalParameters"], serde_json::json!({"KEY": "", "entryPoint": "build", "source": ""}));
    let times = &statement["predicate"]["runDetails"]["metadata"];
    let time = |name: &str| OffsetDateTime::parse(times[name].as_str().unwrap(), &Rfc3339).unwrap();
    assert!(before <= time("startedOn") && time("startedOn") <= time("finishedOn"), "{times}");
}

#[tokio::test]
async fn report_is_uploaded_as_gzip_and_a_failed_upload_fails_the_job() {
    let (coordinator, served) = coordinator().await;
    let mut agent = Agent::start().await;
    let report = ArtifactsUpload {
        name: "junit.xml".to_owned(),
        paths: vec!["r.xml".to_owned()],
        artifact_type: "junit".to_owned(),
        artifact_format: "gzip".to_owned(),
        ..ArtifactsUpload::default()
    };
    let plan = with_coordinator(&served, agent.plan(vec![script(&["echo report > r.xml"]), upload(report)]));
    agent.complete(&plan).await;
    let bytes = coordinator.job(JOB).unwrap().artifacts["junit.xml.gz"].clone();
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(&*bytes).read_to_string(&mut text).unwrap();
    assert_eq!(text, "report\n");

    coordinator.set_status(JOB, JobStatus::Canceled);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(1)));
    assert!(log.ends_with("ERROR: Job failed: uploading artifacts: forbidden\x1b[0;m\n"), "{log}");
}

/// If the upload succeeded, the archive would have an entry with another name, or one entry for two files.
#[tokio::test]
async fn name_that_is_invalid_in_a_zip_fails_the_upload() {
    let (coordinator, served) = coordinator().await;
    let mut agent = Agent::start().await;
    let archive =
        || ArtifactsUpload { paths: vec!["out".to_owned()], exclude: vec!["out/not/*".to_owned()], ..archive() };
    for create in
        [r"mkdir out; echo a > out/$(printf 'r\351')", r"rm -r out; mkdir out; ln -s $(printf 'r\350') out/link"]
    {
        let (log, result) =
            agent.complete(&with_coordinator(&served, agent.plan(vec![script(&[create]), upload(archive())]))).await;
        assert_eq!(failure(&result), ("script_failure".to_owned(), Some(1)), "{log}");
        assert!(log.contains("r\\xe"), "{log}");
        assert!(log.contains("rename the file, or exclude it with `exclude`"), "{log}");
    }
    assert!(coordinator.job(JOB).unwrap().artifacts.is_empty());

    let create = r"rm -r out; mkdir -p out/not; echo a > out/a; echo b > out/not/$(printf 'r\351')";
    let (log, result) =
        agent.complete(&with_coordinator(&served, agent.plan(vec![script(&[create]), upload(archive())]))).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
}

#[tokio::test]
async fn failed_artifact_download_fails_the_job_before_its_script() {
    let (_coordinator, served) = coordinator().await;
    let mut agent = Agent::start().await;
    let plan = agent.plan(vec![download("wrong"), script(&["echo never"]), after_script(&["echo never"])]);
    let (log, result) = agent.complete(&with_coordinator(&served, plan)).await;
    assert_eq!(failure(&result).0, "script_failure");
    assert!(
        log.contains("Downloading artifacts from coordinator... forbidden id=7") && !log.contains("never"),
        "{log}"
    );
}

#[tokio::test]
async fn upload_without_files_does_not_fail_the_job() {
    let (_coordinator, served) = coordinator().await;
    let mut agent = Agent::start().await;
    let plan = with_coordinator(&served, agent.plan(vec![script(&["true"]), upload(archive())]));
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success);
    assert!(log.contains("ERROR: No files to upload"), "{log}");
}

#[tokio::test]
async fn untracked_files_are_listed_despite_trace_lines_of_git() {
    let (_coordinator, served) = coordinator().await;
    let mut agent = Agent::start().await;
    let untracked = ArtifactsUpload { untracked: true, paths: Vec::new(), ..archive() };
    let create = "git init -q . && echo a > 'new file' && git add 'new file' && echo b > other";
    let plan = with_coordinator(&served, agent.plan(vec![script(&[create]), upload(untracked)]));
    agent.run("1-1", &plan, &[variable("GIT_TRACE", "1")]).await;
    let log = agent.log("1-1").await;
    assert!(log.contains("untracked: found 1 files\n") && log.contains("201 Created id=7"), "{log}");
    assert!(log.contains("trace: built-in: git ls-files -o -z"), "{log}");
}

/// One link leads to a directory of the project, the other link out of the project.
#[tokio::test]
async fn links_are_uploaded_as_links_without_their_targets() {
    let (coordinator, served) = coordinator().await;
    let mut agent = Agent::start().await;
    let outside = agent.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "TOPSECRET").unwrap();
    let create = format!("mkdir -p v1/sub; echo 1 > v1/sub/f; ln -sfn v1 cur; ln -sfn {} lnk", outside.display());
    let paths = ["v1", "cur/", "lnk"].map(str::to_owned).into();
    let links = ArtifactsUpload { name: "links".to_owned(), paths, ..archive() };
    let (log, _) =
        agent.complete(&with_coordinator(&served, agent.plan(vec![script(&[&create]), upload(links)]))).await;
    assert!(log.contains("cur/: found 1 matching") && log.contains("lnk: found 1 matching"), "{log}");
    let bytes = coordinator.job(JOB).unwrap().artifacts["links.zip"].clone();
    let names = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    let mut names: Vec<&str> = names.file_names().collect();
    names.sort_unstable();
    assert_eq!(names, ["cur", "lnk", "v1/", "v1/sub/", "v1/sub/f"]);

    std::fs::remove_dir_all(agent.project()).unwrap();
    let inspect = script(&["readlink cur; cat cur/sub/f"]);
    let (log, result) = agent.complete(&with_coordinator(&served, agent.plan(vec![download("t0ken"), inspect]))).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nv1\n1\n"), "{log}");
}

#[tokio::test]
async fn artifact_that_would_replace_a_directory_is_skipped_with_a_warning() {
    let (_coordinator, served) = coordinator().await;
    let mut agent = Agent::start().await;
    let paths = ["d1", "site", "other"].map(str::to_owned).into();
    let files = ArtifactsUpload { name: "files".to_owned(), paths, ..archive() };
    let create = script(&["echo file > d1; ln -s d1 site; echo other > other"]);
    agent.complete(&with_coordinator(&served, agent.plan(vec![create, upload(files)]))).await;
    for name in ["d1", "site"] {
        let path = agent.project().join(name);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("tracked"), "").unwrap();
    }
    let inspect = script(&["ls d1 site; cat other"]);
    let (log, result) = agent.complete(&with_coordinator(&served, agent.plan(vec![download("t0ken"), inspect]))).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    for text in ["WARNING: d1: skipped", "WARNING: site: skipped", "\nother\n"] {
        assert!(log.contains(text), "{text} in {log}");
    }
}
