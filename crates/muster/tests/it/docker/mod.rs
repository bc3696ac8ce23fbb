//! Steps in containers of real engines (Docker Engine and Podman), with an agent that runs as a separate process.

mod ends;
mod harness;
mod images;
mod link;
mod prepared;
mod remote;
mod services;
mod shells;

use muster_agent_api::builtin::DockerVolume;
use muster_agent_api::container::MIRROR_DIR;
use muster_agent_api::result::Outcome;

use harness::{Host, failure_of, job, script};

#[tokio::test]
async fn steps_run_in_a_container_that_is_removed_afterwards() {
    for host in Host::start_on_each_engine().await {
        let job = job("first");
        let commands = "echo \"$A on $(hostname) in $PWD\"; ls /.muster; echo 'a log line' >&2; tr '\\0' '\\n' < /proc/1/cmdline; env";
        let (log, result) = host.run(&job, vec![script(&[commands])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        // The variable `A` of the job has the value `handed on`.
        assert!(log.contains("handed on on first-host in /builds/group/project\n"), "{log}");
        assert!(log.contains("\nmuster-agent\na log line\n"), "{log}");
        assert!(log.contains("/.muster/muster-agent\nagent\ncontainer\n"), "{log}");
        assert!(!log.contains("MUSTER_AGENT_MODE"), "the job must not inherit variables of the agent: {log}");
        assert_eq!(host.objects("first"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn exit_code_of_a_script_in_a_container_is_the_exit_code_of_the_job() {
    for host in Host::start_on_each_engine().await {
        let (log, result) = host
            .run(&job("exits"), vec![script(&["i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done", "exit 7"])])
            .await;
        assert_eq!(failure_of(&result), ("script_failure".to_owned(), Some(7)), "{log}");
        let used = result.used.unwrap();
        assert!(
            used.cpu_ms.unwrap() >= 10 && used.memory_bytes.unwrap() > 0,
            "usage in the container must count: {used:?}"
        );
        assert_eq!(host.objects("exits"), "", "no object of the job must be left");
    }
}

/// A view is the directory through which a job reads a Git mirror of this machine.
#[tokio::test]
async fn container_starts_without_the_view_of_a_mirror_that_could_not_be_prepared() {
    for host in Host::start_on_each_engine().await {
        let mut job = job("viewless");
        let view = host.dir().join("mirrors/views/1/repository");
        job.volumes.push(DockerVolume {
            source: view.display().to_string(),
            destination: MIRROR_DIR.to_owned(),
            mode: "ro".to_owned(),
            ..DockerVolume::default()
        });
        let (log, result) = host.run(&job, vec![script(&["test ! -e /.muster-git-mirror", "echo runs"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(!view.exists(), "the engine must not create a directory that no step removes");
        assert_eq!(host.objects("viewless"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn volumes_are_kept_for_the_next_job_unless_they_are_temporary() {
    for host in Host::start_on_each_engine().await {
        let mut job = job("vols");
        let mut kept = job.volumes.first().unwrap().clone();
        (kept.source, kept.destination, kept.temporary) = ("kept-cache".to_owned(), "/cache".to_owned(), false);
        job.volumes.push(kept);
        let (log, result) =
            host.run(&job, vec![script(&["touch /cache/file /builds/file; ls -ld /cache /builds"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert_eq!(log.matches("drwxrwxrwx").count(), 2, "{log}");
        host.close_job().await;
        let (log, result) = host.run(&job, vec![script(&["ls /cache /builds"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert_eq!(log.matches("file\n").count(), 1, "only the file in /cache must be left: {log}");
        assert_eq!(host.objects("vols"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn jobs_with_different_users_share_the_directories_of_a_project() {
    for host in Host::start_on_each_engine().await {
        let mut job = job("users");
        job.volumes[0].temporary = false;
        job.directories = ["/builds", "/builds/group", "/builds/group/project"].map(str::to_owned).to_vec();
        let work = "set -e; echo \"user $(id -u)\"; rm -rf old; mkdir -p old/deep; echo x > old/deep/file; chmod 700 old; \
                    ln -sf /etc/passwd link; ln -sfn /etc directory; touch ../sibling-$(id -u)";
        for user in ["", "1000:1000", "0", "4321", "1000:1000"] {
            job.build.user = user.to_owned();
            let inspect = "ls -nd /etc /etc/passwd | tr -s ' ' | cut -d' ' -f3 | sort -u";
            let (log, result) = host.run(&job, vec![script(&[work, inspect])]).await;
            assert_eq!(result.outcome, Outcome::Success, "{user}: {log}");
            let id = user.split(':').next().filter(|id| !id.is_empty()).unwrap_or("0");
            assert!(log.contains(&format!("\nuser {id}\n")), "{log}");
            assert!(log.contains("\n0\n"), "links must not be followed: {log}");
            assert!(!log.contains("failed to give"), "{log}");
            host.close_job().await;
        }
        let (status, answer) = host.docker.call("DELETE", "/volumes/users-builds", &[]);
        assert_eq!(status, 204, "{answer}");
        assert_eq!(host.objects("users"), "", "no object of the job must be left");
    }
}
