use crate::settings::{DockerSettings, PreparedContainers, RunnerSettings};
use crate::{HostFacts, SettingsContext, parse, settings};

fn runner(docker: &str) -> RunnerSettings {
    let entry =
        "[[runners]]\nurl = \"https://gitlab.example\"\ntoken = \"glrt-x\"\nexecutor = \"docker\"\n[runners.docker]\n";
    let loaded = parse(&format!("{entry}{docker}"), &HostFacts::default());
    let config = loaded.config.unwrap_or_else(|| panic!("{:?}", loaded.problems));
    RunnerSettings::clone(&settings(&config, &SettingsContext::default()).runners[0])
}

fn docker(text: &str) -> DockerSettings {
    *runner(text).docker.unwrap()
}

#[test]
fn empty_table_has_the_defaults_of_gitlab_runner() {
    let settings = docker("");
    assert_eq!(settings, DockerSettings { wait_for_services_s: 30, ..DockerSettings::default() });
}

#[test]
fn settings_of_build_container_and_services_are_separate() {
    let settings = docker(
        "memory = \"512m\"\nservice_memory = \"1g\"\nmemory_swap = \"-1\"\ncpus = \"1.5\"\nservice_cpus = \"2\"\n\
         cap_add = [\"NET_ADMIN\"]\nsecurity_opt = [\"a\"]\nservices_security_opt = [\"b\"]\npid_mode = \"host\"\n\
         dns = [\"192.0.2.1\"]\nshm_size = 64\ngpus = \"all\"\ntmpfs = { \"/a\" = \"rw\" }\nservices_tmpfs = { \"/b\" = \"ro\" }",
    );
    let (build, service) = (&settings.build, &settings.service);
    assert_eq!((build.memory, service.memory, build.memory_swap), (512 << 20, 1 << 30, -1));
    assert_eq!((build.nano_cpus, service.nano_cpus), (1_500_000_000, 2_000_000_000));
    assert_eq!((build.cap_add.len(), service.cap_add.len()), (1, 0));
    assert_eq!((&build.security_opt[..], &service.security_opt[..]), (&["a".to_owned()][..], &["b".to_owned()][..]));
    assert_eq!((build.pid_mode.as_str(), service.pid_mode.as_str()), ("host", ""));
    assert_eq!((build.gpus.len(), service.gpus.len()), (1, 0));
    assert!(build.tmpfs.contains_key("/a") && service.tmpfs.contains_key("/b"));
    // `dns` and `shm_size` apply to all containers.
    assert_eq!((&build.dns, build.shm_size), (&service.dns, service.shm_size));
    assert_eq!((build.dns.len(), build.shm_size), (1, 64));
}

#[test]
fn services_are_as_privileged_as_the_build_container_unless_set() {
    let privileged = |text: &str| {
        let settings = docker(text);
        (settings.build.privileged, settings.service.privileged)
    };
    assert_eq!(privileged("privileged = true"), (true, true));
    assert_eq!(privileged("privileged = true\nservices_privileged = false"), (true, false));
    assert_eq!(privileged("services_privileged = true"), (false, true));
}

#[test]
fn wait_for_services_has_a_default_and_can_be_disabled() {
    let seconds = |value: i64| docker(&format!("wait_for_services_timeout = {value}")).wait_for_services_s;
    assert_eq!((seconds(0), seconds(-1), seconds(5)), (30, 0, 5));
}

#[test]
fn negative_services_limit_means_no_limit() {
    let limit = |value: i64| docker(&format!("services_limit = {value}")).services_limit;
    assert_eq!((limit(-1), limit(0), limit(3)), (None, Some(0), Some(3)));
}

#[test]
fn services_of_the_file_are_read_and_nameless_ones_left_out() {
    let settings = docker(
        "[[runners.docker.services]]\nname = \"postgres:16\"\nalias = \"db, sql\"\nenvironment = [\"A=b=c\", \"D\"]\n\
         command = [\"run\"]\nentrypoint = [\"sh\"]\n[[runners.docker.services]]\nalias = \"x\"",
    );
    let [service] = &settings.services[..] else { panic!("{:?}", settings.services) };
    assert_eq!((service.name.as_str(), service.alias.as_str()), ("postgres:16", "db, sql"));
    assert_eq!(service.environment, [("A".to_owned(), "b=c".to_owned())]);
    assert_eq!((&service.command[..], &service.entrypoint[..]), (&["run".to_owned()][..], &["sh".to_owned()][..]));
}

#[test]
fn each_invalid_value_is_a_problem_with_a_remedy() {
    for (text, problem) in [
        ("memory = \"5x\"", "memory of [runners.docker]: `5x` is not a valid size; write a number"),
        ("service_memory_swap = \"-2\"", "service_memory_swap of [runners.docker]: `-2` is not a valid size"),
        ("cpus = \"two\"", "cpus of [runners.docker]: `two` is not a valid number of CPUs; write a decimal number"),
        ("gpus = \"some\"", "gpus of [runners.docker]: `some` is not a valid request for GPUs"),
        (
            "devices = [\"/dev/a:/b:q\"]",
            "devices of [runners.docker]: `/dev/a:/b:q` is not a valid device; write a path",
        ),
        ("services_devices = { \"**\" = [\":\"] }", "services_devices of [runners.docker]: `:` is not a valid device"),
        ("ulimit = { nofile = \"many\" }", "ulimit of [runners.docker]: `many` is not a valid limit; write SOFT"),
        ("dns = [\"resolver\"]", "dns of [runners.docker]: `resolver` is not a valid IP address"),
        ("mac_address = \"no\"", "mac_address of [runners.docker]: `no` is not a valid MAC address; write six bytes"),
        (
            "pull_policy = \"often\"",
            "pull_policy of [runners.docker]: `often` is not a valid pull policy; write always",
        ),
        (
            "log_options = { tag = \"a\" }",
            "log_options of [runners.docker]: `tag` is not a valid log option of a runner",
        ),
    ] {
        let problems = docker(text).problems;
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert!(problems[0].starts_with(problem), "{text}: {problems:?}");
    }
}

#[test]
fn settings_that_are_stored_with_a_job_are_read_back_unchanged() {
    let runner = runner(
        "image = \"alpine\"\nmemory = \"1g\"\ndns = [\"2001:db8::1\"]\n[[runners.docker.services]]\nname = \"redis\"",
    );
    let stored = serde_json::to_string(&runner).unwrap();
    assert_eq!(serde_json::from_str::<RunnerSettings>(&stored).unwrap(), runner);
}

#[test]
fn containers_are_prepared_only_if_a_maximum_is_set() {
    let prepared = |text: &str| docker(&format!("[runners.docker.prepared_containers]\n{text}")).prepared_containers;
    assert_eq!(docker("").prepared_containers, None);
    assert_eq!(prepared("min_uses = 1"), None);
    let expected = PreparedContainers { max_containers: 4, min_uses: 2, window_s: 3600, max_idle_s: 60 };
    assert_eq!(prepared("max_containers = 4\nmax_idle_time = 60"), Some(expected));
    let invalid = docker("[runners.docker.prepared_containers]\nmax_containers = 101");
    let message = "prepared_containers of [runners.docker]: `max_containers = 101` is not a valid setting; write max_containers from 0 to 100, \
                   and the other keys from 1";
    assert_eq!(invalid.problems, [message]);
}

#[test]
fn public_runner_blocks_the_metadata_services_of_clouds_unless_the_key_is_set() {
    let addresses = |public: &str, docker: &str| {
        let entry =
            format!("[[runners]]\nurl = \"https://gitlab.example\"\ntoken = \"t\"\nexecutor = \"docker\"\n{public}\n");
        let loaded = parse(&format!("{entry}[runners.docker]\n{docker}"), &HostFacts::default());
        let settings = settings(&loaded.config.unwrap(), &SettingsContext::default());
        let docker = settings.runners[0].docker.as_ref().unwrap();
        docker.blocked_addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let clouds = "169.254.169.254 169.254.170.2 169.254.170.23 fd00:ec2::23 169.254.0.23 169.254.42.42 fd00:42::42 100.100.100.200 fd00:ec2::254 \
                  fd20:ce::254 fd00:c1::a9fe:a9fe";
    let clouds: Vec<_> = clouds.split(' ').collect();
    assert_eq!(addresses("public = true", ""), clouds);
    assert_eq!(addresses("public = true", "blocked_addresses = []"), [""; 0]);
    assert_eq!(addresses("public = true", "blocked_addresses = [\"192.0.2.7\"]"), ["192.0.2.7"]);
    for public in ["", "public = false"] {
        assert_eq!(addresses(public, ""), [""; 0]);
    }
}
