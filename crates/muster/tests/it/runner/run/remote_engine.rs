//! Jobs with caches and artifacts at an engine on another machine, which is reached over TCP with TLS and over SSH.
//!
//! The manager runs in the network of the engine, so that manager and containers reach the coordinator at the same
//! address.

use muster_job::JobStatus;
use muster_test_prerequisites::RemoteEngine;
use rustix::process::Signal;
use serde_json::json;

use super::containers::IMAGE;
use super::harness::Harness;

/// Checks that a job gets the cache and the artifacts of an earlier job.
///
/// `connect` returns the keys of `[runners.docker]` for the connection.
async fn jobs_share_caches_and_artifacts(connect: impl Fn(&RemoteEngine, &Harness) -> String) {
    let Some(remote) = RemoteEngine::start() else { return };
    let engine = &remote.engine;
    if !engine.create_image(IMAGE, &["EXPOSE 8080/tcp"]) {
        return;
    }
    let harness = Harness::start_on(engine.listen(engine.gateway()).unwrap());
    let entry = harness.entry(0).replace("executor = \"shell\"", "executor = \"docker\"");
    let docker =
        format!("[runners.docker]\n{}pull_policy = \"never\"\nvolumes = [\"/cache\"]\n", connect(&remote, &harness));
    harness.configure(&format!("concurrent = 2\n{entry}{docker}"));
    let run = harness.run_in_network(engine);
    let server = "mkdir /www; echo served > /www/index.html; exec httpd -f -p 8080 -h /www";
    let cache = json!([{ "key": "k", "paths": ["kept"], "policy": "pull-push", "when": "on_success" }]);
    let more = json!({
        "image": { "name": IMAGE },
        "services": [{ "name": IMAGE, "alias": "web", "command": ["/bin/sh", "-c", server] }],
        "cache": cache,
        "artifacts": [{ "paths": ["out"], "when": "on_success", "artifact_type": "archive", "artifact_format": "zip" }]
    });
    let commands = ["mkdir kept out", "echo of the cache > kept/file", "wget -q -O out/file http://web:8080/"];
    harness.push_container_job(1, &commands, &more);
    let first = harness.wait_for_end(0, 1).await;
    assert_eq!(first.status, JobStatus::Success, "{}\n{}", first.text(), run.log());
    let size = first.artifacts["artifacts.zip"].len();
    let artifact = json!({ "id": 1, "name": "test", "token": "job-secret-1",
        "artifacts_file": { "filename": "artifacts.zip", "size": size } });
    let more = json!({
        "image": { "name": IMAGE }, "cache": cache, "dependencies": [artifact],
        "job_info": { "name": "test", "project_id": 1 }
    });
    harness.push_container_job(2, &["cat kept/file out/file"], &more);
    let second = harness.wait_for_end(0, 2).await;
    assert_eq!(second.status, JobStatus::Success, "{}\n{}", second.text(), run.log());
    assert!(second.text().contains("\nof the cache\nserved\n"), "{}", second.text());
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
    let lists = ["/containers/json?all=1", "/networks", "/volumes"].map(|path| engine.call("GET", path, &[]).1);
    let names = lists.iter().flat_map(|list| list.split('"'));
    let left: Vec<_> = names.filter(|name| name.trim_start_matches('/').starts_with("runner-")).collect();
    assert!(left.len() == 1 && left[0].contains("-cache-"), "only the volume with the cache must be kept: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_share_caches_and_artifacts_at_an_engine_over_tls() {
    jobs_share_caches_and_artifacts(|remote, _| {
        format!(
            "host = \"tcp://{}\"\ntls_cert_path = {:?}\ntls_verify = true\n",
            remote.tls_address(),
            remote.client_certificates()
        )
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_share_caches_and_artifacts_at_an_engine_over_ssh() {
    jobs_share_caches_and_artifacts(|remote, harness| {
        remote.create_ssh_client(&harness.home.path(""), remote.ssh_address());
        format!("host = \"{}\"\n", remote.ssh_url())
    })
    .await;
}
