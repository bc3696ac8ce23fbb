use muster_job::{PolicyRule, StepPolicy};

use super::*;

#[test]
fn privileged_needs_setting_and_is_limited_by_patterns() {
    let both = |docker: &mut DockerSettings| (docker.build.privileged, docker.service.privileged) = (true, true);
    let privileged = |(container, job): (DockerContainer, LoweredJob)| {
        let of = |spec: &ContainerSpec| spec.host_config.contains_key("Privileged");
        (of(&container.build), of(&services_of(&job)[0].container))
    };
    let more = json!({ "image": { "name": "builder:1" }, "services": [{ "name": "docker:dind" }] });
    assert_eq!(privileged(lowered(|_| (), more.clone())), (false, false));
    assert_eq!(privileged(lowered(both, more.clone())), (true, true));
    let limited = |docker: &mut DockerSettings| {
        both(docker);
        docker.allowed_privileged_images = texts(&["other:*"]);
        docker.allowed_privileged_services = texts(&["docker:*dind"]);
    };
    assert_eq!(privileged(lowered(limited, more)), (false, true));
}

#[test]
fn host_configuration_has_the_names_of_the_docker_api() {
    let device =
        |path: &str| Device { on_host: path.to_owned(), in_container: path.to_owned(), permissions: "rw".to_owned() };
    let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    let build = ContainerSettings {
        privileged: true,
        memory: 1 << 30,
        memory_swap: -1,
        memory_reservation: 1 << 20,
        nano_cpus: 500_000_000,
        cpuset_cpus: "0-1".to_owned(),
        cpuset_mems: "0".to_owned(),
        cpu_shares: 512,
        cgroup_parent: "ci".to_owned(),
        cap_add: texts(&["NET_ADMIN"]),
        cap_drop: texts(&["MKNOD"]),
        security_opt: texts(&["seccomp=/etc/profile.json", "seccomp=unconfined", "no-new-privileges"]),
        devices: vec![device("/dev/kvm")],
        device_cgroup_rules: texts(&["c 1:3 mr"]),
        gpus: vec![GpuRequest { count: -1, capabilities: texts(&["gpu"]), ..GpuRequest::default() }],
        dns: vec!["192.0.2.1".parse().unwrap()],
        dns_search: texts(&["example"]),
        extra_hosts: texts(&["db:192.0.2.2"]),
        links: texts(&["other:alias"]),
        ulimits: vec![Ulimit { name: "nofile".to_owned(), soft: 1, hard: 2 }],
        shm_size: 64,
        tmpfs: map("/tmp", "rw"),
        sysctls: map("net.ipv4.ip_forward", "1"),
        group_add: texts(&["video"]),
        userns_mode: "host".to_owned(),
        ipc_mode: "shareable".to_owned(),
        pid_mode: "host".to_owned(),
        runtime: "runsc".to_owned(),
        oom_kill_disable: true,
        oom_score_adjust: -5,
        volume_driver: "local".to_owned(),
        volumes_from: texts(&["data:ro"]),
        log_options: map("labels", "a"),
    };
    let mut context = context_with(|docker| docker.build = build);
    context
        .docker
        .seccomp
        .insert("/etc/profile.json".to_owned(), Ok("{ \"defaultAction\": \"SCMP_ACT_ALLOW\" }".to_owned()));
    let more = variables(&[("FF_USE_INIT_WITH_DOCKER_EXECUTOR", "true")]);
    let job = lower(&payload(more.clone()), &context).unwrap();
    insta::assert_json_snapshot!(inside(&job).0.build.host_config);
    for profile in [Err("permission denied".to_owned()), Ok("no JSON".to_owned())] {
        context.docker.seccomp.insert("/etc/profile.json".to_owned(), profile);
        let error = lower(&payload(more.clone()), &context).unwrap_err().to_string();
        assert!(error.starts_with("failed to use the seccomp profile /etc/profile.json of security_opt: "), "{error}");
    }
}

#[test]
fn services_of_runner_come_first_and_have_aliases() {
    let change = |docker: &mut DockerSettings| {
        let environment = vec![("PASS".to_owned(), "$SECRET".to_owned())];
        docker.services = vec![DockerService { name: "redis".to_owned(), environment, ..DockerService::default() }];
        docker.services_devices = [("postgres:*".to_owned(), vec![Device::default()])].into();
        docker.container_labels = [("team".to_owned(), "of $GITLAB_USER".to_owned())].into();
    };
    let more = json!({
        "variables": [
            { "key": "SECRET", "value": "hunter22", "masked": true },
            { "key": "GITLAB_USER", "value": "ada", "public": true },
            { "key": "CERT", "value": "pem", "public": true, "file": true },
        ],
        "services": [
            { "name": "registry.example:5000/group/postgres:16", "alias": "db, redis\tsql",
              "variables": [{ "key": "DB", "value": "$GITLAB_USER" }, { "key": "RAW", "value": "$X", "raw": true }] },
        ],
    });
    let (container, job) = lowered(change, more);
    let services = services_of(&job);
    let names: Vec<_> = services.iter().map(|service| service.container.name.as_str()).collect();
    assert_eq!(container.services, names);
    insta::assert_json_snapshot!(services, { "[].container.env" => insta::dynamic_redaction(|list, _| {
        let own = ["PASS=", "GITLAB_USER=", "CERT=", "DB=", "RAW=", "SECRET="];
        let list = list.as_slice().unwrap_or_default().iter().filter_map(|entry| entry.as_str().map(str::to_owned));
        list.filter(|entry| own.iter().any(|name| entry.starts_with(name))).collect::<Vec<_>>().join(" ")
    })});
    let warning = "Skipping alias \"redis\" for service \"registry.example:5000/group/postgres:16\" (services[1]): alias is \
                   already in use by another service.";
    assert_eq!(job.plan.warnings, [warning]);
}

#[test]
fn services_are_steps_beside_the_container_and_the_policy_can_deny_them() {
    let more = json!({ "services": [{ "name": "postgres:16" }, { "name": "redis:7" }] });
    let job = lower(&payload(more.clone()), &context_with(|_| ())).unwrap();
    let Call::Delegate { beside, steps, .. } = &job.plan.steps[0].call else { panic!("{job:?}") };
    let names: Vec<_> = beside.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["service postgres:16", "service redis:7"]);
    assert!(steps.iter().all(|step| !step.name.starts_with("service ")), "{steps:?}");
    let mut denied = context_with(|_| ());
    let rule = PolicyRule { pattern: "builtin:docker/service".to_owned(), ..PolicyRule::default() };
    let policy = StepPolicy { rules: vec![rule], ..StepPolicy::default() };
    Arc::make_mut(&mut denied.runner).steps.policy = Some(policy);
    let error = lower(&payload(more), &denied).unwrap_err().to_string();
    assert!(error.starts_with("step \"service postgres:16\": "), "{error}");
    lower(&payload(json!({})), &denied).unwrap();
}

#[test]
fn name_of_a_service_has_only_characters_that_engines_accept() {
    let more = json!({ "services": [{ "name": "registry:5000/a/b:1" }, { "name": r"x\..\victim?" }] });
    let names = container(|_| (), more).services;
    assert!(names[0].ends_with("-registry__a__b-0"), "{names:?}");
    assert!(names[1].ends_with("-x_.._victim_-1"), "{names:?}");
}

#[test]
fn number_of_services_is_limited() {
    let more = json!({ "services": [{ "name": "a" }, { "name": "b" }] });
    let error = refused(|docker| docker.services_limit = Some(1), more.clone());
    assert_eq!(error, "runner_configuration_error: too many services requested: 2, only 1 allowed");
    assert_eq!(services(|docker| docker.services_limit = Some(2), more).len(), 2);
}

#[test]
fn network_is_bridge_or_configured_or_per_job() {
    let flag = || variables(&[("FF_NETWORK_PER_BUILD", "true")]);
    assert_eq!(container(|_| (), json!({})).network, DockerNetwork::Bridge);
    let (container_of_job, job) = lowered(|docker| (docker.enable_ipv6, docker.network_mtu) = (true, 1400), flag());
    let name = "runner-shorttoke-5-1-42".to_owned();
    assert_eq!(container_of_job.network, DockerNetwork::PerJob { name: name.clone(), ipv6: true, mtu: 1400 });
    assert_eq!(value(&job, "CI_BUILD_NETWORK_NAME"), Some(name));
    let (container, job) = lowered(|docker| docker.network_mode = "host".to_owned(), flag());
    assert_eq!(container.network, DockerNetwork::Mode("host".to_owned()));
    assert_eq!(value(&job, "CI_BUILD_NETWORK_NAME"), None);
}

#[test]
fn slot_cgroups_are_parents_of_containers() {
    let mut context = context_with(|docker| {
        docker.build.cgroup_parent = "configured".to_owned();
        docker.service_slot_cgroup_template = "services/${slot}".to_owned();
    });
    let parents = |context: &JobContext| {
        let job = lower(&payload(json!({ "services": [{ "name": "a" }] })), context).unwrap();
        let container = inside(&job).0;
        let parent = |spec: &ContainerSpec| spec.host_config.get("CgroupParent").cloned().unwrap_or_default();
        [parent(&container.build), parent(&services_of(&job)[0].container)]
    };
    assert_eq!(parents(&context), [json!("configured"), Value::Null]);
    context.share = Some(share(3));
    assert_eq!(parents(&context), [json!("configured"), Value::Null]);
    Arc::make_mut(&mut context.runner).use_slot_cgroups = true;
    assert_eq!(parents(&context), [json!("gitlab-runner/slot-3"), json!("services/3")]);
}

#[test]
fn debug_output_of_services_is_copied_unless_disabled() {
    let wanted = || variables(&[("CI_DEBUG_SERVICES", "true")]);
    assert!(container(|_| (), wanted()).log_services);
    let mut context = context_with(|_| ());
    Arc::make_mut(&mut context.runner).debug_trace_disabled = true;
    assert!(!inside(&lower(&payload(wanted()), &context).unwrap()).0.log_services);
}

#[test]
fn environment_omits_oversized_and_invalid_variables() {
    let pair = |key: &str, value: String| (key.to_owned(), value);
    let large = "x".repeat(200 * 1024);
    let list =
        vec![pair("A", "1".to_owned()), pair("LARGE", large), pair("B=C", String::new()), pair("NUL", "\0".to_owned())];
    assert_eq!(environment(list), ["A=1"]);
}

#[test]
fn blocked_addresses_drop_net_raw_and_refuse_containers_that_could_undo_the_block() {
    let block = |docker: &mut DockerSettings| docker.blocked_addresses = vec!["169.254.169.254".parse().unwrap()];
    let (found, job) = lowered(block, json!({ "services": [{ "name": "redis:7" }] }));
    assert_eq!(found.blocked_addresses.len(), 1);
    for spec in [&found.build, &services_of(&job)[0].container] {
        assert_eq!(spec.host_config["CapDrop"], json!(["NET_RAW"]), "{}", spec.name);
    }
    let cases: [&dyn Fn(&mut DockerSettings); 6] = [
        &|docker| docker.build.privileged = true,
        &|docker| docker.build.cap_add = texts(&["CAP_net_admin"]),
        &|docker| docker.build.cap_add = texts(&["SYS_PTRACE", "ALL"]),
        &|docker| docker.build.cap_add = texts(&["NET_RAW"]),
        &|docker| docker.network_mode = "host".to_owned(),
        &|docker| docker.network_mode = "container:other".to_owned(),
    ];
    for change in cases {
        let error = refused(
            |docker| {
                block(docker);
                change(docker);
            },
            json!({}),
        );
        assert!(error.starts_with("runner_configuration_error") && error.contains("has no effect with"), "{error}");
    }
}

#[test]
fn prepared_containers_have_the_same_host_name_for_all_projects() {
    let prepared = PreparedContainers { max_containers: 3, min_uses: 2, window_s: 60, max_idle_s: 30 };
    let found = container(|docker| docker.prepared_containers = Some(prepared), json!({}));
    let policy = PreparedPolicy { max_containers: 3, min_uses: 2, window_ms: 60_000, max_idle_ms: 30_000 };
    assert_eq!((found.prepared, found.build.hostname.as_str()), (Some(policy), "runner-shorttoke"));
    let named = |docker: &mut DockerSettings| {
        docker.prepared_containers = Some(prepared);
        docker.hostname = "own".to_owned();
    };
    assert_eq!(container(named, json!({})).build.hostname, "own");
    let off = container(|_| (), json!({}));
    assert!(off.prepared.is_none() && off.build.hostname.contains("-project-"), "{off:?}");
}
