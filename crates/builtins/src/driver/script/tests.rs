//! Tests of generated commands in real shells. Tests in `crates/muster` run whole scripts.

use std::io::Write as _;
use std::process::{Command, Stdio};

use muster_agent_api::builtin::{ArtifactsUpload, CacheEntry, CacheObject};
use muster_agent_api::plan::ArtifactEndpoint;
use muster_job::Secret;

use super::*;

/// A path that needs quotes.
const PROJECT: &str = "/b/it's a $(project)";

fn body(push: impl FnOnce(&mut Body, &Target<'_>)) -> String {
    let mut body = Body::default();
    push(&mut body, &Target { project_dir: Path::new(PROJECT), temp_dir: Path::new("/b/it's a $(project).tmp") });
    body.text
}

/// Returns the standard output of a shell that runs a script.
fn shell(arguments: &[&str], script: &str) -> String {
    let mut child = Command::new(arguments[0]);
    let child = child.args(&arguments[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}\n{script}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn checkout(strategy: &str, submodules: &str) -> Checkout {
    Checkout {
        strategy: strategy.to_owned(),
        submodules: submodules.to_owned(),
        repo_url: "https://gitlab-ci-token:s3cret@gitlab.example/group/project.git".to_owned(),
        sha: "0123456789abcdef".to_owned(),
        refspecs: vec!["+refs/heads/*:refs/remotes/origin/*".to_owned()],
        clean_flags: Some(vec!["-ffdx".to_owned(), "-e".to_owned(), "*.o".to_owned()]),
        fetch_flags: vec!["--prune".to_owned()],
        submodule_paths: vec![":(exclude)a b".to_owned()],
        submodule_flags: vec!["--remote".to_owned()],
        checkout: true,
        safe_directory: true,
        clean_config: true,
        credential_helper: true,
        pre_script: vec!["echo before".to_owned()],
        post_script: vec!["echo after\necho twice".to_owned()],
        ..Checkout::default()
    }
}

#[test]
fn checkouts_and_cleanups_are_valid_in_sh_and_bash() {
    let mut texts = Vec::new();
    for strategy in ["fetch", "clone", "none", "empty"] {
        for (submodules, depth) in [("none", 0), ("normal", 1), ("recursive", 20)] {
            let own = Checkout { depth, submodule_depth: depth, ..checkout(strategy, submodules) };
            texts.push(body(|body, target| sources::push(body, target, &own).unwrap()));
            let cleanup = Cleanup {
                checkout: strategy.to_owned(),
                clean_flags: own.clean_flags.clone(),
                submodules: submodules.to_owned(),
                clean_config: true,
            };
            texts.push(body(|body, target| cleanup::push(body, target, &cleanup, &[])));
        }
    }
    texts.push(body(sources::clear));
    for text in texts {
        shell(&["sh", "-n"], &text);
        shell(&["bash", "-n"], &text);
        let without_quotes = text.replace(r"it'\''s a $(project)", "");
        assert!(!without_quotes.contains("$(project)"), "each path must be quoted: {text}");
    }
    let mut invalid = Body::default();
    let target = Target { project_dir: Path::new("/p"), temp_dir: Path::new("/p.tmp") };
    sources::push(&mut invalid, &target, &checkout("fetch", "some")).unwrap_err();
}

/// A program `gitlab-runner` that prints its arguments and credentials.
const RUNNER: &str =
    "#!/bin/sh\nif [ \"$1\" != --version ]; then printf '<%s>' \"$@\"; echo \" $CI_JOB_ID $CI_JOB_TOKEN\"; fi\n";

/// Runs commands in a project directory. `PATH` contains only `gitlab-runner` with the content `runner`, or no program.
fn run_in_project(shell_name: &str, runner: Option<&str>, push: impl FnOnce(&mut Body, &Target<'_>)) -> String {
    let dir = tempfile::tempdir().unwrap();
    if let Some(text) = runner {
        let program = dir.path().join("gitlab-runner");
        muster_test_prerequisites::create_program(&program, text);
    }
    let mut body = Body::default();
    push(&mut body, &Target { project_dir: dir.path(), temp_dir: &dir.path().join("tmp") });
    shell(&[shell_name, "-e", "-s"], &format!("PATH={}\n{}", dir.path().display(), body.text))
}

#[test]
fn transfers_pass_patterns_unexpanded_and_tokens_in_the_environment() {
    let (url, token) = ("https://g.example".to_owned(), "t'oken".to_owned());
    let endpoint = ArtifactEndpoint { url, job_id: 7, token, ..ArtifactEndpoint::default() };
    let artifact = ArtifactsUpload {
        name: "out $CI_JOB_NAME".to_owned(),
        paths: vec!["*".to_owned(), "a b/**".to_owned()],
        exclude: vec!["$HOME".to_owned()],
        untracked: true,
        artifact_type: "archive".to_owned(),
        ..ArtifactsUpload::default()
    };
    let uploads = ArtifactsUploadList { artifacts: vec![artifact] };
    for name in ["sh", "bash"] {
        let output =
            run_in_project(name, Some(RUNNER), |body, target| artifacts::upload(body, target, &endpoint, &uploads));
        let wanted = "<artifacts-uploader><--path><*><--path><a b/**><--exclude><$HOME><--artifact-type><archive>\
                      <--timeout><3600000ms><--response-header-timeout><600000ms><--name><out $CI_JOB_NAME><--untracked> 7 t'oken\n";
        assert!(output.contains(wanted), "{output}");
    }

    let object = CacheObject { download: Secret::new("https://s/get?sig=1"), ..CacheObject::default() };
    let cache = CacheEntry {
        key: "main".to_owned(),
        fallback_keys: vec!["other".to_owned()],
        cache_dir: "/c".to_owned(),
        objects: [("main".to_owned(), object)].into(),
        ..CacheEntry::default()
    };
    let caches = CacheRestore { caches: vec![cache] };
    let output = run_in_project("sh", Some(RUNNER), |body, target| caches::restore(body, target, &caches));
    assert!(output.contains("<cache-extractor><--file></c/main/cache.zip><--url><https://s/get?sig=1>"), "{output}");
    assert!(!output.contains("other"), "a fallback key must be tried only if the key has no cache: {output}");
}

#[test]
fn environment_without_gitlab_runner_skips_transfers_with_a_warning() {
    let (uploads, endpoint) =
        (ArtifactsUploadList { artifacts: vec![ArtifactsUpload::default()] }, ArtifactEndpoint::default());
    let output = run_in_project("sh", None, |body, target| artifacts::upload(body, target, &endpoint, &uploads));
    assert!(output.contains("Missing gitlab-runner. Uploading artifacts is disabled."), "{output}");
}
