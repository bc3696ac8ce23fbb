//! Containers that are prepared before a job needs them.

use muster_agent_api::builtin::{DockerContainer, DockerVolume, PreparedPolicy};
use muster_agent_api::result::Outcome;

use super::harness::{Host, failure_of, job, script};
use crate::process::until;

const TAKEN: &str = "Using prepared container for image muster-test/";

/// Returns a job whose container can be prepared.
fn preparable(name: &str) -> DockerContainer {
    let policy = PreparedPolicy { max_containers: 1, min_uses: 1, window_ms: 3_600_000, max_idle_ms: 600_000 };
    let mut job = job(name);
    job.build.hostname = "prepared-host".to_owned();
    job.build.env = vec![format!("CI_JOB_NAME={name}")];
    job.labels = [("com.gitlab.gitlab-runner.job.id".to_owned(), name.to_owned())].into();
    job.prepared = Some(policy);
    job
}

impl Host {
    /// Returns the name prefix of the prepared containers, if there are any.
    fn prepared_prefix(&self) -> Option<String> {
        let record = std::fs::read(self.dir().join("spool/.prepared-containers")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        Some(format!("muster-prepared-{}-", record["owner"].as_str().unwrap()))
    }

    /// Waits for a prepared container. Returns its name.
    async fn until_prepared(&self) -> String {
        let waiting = async || {
            let prefix = self.prepared_prefix().ok_or("no container was prepared")?;
            let objects = self.objects(&prefix);
            let name = objects.split(' ').next().unwrap_or_default().trim_start_matches('/').to_owned();
            let log = self.agent_log();
            let is_waiting = log.lines().any(|line| line.contains("container prepared") && line.ends_with(&name));
            if !name.is_empty() && is_waiting { Ok(name) } else { Err(format!("none of {objects:?} waits: {log}")) }
        };
        until(waiting).await
    }

    /// Runs a job, which must pass, and returns its log.
    async fn pass(&self, job: &DockerContainer, command: &str) -> String {
        let (log, result) = self.run(job, vec![script(&[command])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        self.close_job().await;
        log
    }

    /// Returns the container's volumes, except the volume with the agent's executable.
    fn volumes_of(&self, container: &str) -> Vec<String> {
        let (_, found) = self.docker.call("GET", &format!("/containers/{container}/json"), &[]);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        let mounts = found["Mounts"].as_array().unwrap();
        let names = mounts.iter().filter_map(|mount| mount["Name"].as_str());
        names.filter(|name| !name.starts_with("muster-agent-")).map(str::to_owned).collect()
    }

    fn assert_no_volumes(&self, names: &[String]) {
        for name in names {
            assert_eq!(
                self.docker.call("GET", &format!("/volumes/{name}"), &[]).0,
                404,
                "volume {name} must be deleted"
            );
        }
    }
}

#[tokio::test]
async fn next_job_takes_the_prepared_container_which_is_removed_with_the_job() {
    for mut host in Host::start_on_each_engine().await {
        let log = host.pass(&preparable("ahead-a"), "touch /mark /builds/mark /cache/mark").await;
        assert!(!log.contains(TAKEN), "{log}");
        for name in ["ahead-b", "ahead-c"] {
            let waiting = host.until_prepared().await;
            let volumes = host.volumes_of(&waiting);
            assert_eq!(volumes.len(), 2, "there must be a volume for /builds, and one for the agent's files");
            let commands = "echo \"$A on $(hostname) in $PWD\"; ls /mark /builds/mark /cache/mark || true; touch /mark /builds/mark /cache/mark";
            let log = host.pass(&preparable(name), commands).await;
            assert!(log.contains(TAKEN), "{log}");
            assert!(log.contains("handed on on prepared-host in /builds/group/project\n"), "{log}");
            assert_eq!(log.matches("No such file or directory").count(), 3, "the container must be unused: {log}");
            assert_eq!(host.objects(&waiting), "", "the container must be removed with its job");
            host.assert_no_volumes(&volumes);
        }
        assert_eq!(host.objects("ahead"), "", "no object of the jobs must be left");
        host.until_prepared().await;
        let prefix = host.prepared_prefix().unwrap();
        host.terminate().await;
        // A busy engine may carry out the removal after the agent has ended.
        host.until_no_objects(&prefix).await;
    }
}

#[tokio::test]
async fn job_does_not_take_a_prepared_container_with_other_settings() {
    for host in Host::start_on_each_engine().await {
        host.pass(&preparable("other-a"), "true").await;
        host.until_prepared().await;
        let changes: [fn(&mut DockerContainer); 4] = [
            |job| job.build.user = "1000:1000".to_owned(),
            |job| job.prepared = None,
            |job| job.build.entrypoint = Some(["/bin/sh", "-c"].map(str::to_owned).to_vec()),
            |job| {
                job.volumes.push(DockerVolume {
                    source: "/tmp".to_owned(),
                    destination: "/host-tmp".to_owned(),
                    ..DockerVolume::default()
                });
            },
        ];
        for change in changes {
            let mut job = preparable("other-b");
            change(&mut job);
            let log = host.pass(&job, "echo runs").await;
            assert!(!log.contains(TAKEN), "{log}");
        }
        assert_eq!(host.objects("other"), "", "no object of the jobs must be left");
    }
}

#[tokio::test]
async fn broken_prepared_container_fails_no_job() {
    for host in Host::start_on_each_engine().await {
        host.pass(&preparable("broken-a"), "true").await;
        let calls = [("POST", "/kill"), ("POST", "/pause"), ("DELETE", "?force=1&v=1")];
        for (method, call) in calls {
            let waiting = host.until_prepared().await;
            let (status, answer) = host.docker.call(method, &format!("/containers/{waiting}{call}"), &[]);
            // An engine without cgroups cannot pause containers.
            assert!(status == 204 || call == "/pause" && answer.contains("cgroup"), "{status} {answer}");
            let log = host.pass(&preparable("broken-b"), "echo runs").await;
            assert!(log.contains("\nruns\n"), "{log}");
            host.until_no_objects(&waiting).await;
        }
        assert_eq!(host.objects("broken"), "", "no object of the jobs must be left");
    }
}

#[tokio::test]
async fn newer_image_with_the_same_name_replaces_the_prepared_container() {
    for host in Host::start_on_each_engine().await {
        let name = "muster-test/retagged:1";
        let create_image = |version: &str| host.docker.create_image(name, &[&format!("ENV VERSION={version}")]);
        assert!(create_image("old"));
        let mut job = preparable("retag-a");
        job.build.image.name = name.to_owned();
        host.pass(&job, "true").await;
        host.until_prepared().await;
        assert!(create_image("new"));
        job.build.name = "retag-b-build".to_owned();
        let log = host.pass(&job, "echo \"version is $VERSION\"").await;
        assert!(log.contains("version is new\n") && !log.contains(TAKEN), "{log}");
        assert_eq!(host.objects("retag"), "", "no object of the jobs must be left");
    }
}

#[tokio::test]
async fn next_agent_removes_the_prepared_containers_of_a_killed_agent() {
    for mut host in Host::start_on_each_engine().await {
        host.pass(&preparable("dead-a"), "true").await;
        let volumes = host.volumes_of(&host.until_prepared().await);
        let prefix = host.prepared_prefix().unwrap();
        host.restart().await;
        host.until_no_objects(&prefix).await;
        host.assert_no_volumes(&volumes);
        // A prepared container that a job has taken is also removed.
        host.pass(&preparable("dead-b"), "true").await;
        let volumes = host.volumes_of(&host.until_prepared().await);
        host.start_job(&preparable("dead-c"), vec![script(&["echo ready; sleep 600"])]).await;
        host.wait_for_log(TAKEN).await;
        host.wait_for_log("ready\n").await;
        host.restart().await;
        let (log, result) = host.finish().await;
        assert_eq!(failure_of(&result).0, "runner_system_failure", "{log}");
        host.until_no_objects("dead").await;
        host.until_no_objects(&prefix).await;
        host.assert_no_volumes(&volumes);
    }
}

#[tokio::test]
async fn unused_prepared_container_is_removed_after_its_maximum_idle_time() {
    for host in Host::start_on_each_engine().await {
        let mut job = preparable("idle-a");
        job.prepared = Some(PreparedPolicy { max_idle_ms: 4_000, ..job.prepared.unwrap() });
        host.pass(&job, "true").await;
        host.until_prepared().await;
        host.until_no_objects(&host.prepared_prefix().unwrap()).await;
        assert_eq!(host.objects("idle"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn job_canceled_while_it_takes_a_container_leaves_nothing() {
    for host in Host::start_on_each_engine().await {
        host.pass(&preparable("stop-a"), "true").await;
        for _ in 0..3 {
            host.until_prepared().await;
            host.start_job(&preparable("stop-b"), vec![script(&["sleep 600"])]).await;
            host.cancel().await;
            let (log, result) = host.finish().await;
            assert_eq!(failure_of(&result).0, "job_canceled", "{log}");
            assert_eq!(host.objects("stop-"), "", "no object of the job must be left");
            host.close_job().await;
        }
    }
}

#[tokio::test]
async fn engine_restart_with_a_prepared_container_fails_no_job_and_leaves_nothing() {
    let Some(mut host) = Host::start_on_isolated_engine().await else { return };
    host.pass(&preparable("engine-a"), "true").await;
    host.until_prepared().await;
    assert!(host.docker.crash());
    let answers = async || host.docker.try_call("GET", "/version", &[]).map_err(|error| error.to_string());
    until(answers).await;
    let log = host.pass(&preparable("engine-b"), "echo runs").await;
    assert!(log.contains("\nruns\n"), "{log}");
    assert_eq!(host.objects("engine"), "", "no object of the jobs must be left");
    let prefix = host.prepared_prefix().unwrap();
    host.terminate().await;
    host.until_no_objects(&prefix).await;
}
