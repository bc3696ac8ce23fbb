//! Services beside the build container, on the default bridge and on other networks.

use muster_agent_api::builtin::{ContainerSpec, DockerContainer, DockerNetwork, ImageSpec, ServiceContainer};
use muster_agent_api::plan::{Call, Step};
use muster_agent_api::result::{JobResult, Outcome, StepStatus};

use super::harness::{Host, IMAGE, failure_of, job, script};

/// Commands that serve a file on port 8080.
pub(super) const SERVER: &str =
    "mkdir /www; echo served > /www/index.html; echo serving; exec httpd -f -p 8080 -h /www";
const SERVICE_IMAGE: &str = "muster-test/service:1";

/// Returns a job, and a service that runs `command`. [`run`] adds the service to the job.
pub(super) fn job_and_service(host: &Host, name: &str, command: &str) -> (DockerContainer, ServiceContainer) {
    assert!(host.docker.create_image(SERVICE_IMAGE, &["EXPOSE 8080/tcp", "EXPOSE 53/udp"]));
    let image =
        ImageSpec { name: SERVICE_IMAGE.to_owned(), pull_policies: vec!["never".to_owned()], ..ImageSpec::default() };
    let container = ContainerSpec {
        name: format!("{name}-service-0"),
        image,
        command: Some(["/bin/sh", "-c", command].map(str::to_owned).to_vec()),
        ..ContainerSpec::default()
    };
    let aliases = vec!["web".to_owned(), "muster-test-service".to_owned()];
    let service = ServiceContainer { title: SERVICE_IMAGE.to_owned(), container, aliases };
    (DockerContainer { service_timeout_ms: 30_000, ..job(name) }, service)
}

fn step(service: &ServiceContainer) -> Step {
    Step::new(&format!("service {}", service.title), "", Call::builtin(service))
}

pub(super) async fn run(
    host: &Host,
    (job, service): &(DockerContainer, ServiceContainer),
    commands: &[&str],
) -> (String, JobResult) {
    let job = DockerContainer { services: vec![service.container.name.clone()], ..job.clone() };
    host.run_with_services(&job, vec![step(service)], vec![script(commands)]).await
}

#[tokio::test]
async fn name_of_a_service_cannot_address_another_container() {
    let Some(host) = Host::start().await else { return };
    let body = format!(r#"{{"Image":"{IMAGE}","Cmd":["/bin/true"]}}"#);
    let created = host.docker.call("POST", "/containers/create?name=bystander", body.as_bytes());
    assert_eq!(created.0, 201, "{}", created.1);
    let (job, mut service) = job_and_service(&host, "hostile", SERVER);
    service.container.name = r"hostile\..\bystander?-0".to_owned();
    let (log, result) = run(&host, &(job.clone(), service.clone()), &["echo never"]).await;
    assert_eq!(failure_of(&result).0, "runner_configuration_error", "{log}");
    host.close_job().await;
    // This job does not list the service, so its cleanup would not remove the service's container.
    let (log, result) = host.run_with_services(&job, vec![step(&service)], vec![script(&["echo never"])]).await;
    assert_eq!(failure_of(&result).0, "runner_configuration_error", "{log}");
    assert!(log.contains("is not listed in `services` of builtin://docker/container"), "{log}");
    assert_eq!(
        host.docker.call("DELETE", "/containers/bystander", &[]).0,
        204,
        "the job must not remove the container"
    );
}

#[tokio::test]
async fn service_is_a_step_with_its_own_policy_and_result() {
    let Some(host) = Host::start().await else { return };
    let (mut job, web) = job_and_service(&host, "policies", SERVER);
    let mut missing = ServiceContainer { title: "missing:1".to_owned(), ..web.clone() };
    (missing.container.name, missing.container.image.name) = ("policies-missing".to_owned(), "missing:1".to_owned());
    job.services = vec![missing.container.name.clone(), web.container.name.clone()];
    let mut optional = step(&missing);
    optional.policy.allow_failure = true;
    let (log, result) = host.run_with_services(&job, vec![optional, step(&web)], vec![script(&[FETCH])]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("WARNING: service missing:1 failed, but the job continues: failed to pull image"), "{log}");
    assert!(log.contains("served\nserved\n"), "{log}");
    let states = |result: &JobResult| -> Vec<_> {
        result.tree.steps[0].steps.iter().map(|step| (step.name.clone(), step.status)).collect()
    };
    let names = ["service missing:1", "service muster-test/service:1", "step_script"].map(str::to_owned);
    let expected = [StepStatus::Failure, StepStatus::Success, StepStatus::Success];
    assert_eq!(states(&result), names.clone().into_iter().zip(expected).collect::<Vec<_>>());
    host.close_job().await;
    let required = vec![step(&missing), step(&web)];
    let (log, result) = host.run_with_services(&job, required, vec![script(&["echo never"])]).await;
    assert_eq!(failure_of(&result).0, "runner_configuration_error", "{log}");
    assert!(!log.contains("Starting service muster-test/service:1"), "{log}");
    let expected = [StepStatus::Failure, StepStatus::Skipped];
    assert_eq!(states(&result), names.into_iter().zip(expected).collect::<Vec<_>>());
    host.until_no_objects("policies").await;
}

#[tokio::test]
async fn containers_are_created_again_if_a_service_cannot_start() {
    let Some(host) = Host::start().await else { return };
    let mut job = job_and_service(&host, "broken", SERVER);
    let device = serde_json::json!({ "PathOnHost": "/dev/does-not-exist", "PathInContainer": "/dev/x" });
    job.1.container.host_config.insert("Devices".to_owned(), serde_json::json!([device]));
    let (log, result) = run(&host, &job, &["echo never"]).await;
    assert_eq!(failure_of(&result).0, "runner_system_failure", "{log}");
    let failures = log.matches("failed to start the service muster-test/service:1").count();
    assert_eq!((log.matches("Preparation failed: ").count(), failures), (1, 2), "{log}");
    assert_eq!(log.matches("Starting service muster-test/service:1...").count(), 2, "{log}");
    let nodes = &result.tree.steps[0].steps;
    assert_eq!((nodes.len(), nodes[0].status), (1, StepStatus::Failure), "{nodes:?}");
    host.until_no_objects("broken").await;
}

#[tokio::test]
async fn service_cannot_start_as_a_step_in_the_container() {
    let Some(host) = Host::start().await else { return };
    let (job, service) = job_and_service(&host, "late", SERVER);
    let (log, result) = host.run(&job, vec![step(&service)]).await;
    assert_eq!(failure_of(&result).0, "runner_configuration_error", "{log}");
    assert!(log.contains("can only start beside the step builtin://docker/container"), "{log}");
}

const FETCH: &str = "wget -q -O - http://web:8080/; wget -q -O - http://muster-test-service:8080/";

#[tokio::test]
async fn service_is_reachable_by_its_aliases_on_every_kind_of_network() {
    let Some(host) = Host::start().await else { return };
    let per_job = DockerNetwork::PerJob { name: "net-per-job".to_owned(), ipv6: false, mtu: 1400 };
    let shared = br#"{"Name": "shared"}"#;
    assert_eq!(host.docker.call("POST", "/networks/create", shared).0, 201);
    for network in [DockerNetwork::Bridge, per_job, DockerNetwork::Mode("shared".to_owned())] {
        let mut job = job_and_service(&host, "net", SERVER);
        job.0.network = network;
        let (log, result) = run(&host, &job, &[FETCH]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains("Starting service muster-test/service:1..."), "{log}");
        assert!(log.contains("Waiting for services to be up and running (timeout 30 seconds)..."), "{log}");
        assert!(log.ends_with("served\nserved\n\u{1b}[32;1mJob succeeded\u{1b}[0;m\n"), "{log}");
        assert!(!log.contains("WARNING"), "{log}");
        let steps: Vec<_> = result.tree.steps[0].steps.iter().map(|step| (step.name.as_str(), step.status)).collect();
        assert_eq!(steps[0], ("service muster-test/service:1", StepStatus::Success), "{steps:?}");
        assert_eq!(host.objects("net-"), "", "no object of the job must be left");
        host.close_job().await;
    }
}

#[tokio::test]
async fn network_traffic_counts_for_its_step_unless_the_network_is_shared() {
    let Some(host) = Host::start().await else { return };
    let server = "mkdir /www; head -c 1000000 /dev/zero > /www/big; echo serving; exec httpd -f -p 8080 -h /www";
    let (mut job, service) = job_and_service(&host, "traffic", server);
    job.services = vec![service.container.name.clone()];
    let steps = || {
        let mut steps = [script(&["wget -q -O /dev/null http://web:8080/big"]), script(&["true"])];
        steps[0].name = "step_download".to_owned();
        steps.to_vec()
    };
    let (log, result) = host.run_with_services(&job, vec![step(&service)], steps()).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let nodes = &result.tree.steps[0].steps;
    let used = |name: &str| nodes.iter().find(|node| node.name == name).and_then(|node| node.used).unwrap();
    let (download, idle) = (used("step_download"), used("step_script"));
    assert!((1_000_000..2_000_000).contains(&download.received_bytes.unwrap()), "{download:?}");
    assert!(download.sent_bytes > Some(0) && download.sent_bytes < Some(500_000), "{download:?}");
    assert!(idle.received_bytes < Some(100_000) && idle.received_bytes.is_some(), "{idle:?}");
    let of_job = result.used.unwrap();
    assert!(of_job.received_bytes >= download.received_bytes, "{of_job:?}");
    assert!(result.tree.steps[0].used.unwrap().received_bytes >= download.received_bytes, "{:?}", result.tree);
    host.close_job().await;
    for (mode, received) in [("none", Some(0)), ("host", None)] {
        let job = DockerContainer { network: DockerNetwork::Mode(mode.to_owned()), ..super::harness::job("traffic") };
        let (log, result) = host.run(&job, vec![script(&["true"])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{mode}: {log}");
        assert_eq!(result.used.unwrap().received_bytes, received, "{mode}");
        host.close_job().await;
    }
}

#[tokio::test]
async fn service_that_exits_is_a_warning_with_its_output() {
    for host in Host::start_on_each_engine().await {
        let job = job_and_service(&host, "exiting", "echo no database here; exit 3");
        let (log, result) = run(&host, &job, &["echo runs"]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(
            log.contains("*** WARNING:\u{1b}[0;m Service exiting-service-0 probably didn't start properly.\n"),
            "{log}"
        );
        assert!(log.contains("Health check error:\nservice \"exiting-service-0\" exited with code 3\n"), "{log}");
        assert!(log.contains("Service container logs:\nno database here\n"), "{log}");
        let service = &result.tree.steps[0].steps[0];
        assert_eq!((service.name.as_str(), service.status), ("service muster-test/service:1", StepStatus::Failure));
        assert_eq!(service.exit_code, Some(3));
        assert_eq!(service.message, "it exited with code 3; the end of its output: no database here");
        host.until_no_objects("exiting").await;
    }
}

#[tokio::test]
async fn warning_has_the_end_of_a_long_output_and_a_note_about_the_rest() {
    for host in Host::start_on_each_engine().await {
        let print = "i=0; while [ $i -lt 3000 ]; do echo \"line $i of a service that prints much before it fails\"; i=$((i + 1)); done; \
                     echo the reason; exit 3";
        let (log, result) = run(&host, &job_and_service(&host, "talkative", print), &["echo runs"]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains("prints much before it fails\nthe reason\n\n\u{1b}[0;33m*********"), "{log}");
        let notice = "Service container logs:\n[earlier output is left out: only the last 64 KiB or 1000 lines are shown]\nline ";
        assert!(log.contains(notice) && !log.contains("\nline 0 of"), "{log}");
        host.until_no_objects("talkative").await;
    }
}

/// Commands that print which addresses have a route that rejects packets, and try to remove these routes.
const SHOW_BLOCK: &str = "set +e; grep -q '070200C0.*0205' /proc/net/route && echo IPv4 is blocked; \
     grep -q '^20010db8000000000000000000000007 80 .* 00200200 ' /proc/net/ipv6_route && echo IPv6 is blocked; \
     ip route del unreachable 192.0.2.7; ip -6 route del unreachable 2001:db8::7 metric 1; echo end";

#[tokio::test]
async fn blocked_addresses_are_unreachable_on_every_engine() {
    for host in Host::start_on_each_engine().await {
        let (mut job, mut service) = job_and_service(&host, "blocked", SHOW_BLOCK);
        job.log_services = true;
        job.blocked_addresses = ["192.0.2.7", "2001:db8::7"].map(|address| address.parse().unwrap()).to_vec();
        let drop_raw_packets = serde_json::json!(["NET_RAW"]);
        job.build.host_config.insert("CapDrop".to_owned(), drop_raw_packets.clone());
        service.container.host_config.insert("CapDrop".to_owned(), drop_raw_packets);
        let (log, result) = run(&host, &(job, service), &[SHOW_BLOCK]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        for address in ["IPv4 is blocked\n", "IPv6 is blocked\n"] {
            assert!(log.contains(&format!("\n{address}")), "{address}: {log}");
        }
        assert!(log.contains("Operation not permitted"), "{log}");
        host.until_no_objects("blocked").await;
    }
}

#[tokio::test]
async fn blocked_name_server_is_an_error_with_the_remedy() {
    let Some(host) = Host::start().await else { return };
    let mut job = job("names");
    job.blocked_addresses = vec!["192.0.2.7".parse().unwrap()];
    job.build.host_config.insert("Dns".to_owned(), serde_json::json!(["192.0.2.7"]));
    let (log, result) = host.run(&job, vec![script(&["echo never"])]).await;
    assert_eq!(failure_of(&result).0, "runner_system_failure", "{log}");
    let reason = "192.0.2.7 is the only name server of the container; set `dns` of [runners.docker] to other servers";
    assert!(log.contains(reason), "{log}");
    host.close_job().await;
    job.build.host_config.insert("Dns".to_owned(), serde_json::json!(["192.0.2.7", "192.0.2.8"]));
    let (log, result) = host.run(&job, vec![script(&["cat /etc/resolv.conf"])]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nnameserver 192.0.2.7\n"), "{log}");
    host.until_no_objects("names").await;
}

#[tokio::test]
async fn service_that_does_not_listen_is_a_warning_after_the_timeout() {
    let Some(host) = Host::start().await else { return };
    let mut job = job_and_service(&host, "silent", "sleep 600");
    job.0.service_timeout_ms = 500;
    let (log, result) = run(&host, &job, &["echo runs"]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("Health check error:\nservice \"silent-service-0\" timeout\n"), "{log}");
    assert!(log.contains("Health check container logs:\nwaiting for a connection to 172."), "{log}");
    assert!(log.contains(":8080: Connection refused"), "{log}");
}

#[tokio::test]
async fn output_of_services_is_in_the_log_with_log_services() {
    let Some(host) = Host::start().await else { return };
    let mut job = job_and_service(&host, "debugged", SERVER);
    job.0.log_services = true;
    let (log, result) = run(&host, &job, &[FETCH]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let line = log.lines().find(|line| line.contains("serving")).unwrap();
    assert!(line.starts_with("\u{1b}[0;37m[service:web-muster-test-service] 20"), "{line:?}");
}
