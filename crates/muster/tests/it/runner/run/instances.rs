//! Metrics, `muster fleet status` and `muster fleet explain` of a manager whose runner has instances.

use std::process::Command;

use muster_job::JobId;
use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, ManagerProcess};
use crate::process::{CommandResult, until};

/// Starts a manager whose runner has instances. Also returns the address of its metrics server.
///
/// `plugin` has additional lines of the table `plugin_config`.
async fn start(plugin: &str) -> (Harness, ManagerProcess, String) {
    let harness = Harness::start(1).await;
    let entry = harness.entry(0).replace("\"shell\"\nshell", "\"instance\"\nshell");
    harness.configure(&format!(
        "listen_address = \"127.0.0.1:0\"\nconcurrent = 4\ncheck_interval = 1\n{entry}[runners.autoscaler]\n\
         plugin = \"fleeting-plugin-local\"\nmax_instances = 1\ndelete_instances_on_shutdown = true\n\
         [[runners.autoscaler.policy]]\nidle_time = \"10m\"\n[runners.autoscaler.plugin_config]\ndirectory = {:?}\n{plugin}",
        harness.home.path("machines")
    ));
    let run = harness.run();
    let address = address_of(&run).await;
    (harness, run, address)
}

pub(super) async fn address_of(run: &ManagerProcess) -> String {
    run.wait_for_log("Metrics server listening", 1).await;
    let log = run.log();
    let line = log.lines().find(|line| line.contains("Metrics server listening")).unwrap();
    let port = line.split_once("127.0.0.1:").unwrap().1;
    let port = port.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    format!("127.0.0.1:{port}")
}

async fn fleet(harness: &Harness, arguments: &[&str]) -> CommandResult {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.arg("fleet").args(arguments).env_clear().env("HOME", harness.home.path(""));
    CommandResult::of(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

pub(super) async fn status(harness: &Harness, address: &str) -> Value {
    let result = fleet(harness, &["status", "--json", "--address", address]).await.check(0, &[]);
    serde_json::from_str(&result.stdout).unwrap()
}

async fn metrics(address: &str) -> String {
    reqwest::get(format!("http://{address}/metrics")).await.unwrap().text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_slots_and_reasons_of_decisions_even_after_a_stop() {
    let (harness, run, address) = start("").await;
    harness.push(0, 71);
    harness.wait_for_start(0, 71).await;

    let reports = status(&harness, &address).await;
    let (fleet_report, instances) = (&reports["fleets"][0], &reports["fleets"][0]["status"]["instances"]);
    assert_eq!((reports["source"].as_str(), instances.as_array().unwrap().len()), (Some("manager"), 1), "{reports}");
    let (instance, key) = (instances[0]["id"].as_str().unwrap(), instances[0]["slots"][0]["key"].as_str().unwrap());
    assert!(key.starts_with("job-71-"), "{reports}");
    let reason = fleet_report["requests_paused_reason"].as_str().unwrap();
    assert!(
        reason.starts_with("no capacity: ") && reason.contains("group runner-0: instance limit of 1 reached"),
        "{reason}"
    );

    let status_text = fleet(&harness, &["status", "--address", &address]).await.check(0, &[]).stdout;
    for expected in ["runner runner-0\n", "paused: no capacity", "1 in use", instance, key] {
        assert!(status_text.contains(expected), "`{expected}` is missing in {status_text}");
    }
    let metrics_text = metrics(&address).await;
    let labels = "runner=\"glrt-test\",runner_name=\"runner-0\"";
    for (name, label, value) in [
        ("fleeting_provisioner_instances", "state=\"running\"", "1"),
        ("fleeting_provisioner_max_instances", "", "1"),
        ("fleeting_taskscaler_tasks", "state=\"acquired\"", "1"),
        ("fleeting_taskscaler_task_operations_total", "operation=\"acquire\"", "1"),
        ("fleeting_provisioner_instance_creation_time_seconds_count", "", "1"),
        ("gitlab_runner_autoscaling_machine_creation_duration_seconds_count", "", "1"),
        ("gitlab_runner_autoscaling_machine_states", "state=\"used\"", "1"),
        ("gitlab_runner_autoscaling_machine_states", "state=\"idle\"", "0"),
    ] {
        let is_match =
            |line: &&str| line.starts_with(name) && line.contains(label) && line.contains("runner_name=\"runner-0\"");
        let line = metrics_text
            .lines()
            .find(is_match)
            .unwrap_or_else(|| panic!("{name} {label} {labels} is not in {metrics_text}"));
        assert!(line.ends_with(&format!(" {value}")), "{line}");
    }

    let explain = async |arguments: &[&str], code: i32| {
        let arguments = [&["explain"], arguments, &["--address", &address]].concat();
        fleet(&harness, &arguments).await.check(code, &[]).stdout
    };
    let replacements = [(instance.to_owned(), "[instance]"), (key.to_owned(), "[key]"), (address.clone(), "[address]")];
    let snapshot = |name: &str, text: &str| {
        let text = replacements.iter().fold(text.to_owned(), |text, (value, name)| text.replace(value, name));
        let filters = [
            (r"\b\d+ms\b|\b\d+\.\d+s\b|\b\d+\.\d+ s\b", "[time]"),
            (r"\(idle:[^)]*\)", "([counts])"),
            (r" {2,}", "  "),
            // The plugin reports the usage only after its second sample.
            (r"  USAGE\b", ""),
            (r"  \S+ CPU, \S+ \w+, \d+ process(es)?", ""),
        ];
        insta::with_settings!({ filters => filters, omit_expression => true }, { insta::assert_snapshot!(name, text) });
    };
    snapshot("fleet-status", &status_text);
    let explanation = explain(&["job", "71"], 0).await;
    // Decisions of the same second have no fixed order.
    snapshot("fleet-explain-job", explanation.split("\ndecisions").next().unwrap());
    assert!(explanation.contains(&format!("job 71 has slot 0 of instance {instance}")), "{explanation}");
    assert!(explanation.contains("requested 1 of 1 needed instances; slots in use: 0, queued: 1"), "{explanation}");
    let explanation = explain(&["job", "72"], 1).await;
    assert!(
        explanation.contains("job 72 is unknown to runner") && explanation.contains("job requests are paused"),
        "{explanation}"
    );
    let explanation = explain(&["group", "runner-0"], 0).await;
    assert!(explanation.contains("group runner-0 has 1 instance (maximum 1); requested: 0"), "{explanation}");

    let instance = instance.to_owned();
    harness.release_job(71);
    harness.wait_for_end(0, 71).await;
    run.signal(Signal::QUIT);
    run.wait_for_exit_code().await;
    let state = harness.home.path("state").display().to_string();
    let offline = async |arguments: &[&str]| {
        let arguments = [&["explain"], arguments, &["--state-dir", &state]].concat();
        fleet(&harness, &arguments).await.check(0, &[]).stdout
    };
    let explanation = offline(&["instance", &instance]).await;
    for expected in ["no longer exists".to_owned(), format!("got slot 0 of {instance} after ")] {
        assert!(explanation.contains(&expected), "`{expected}` is missing in {explanation}");
    }
    // The shutdown deletes the instance either because it is idle or because the scaler stops.
    let reasons =
        ["idle for ", "the scaler is shutting down"].map(|reason| format!("deleting instance {instance}: {reason}"));
    assert!(reasons.iter().any(|reason| explanation.contains(reason)), "{explanation}");
    assert!(offline(&["job", "71"]).await.contains("released its slots"));
    let disk_status = fleet(&harness, &["status", "--state-dir", &state, "--json"]).await.check(0, &[]).stdout;
    let disk_status: Value = serde_json::from_str(&disk_status).unwrap();
    assert_eq!(
        (disk_status["source"].as_str(), disk_status["fleets"][0]["runner"].as_str()),
        (Some("disk"), Some("runner-0"))
    );
    assert_eq!(disk_status["fleets"][0]["status"]["instances"].as_array().unwrap().len(), 0, "{disk_status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn provider_error_is_in_log_metric_and_status() {
    let (harness, run, address) = start("request_failure_rate = 1.0\n").await;
    harness.push(0, 5);
    run.wait_for_log("failed to create instances", 1).await;
    let group = until(async || {
        let reports = status(&harness, &address).await;
        let scaler = &reports["fleets"][0]["status"];
        let waits = scaler["waiting"].as_array().is_some_and(|waiting| !waiting.is_empty());
        let group = &scaler["groups"][0];
        if waits && !group["error"].is_null() { Ok(group.clone()) } else { Err(format!("{reports}\n{}", run.log())) }
    })
    .await;
    let error = group["error"].as_str().unwrap();
    assert!(group["failures"].as_u64().unwrap() > 0 && !error.is_empty(), "{group}");
    assert!(run.log().contains(error), "{error}: {}", run.log());
    let explanation = fleet(&harness, &["explain", "job", "5", "--address", &address]).await.check(0, &[]).stdout;
    assert!(explanation.contains("job 5 has waited ") && explanation.contains(error), "{error}: {explanation}");
    let metrics_text = metrics(&address).await;
    let failures =
        metrics_text.lines().find(|line| line.starts_with("muster_taskscaler_creation_failures_total")).unwrap();
    assert!(!failures.ends_with(" 0"), "{failures}");
}

/// Requirement R160: GitLab's fleet documentation recommends these metrics.
#[tokio::test(flavor = "multi_thread")]
async fn scrape_has_the_metrics_that_gitlab_recommends() {
    let (harness, run, address) = start("").await;
    harness.push(0, 1);
    harness.wait_for_start(0, 1).await;
    harness.release_job(1);
    harness.wait_for_end(0, 1).await;
    until(async || {
        let metrics_text = metrics(&address).await;
        let has = |name: &str| metrics_text.lines().any(|line| line.starts_with(&format!("# TYPE {name} ")));
        let missing: Vec<_> = RECOMMENDED.into_iter().filter(|name| !has(name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are not in:\n{metrics_text}")) }
    })
    .await;
    run.signal(Signal::QUIT);
    run.wait_for_exit_code().await;
}

const RECOMMENDED: [&str; 19] = [
    "gitlab_runner_api_request_statuses_total",
    "gitlab_runner_autoscaling_machine_creation_duration_seconds",
    "gitlab_runner_autoscaling_machine_states",
    "gitlab_runner_concurrent",
    "gitlab_runner_errors_total",
    "gitlab_runner_jobs",
    "gitlab_runner_job_duration_seconds",
    "gitlab_runner_jobs_total",
    "gitlab_runner_limit",
    "gitlab_runner_request_concurrency",
    "gitlab_runner_request_concurrency_exceeded_total",
    "gitlab_runner_version_info",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
    "process_virtual_memory_max_bytes",
];

/// Requirement R178 (docs/requirements.md).
#[tokio::test(flavor = "multi_thread")]
async fn instance_usage_is_in_metrics_and_status() {
    let (harness, run, address) = start("").await;
    harness.push(0, 3);
    harness.wait_for_start(0, 3).await;
    let (instance, usage) = until(async || {
        let reports = status(&harness, &address).await;
        let resources = reports["fleets"][0]["resources"].as_object().cloned().unwrap_or_default();
        resources.into_iter().next().ok_or_else(|| format!("{reports}\n{}", run.log()))
    })
    .await;
    assert!(usage["memory_bytes"].as_u64() > Some(0) && usage["processes"].as_u64() > Some(1), "{usage}");
    // If the plugin fails to report the usage once, the status shows no usage until the next report.
    until(async || {
        let status_text = fleet(&harness, &["status", "--address", &address]).await.check(0, &[]).stdout;
        let is_line =
            |line: &str| [&instance, " s CPU, ", " MiB, ", " processes"].iter().all(|part| line.contains(part));
        if status_text.lines().any(is_line) { Ok(()) } else { Err(status_text) }
    })
    .await;
    let metrics_text = metrics(&address).await;
    let value = |name: &str| {
        let line = metrics_text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name} is missing in {metrics_text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!((value("muster_instances_with_usage{"), value("muster_plugin_up{")), (1.0, 1.0));
    assert!(value("muster_instances_memory_bytes{") > 0.0);
    for rpc in ["Init", "Update", "Increase", "ConnectInfo", "GetResourceUsage"] {
        let is_call = |line: &&str| {
            line.starts_with("muster_plugin_calls_total{")
                && line.contains(&format!("rpc=\"{rpc}\""))
                && line.contains("result=\"ok\"")
        };
        let line = metrics_text
            .lines()
            .find(is_call)
            .unwrap_or_else(|| panic!("a call of {rpc} is missing in {metrics_text}"));
        assert!(!line.ends_with(" 0"), "{line}");
    }
    harness.release_job(3);
    harness.wait_for_end(0, 3).await;
    run.signal(Signal::QUIT);
    run.wait_for_exit_code().await;
}

/// Until the file `open` exists, only two of the six instances become ready.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_requested_for_all_booting_instances() {
    let harness = Harness::start(1).await;
    let (home, jobs) = (harness.home.path(""), 1..=20);
    let home = home.display();
    let ready = format!("mkdir {home}/one || mkdir {home}/two || until [ -e {home}/open ]; do sleep 0.02; done");
    let entry = harness.entry(0).replace("\"shell\"\nshell", "\"instance\"\nshell");
    harness.configure(&format!(
        "concurrent = 20\ncheck_interval = 1\n{entry}[runners.autoscaler]\nplugin = \"fleeting-plugin-local\"\n\
         max_instances = 6\nmax_use_count = 1\ndelete_instances_on_shutdown = true\ninstance_ready_command = {ready:?}\n\
         [[runners.autoscaler.policy]]\nidle_count = 2\nidle_time = \"10m\"\n[runners.autoscaler.plugin_config]\n\
         directory = {:?}\n",
        harness.home.path("machines")
    ));
    jobs.clone().for_each(|job| harness.push(0, job));
    let run = harness.run();
    let active_jobs = || {
        let (assigned, ended) = harness.coordinator(0).assigned_and_ended();
        assert!(assigned - ended <= 6, "at most one job may be requested for each instance:\n{}", run.log());
        assigned - ended
    };
    until(async || match active_jobs() {
        6.. => Ok(()),
        count => Err(format!("{count} jobs are requested\n{}", run.log())),
    })
    .await;
    let begun = |job: &i64| harness.coordinator(0).job(JobId(*job)).unwrap().text().contains("begun\n");
    assert!(jobs.clone().filter(begun).count() <= 2, "only the two ready instances may run jobs");

    std::fs::write(harness.home.path("open"), "").unwrap();
    jobs.clone().for_each(|job| harness.release_job(job));
    // Each used instance is replaced by a new one. `active_jobs` checks the limit until all 20 jobs have ended.
    until(async || {
        active_jobs();
        let ended = harness.coordinator(0).assigned_and_ended().1;
        if ended == jobs.clone().count() { Ok(()) } else { Err(format!("{ended} jobs have ended\n{}", run.log())) }
    })
    .await;
    for job in jobs {
        harness.wait_for_end(0, job).await;
    }
    run.signal(Signal::QUIT);
    run.wait_for_exit_code().await;
}
