//! Muster and gitlab-runner v16.6.0 read each other's caches and artifacts.

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

use crate::gitlab_runner::{clean_command, stock_runner};
use muster_tests::process::{create_repository, muster};

/// Command line of Muster or gitlab-runner.
struct Program(Vec<OsString>);

impl Program {
    fn stock(executable: &OsString) -> Self {
        Self(vec![executable.clone()])
    }

    fn muster() -> Self {
        Self(vec![muster().into(), "runner".into()])
    }

    /// Runs the command, which must succeed. Returns its standard error.
    fn run(&self, directory: &Path, arguments: &[&str]) -> String {
        let mut command: Command = clean_command(&self.0[0], directory);
        let output = command.args(&self.0[1..]).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        text
    }
}

/// Creates a repository with files of many kinds in the directory `out`.
fn create_files(directory: &Path) {
    create_repository(directory, &[("tracked", "x")]);
    let out = directory.join("out");
    std::fs::create_dir_all(out.join("empty")).unwrap();
    std::fs::create_dir_all(out.join("grüße")).unwrap();
    std::fs::write(out.join("text"), "some text\n").unwrap();
    std::fs::write(out.join("none"), "").unwrap();
    std::fs::write(out.join("grüße/ü b"), vec![7_u8; 300_000]).unwrap();
    std::fs::write(out.join("program"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(out.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let long = out.join("directory-with-a-long-name-".repeat(4));
    std::fs::create_dir(&long).unwrap();
    let long = long.join("file-with-a-long-name-".repeat(5));
    std::fs::write(&long, "long").unwrap();
    for (seconds, name) in (1_700_000_000..).zip(["text", "none", "grüße/ü b", "program", long.to_str().unwrap()]) {
        // Whole seconds: in tar archives, Go rounds fractions, and other programs truncate them.
        let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(out.join(name)).unwrap().set_modified(time).unwrap();
    }
    std::os::unix::fs::symlink("text", out.join("link")).unwrap();
}

/// Returns everything below a directory: names, kinds, modes, sizes, checksums and modification times.
fn listing(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
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
fn caches_of_either_program_are_read_by_the_other() {
    let Some(stock) = stock_runner() else { return };
    for (from, to) in [(Program::stock(&stock), Program::muster()), (Program::muster(), Program::stock(&stock))] {
        for (format, level) in [("zip", "default"), ("zip", "fastest"), ("tarzstd", "default"), ("tarzstd", "slowest")]
        {
            let directory = tempfile::tempdir().unwrap();
            let (source, target) = (directory.path().join("source"), directory.path().join("target"));
            create_files(&source);
            std::fs::create_dir(&target).unwrap();
            let compression = ["--compression-format", format, "--compression-level", level];
            let arguments = ["cache-archiver", "--file", "../cache/key/cache.zip", "--path", "out/**", "--untracked"];
            from.run(&source, &[&arguments[..], &compression].concat());
            to.run(&target, &["cache-extractor", "--file", "../cache/key/cache.zip"]);
            assert_eq!(listing(&target.join("out")), listing(&source.join("out")), "{format} {level}: {:?}", from.0);
            // The other program must detect that the cache is up to date.
            to.run(&source, &[&arguments[..], &compression].concat());
            let output = to.run(&source, &arguments);
            assert!(output.contains("Archive is up to date!"), "{output}");
        }
    }
}

async fn start_coordinator() -> (Arc<MemoryCoordinator>, Served) {
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
    let Some(stock) = stock_runner() else { return };
    for (from, to) in [(Program::stock(&stock), Program::muster()), (Program::muster(), Program::stock(&stock))] {
        for format in ["zip", "tarzstd"] {
            let (_coordinator, served) = start_coordinator().await;
            let directory = tempfile::tempdir().unwrap();
            let (source, target) = (directory.path().join("source"), directory.path().join("target"));
            create_files(&source);
            std::fs::create_dir(&target).unwrap();
            let job = ["--url", served.url.as_str(), "--token", "job-secret-1", "--id", "1"];
            let options = ["--path", "out", "--exclude", "out/none", "--artifact-format", format];
            from.run(&source, &[&["artifacts-uploader"][..], &job, &options].concat());
            to.run(&target, &[&["artifacts-downloader"][..], &job].concat());
            std::fs::remove_file(source.join("out/none")).unwrap();
            let without_none =
                |directory: &Path| listing(directory).into_iter().filter(|line| !line.starts_with("none"));
            assert!(without_none(&target.join("out")).eq(without_none(&source.join("out"))), "{format}: {:?}", from.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_and_raw_reports_are_equal_from_both_programs() {
    let Some(stock) = stock_runner() else { return };
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    create_files(&source);
    for (format, paths) in [("raw", &["out/text"][..]), ("gzip", &["out/text", "out/program"])] {
        let mut received = Vec::new();
        for program in [Program::stock(&stock), Program::muster()] {
            let (coordinator, served) = start_coordinator().await;
            let job = ["--url", served.url.as_str(), "--token", "job-secret-1", "--id", "1"];
            let options = ["--artifact-format", format, "--artifact-type", "junit", "--name", "report.xml"];
            let paths: Vec<&str> = paths.iter().flat_map(|path| ["--path", path]).collect();
            program.run(&source, &[&["artifacts-uploader"][..], &job, &options, &paths].concat());
            let job = coordinator.job(JobId(1)).unwrap();
            let (name, query) = job.uploads[0].clone();
            received.push((name.clone(), query, read_members(format, &job.artifacts[&name])));
        }
        assert_eq!(received[0], received[1], "{format}");
    }
}

/// Returns the headers and contents of the gzip members, which must be equal although the compressed bytes may differ.
/// A raw report is one member.
fn read_members(format: &str, bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
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
