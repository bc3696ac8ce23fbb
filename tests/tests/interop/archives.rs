//! Muster's commands read the archives of gitlab-runner v16.6.0, and gitlab-runner reads Muster's: caches, and artifacts through a
//! coordinator.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use muster_runner_api::client::{Client, Progress};
use muster_runner_api::test_support::{MemoryCoordinator, RUNNER_TOKEN, Served, serve};
use muster_runner_api::wire::JobRequest;
use serde_json::json;

use crate::gitlab_runner::{clean, stock_runner};
use muster_tests::process::{muster, repository};

/// Program with the commands of gitlab-runner: Muster or gitlab-runner itself.
struct Program(Vec<OsString>);

impl Program {
    fn stock(peer: &OsString) -> Self {
        Self(vec![peer.clone()])
    }

    fn ours() -> Self {
        Self(vec![muster().into(), "runner".into()])
    }

    /// Runs a command in a directory. The command must succeed.
    fn run(&self, folder: &Path, arguments: &[&str]) -> String {
        let mut command: Command = clean(&self.0[0], folder);
        let output = command.args(&self.0[1..]).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        text
    }
}

/// Creates files of many kinds below `out`.
fn fill(folder: &Path) {
    repository(folder, &[("tracked", "x")]);
    let out = folder.join("out");
    std::fs::create_dir_all(out.join("empty")).unwrap();
    std::fs::create_dir_all(out.join("grüße")).unwrap();
    std::fs::write(out.join("text"), "some text\n").unwrap();
    std::fs::write(out.join("none"), "").unwrap();
    std::fs::write(out.join("grüße/ü b"), vec![7_u8; 300_000]).unwrap();
    std::fs::write(out.join("program"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(out.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let long = out.join("a-directory-of-a-name-that-is-long".repeat(3));
    std::fs::create_dir(&long).unwrap();
    let long = long.join("and-a-file-of-a-name-that-is-long".repeat(3));
    std::fs::write(&long, "long").unwrap();
    for (seconds, name) in (1_700_000_000..).zip(["text", "none", "grüße/ü b", "program", long.to_str().unwrap()]) {
        // Modification times are whole seconds: in a tar archive, Go rounds them and other programs truncate them.
        let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(out.join(name)).unwrap().set_modified(time).unwrap();
    }
    std::os::unix::fs::symlink("text", out.join("link")).unwrap();
}

/// Returns the sorted names of everything below a directory, with kinds, modes and contents.
fn listing(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let metadata = path.symlink_metadata().unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if metadata.is_symlink() {
            found.push(format!("{name} -> {}", std::fs::read_link(&path).unwrap().display()));
            continue;
        }
        let mode = metadata.permissions().mode() & 0o777;
        if metadata.is_dir() {
            found.push(format!("{name}/ {mode:o}"));
            found.extend(listing(&path).into_iter().map(|line| format!("{name}/{line}")));
        } else {
            let content = std::fs::read(&path).unwrap();
            let seconds = metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            found.push(format!("{name} {mode:o} {} {:x} {seconds}", content.len(), crc32fast::hash(&content)));
        }
    }
    found
}

#[test]
fn a_cache_of_either_program_is_read_by_the_other() {
    let Some(peer) = stock_runner() else { return };
    for (from, to) in [(Program::stock(&peer), Program::ours()), (Program::ours(), Program::stock(&peer))] {
        for (format, level) in [("zip", "default"), ("zip", "fastest"), ("tarzstd", "default"), ("tarzstd", "slowest")]
        {
            let place = tempfile::tempdir().unwrap();
            let (source, target) = (place.path().join("source"), place.path().join("target"));
            fill(&source);
            std::fs::create_dir(&target).unwrap();
            let shape = ["--compression-format", format, "--compression-level", level];
            let own = ["cache-archiver", "--file", "../cache/key/cache.zip", "--path", "out/**", "--untracked"];
            from.run(&source, &[&own[..], &shape].concat());
            to.run(&target, &["cache-extractor", "--file", "../cache/key/cache.zip"]);
            assert_eq!(listing(&target.join("out")), listing(&source.join("out")), "{format} {level}: {:?}", from.0);
            // The other program must recognize that nothing has changed.
            to.run(&source, &[&own[..], &shape].concat());
            let again = to.run(&source, &own);
            assert!(again.contains("Archive is up to date!"), "{again}");
        }
    }
}

/// Starts a coordinator whose job 1 is running.
async fn coordinator() -> (Arc<MemoryCoordinator>, Served) {
    let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_millis(50)));
    let served = serve(coordinator.clone()).await.unwrap();
    let payload = json!({ "id": 1, "token": "job-secret-1", "job_info": { "name": "test", "project_id": 1 } });
    coordinator.enqueue(serde_json::from_value(payload).unwrap());
    let request = JobRequest { token: RUNNER_TOKEN.to_owned(), ..JobRequest::default() };
    assert!(Client::new(&served.url).unwrap().request_job(&request, &Progress::default()).await.unwrap().job.is_some());
    (coordinator, served)
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_of_either_program_are_read_by_the_other() {
    let Some(peer) = stock_runner() else { return };
    for (from, to) in [(Program::stock(&peer), Program::ours()), (Program::ours(), Program::stock(&peer))] {
        for format in ["zip", "tarzstd"] {
            let (_coordinator, served) = coordinator().await;
            let place = tempfile::tempdir().unwrap();
            let (source, target) = (place.path().join("source"), place.path().join("target"));
            fill(&source);
            std::fs::create_dir(&target).unwrap();
            let job = ["--url", served.url.as_str(), "--token", "job-secret-1", "--id", "1"];
            let what = ["--path", "out", "--exclude", "out/none", "--artifact-format", format];
            from.run(&source, &[&["artifacts-uploader"][..], &job, &what].concat());
            to.run(&target, &[&["artifacts-downloader"][..], &job].concat());
            std::fs::remove_file(source.join("out/none")).unwrap();
            let times = |folder: &Path| listing(folder).into_iter().filter(|line| !line.starts_with("none"));
            assert!(times(&target.join("out")).eq(times(&source.join("out"))), "{format}: {:?}", from.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_as_gzip_and_raw_are_the_same_bytes_from_both_programs() {
    let Some(peer) = stock_runner() else { return };
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    fill(&source);
    for (format, paths) in [("raw", &["out/text"][..]), ("gzip", &["out/text", "out/program"])] {
        let mut received = Vec::new();
        for program in [Program::stock(&peer), Program::ours()] {
            let (coordinator, served) = coordinator().await;
            let job = ["--url", served.url.as_str(), "--token", "job-secret-1", "--id", "1"];
            let kind = ["--artifact-format", format, "--artifact-type", "junit", "--name", "report.xml"];
            let paths: Vec<&str> = paths.iter().flat_map(|path| ["--path", path]).collect();
            program.run(&source, &[&["artifacts-uploader"][..], &job, &kind, &paths].concat());
            let job = coordinator.job(JobId(1)).unwrap();
            let (name, query) = job.uploads[0].clone();
            received.push((name.clone(), query, unpacked(format, &job.artifacts[&name])));
        }
        assert_eq!(received[0], received[1], "{format}");
    }
}

/// Returns names and contents of the gzip members. The compressed bytes may differ.
fn unpacked(format: &str, bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    use std::io::{BufRead, BufReader, Read};
    if format == "raw" {
        return vec![(String::new(), bytes.to_vec())];
    }
    let mut input = BufReader::new(bytes);
    let mut members = Vec::new();
    while !input.fill_buf().unwrap().is_empty() {
        let mut member = flate2::bufread::GzDecoder::new(&mut input);
        let mut content = Vec::new();
        member.read_to_end(&mut content).unwrap();
        let header = member.header().unwrap();
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        members.push((format!("{} {} {}", text(header.filename()), text(header.comment()), header.mtime()), content));
    }
    members
}
