//! Images: their entrypoints and users, and how a container is restricted.

use muster_agent_api::builtin::{DockerContainer, ImageSpec};
use muster_agent_api::result::Outcome;
use serde_json::{Value, json};

use super::harness::{Host, failure_of, job, script};

fn job_with_image(host: &Host, name: &str, instructions: &[&str]) -> DockerContainer {
    let image = format!("muster-test/{name}:1");
    assert!(host.docker.create_image(&image, instructions));
    let mut job = job(name);
    job.build.image = ImageSpec { name: image, pull_policies: vec!["never".to_owned()], ..ImageSpec::default() };
    job
}

#[tokio::test]
async fn missing_image_fails_the_job() {
    for host in Host::start_on_each_engine().await {
        let mut job = job("no-image");
        job.build.image.name = "no-such-image:1".to_owned();
        job.build.image.pull_policies = vec!["never".to_owned()];
        let (log, result) = host.run(&job, vec![script(&["echo never"])]).await;
        assert!(matches!(result.outcome, Outcome::Failed { .. }), "{log}");
        assert!(log.contains("no-such-image:1"), "{log}");
        assert_eq!(host.objects("no-image"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn output_and_exports_of_an_entrypoint_that_runs_its_arguments_reach_the_job() {
    for host in Host::start_on_each_engine().await {
        let entrypoint = r#"ENTRYPOINT ["/bin/sh","-c","echo from the entrypoint; echo its error >&2; export B=exported; exec \"$@\"","sh"]"#;
        let job = job_with_image(&host, "entrypoint", &[entrypoint]);
        let (log, result) = host.run(&job, vec![script(&["echo $B"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains("from the entrypoint\n") && log.contains("its error\n"), "{log}");
        assert!(log.contains("\nexported\n") && !log.contains("muster-agent:"), "{log}");
    }
}

#[tokio::test]
async fn entrypoint_that_is_a_shell_starts_the_agent() {
    for host in Host::start_on_each_engine().await {
        let job = job_with_image(&host, "shell", &[r#"ENTRYPOINT ["/bin/sh","-c"]"#]);
        let (log, result) = host.run(&job, vec![script(&["echo runs"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains("\nruns\n") || log.starts_with("runs\n"), "{log}");
    }
}

#[tokio::test]
async fn entrypoint_that_ignores_its_arguments_fails_with_advice_and_can_be_replaced() {
    for host in Host::start_on_each_engine().await {
        let mut job = job_with_image(&host, "stubborn", &[r#"ENTRYPOINT ["/bin/echo","usage: tool FILE"]"#]);
        let (log, result) = host.run(&job, vec![script(&["echo never"])]).await;
        assert_eq!(failure_of(&result).0, "runner_system_failure", "{log}");
        assert!(log.contains("usage: tool FILE /.muster/muster-agent agent container\n"), "{log}");
        assert!(log.contains("exited with code 0; set `image: entrypoint: [\"\"]` in the job"), "{log}");
        assert_eq!(host.objects("stubborn"), "", "no object of the job must be left");
        job.build.entrypoint = Some(vec![String::new()]);
        host.close_job().await;
        let (log, result) = host.run(&job, vec![script(&["echo runs"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
    }
}

#[tokio::test]
async fn image_with_another_user_and_a_read_only_root_directory_runs_steps() {
    for host in Host::start_on_each_engine().await {
        let mut job = job_with_image(&host, "user", &["USER user"]);
        job.build.host_config.insert("ReadonlyRootfs".to_owned(), json!(true));
        job.build.host_config.insert("Tmpfs".to_owned(), json!({"/tmp": ""}));
        job.directories = vec!["/builds".to_owned()];
        let (log, result) =
            host.run(&job, vec![script(&["id -u; touch a; ls; touch /etc/x || echo read-only; pwd"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        for expected in ["1000\n", "\na\n", "\nread-only\n", "\n/builds/group/project\n"] {
            assert!(log.contains(expected), "{expected:?} is missing in {log}");
        }
        assert_eq!(host.objects("user"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn user_of_the_job_replaces_the_user_of_the_image() {
    for host in Host::start_on_each_engine().await {
        let mut job = job_with_image(&host, "replaced", &["USER user"]);
        job.build.user = "4321:99".to_owned();
        let (log, result) = host.run(&job, vec![script(&["echo $(id -u):$(id -g)"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains("4321:99\n"), "{log}");
    }
}

#[tokio::test]
async fn rejected_setting_of_a_container_is_a_configuration_error() {
    // Not tested with Podman, which reports rejected settings as internal errors.
    let Some(host) = Host::start().await else { return };
    for (name, setting, value) in
        [("unknown", "CapAdd", json!(["NO_SUCH"])), ("malformed", "Memory", Value::from("much"))]
    {
        let mut job = job(name);
        job.build.host_config.insert(setting.to_owned(), value);
        let (log, result) = host.run(&job, vec![script(&["echo never"])]).await;
        assert_eq!(failure_of(&result).0, "runner_configuration_error", "{log}");
        host.close_job().await;
    }
}

#[tokio::test]
async fn exceeded_memory_limit_is_named_in_the_failure() {
    // Not tested with Podman: version 4 does not report that a container exceeded its memory limit.
    let Some(host) = Host::start().await else { return };
    let mut job = job("memory");
    let limit = 64 * 1024 * 1024;
    job.build.host_config.insert("Memory".to_owned(), json!(limit));
    job.build.host_config.insert("MemorySwap".to_owned(), json!(limit));
    let fill = "x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done";
    let (log, result) = host.run(&job, vec![script(&[fill])]).await;
    // Any failure is accepted, because the kernel may kill the agent in the container instead of the script.
    assert!(matches!(result.outcome, Outcome::Failed { .. }), "{log}");
    assert!(log.contains("exceeded its memory limit of 64 MiB"), "{log}");
}
