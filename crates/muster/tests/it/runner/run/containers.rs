//! Jobs of the executor `docker`, from the answer of a coordinator to the trace, with a real Docker Engine.

use muster_test_prerequisites::DockerEngine;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::Harness;

pub(super) const IMAGE: &str = "muster-test/runner:1";

impl Harness {
    pub(super) fn configure_docker(&self, settings: &str) -> Option<&'static DockerEngine> {
        let engine = DockerEngine::shared()?;
        if !engine.create_image(IMAGE, &["EXPOSE 8080/tcp"]) {
            return None;
        }
        let entry = self.entry(0).replace("executor = \"shell\"", "executor = \"docker\"");
        let docker = format!("[runners.docker]\nhost = \"{}\"\npull_policy = \"never\"\n{settings}", engine.url());
        self.configure(&format!("concurrent = 2\n{entry}{docker}\n"));
        Some(engine)
    }

    pub(super) fn push_container_job(&self, id: i64, commands: &[&str], more: &Value) {
        let variables = [("GIT_STRATEGY", "none"), ("FF_TIMESTAMPS", "false"), ("FF_NETWORK_PER_BUILD", "true")];
        let mut payload = json!({
            "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": id },
            "git_info": { "repo_url": "https://gitlab.example/group/project.git", "sha": "0123456789abcdef", "ref": "main" },
            "runner_info": { "timeout": 600 },
            "variables": variables.map(|(key, value)| json!({ "key": key, "value": value, "public": true })),
            "steps": [{ "name": "script", "script": commands }],
            "features": { "trace_sections": true, "failure_reasons": ["runner_configuration_error"] },
            "muster": { "trace_interval_ms": 20 }
        });
        for (key, value) in more.as_object().unwrap() {
            payload[key] = value.clone();
        }
        self.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
    }
}

/// Returns the names of the project's containers and networks. Each test has its own project, because tests share the
/// engine.
fn objects_left(engine: &DockerEngine, project: i64) -> String {
    let (names, network) = (format!("-project-{project}-"), format!("-{project}-0-{project}"));
    let lists = ["/containers/json?all=1", "/networks"].map(|path| engine.call("GET", path, &[]).1);
    let names =
        lists.iter().flat_map(|list| list.split('"')).filter(|text| text.contains(&names) || text.ends_with(&network));
    names.collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn job_with_image_and_service_runs_in_containers() {
    let harness = Harness::start(1).await;
    let Some(engine) = harness.configure_docker("user = \"1000\"\nmemory = \"256m\"\n") else { return };
    let run = harness.run();
    let server = "mkdir /www; echo served > /www/index.html; exec httpd -f -p 8080 -h /www";
    let commands = [
        "echo \"user $(id -u) in $PWD on $(hostname)\"",
        "wget -q -O - http://web:8080/",
        "echo kept > ../kept; exit 7",
    ];
    let more = json!({
        "image": { "name": IMAGE },
        "services": [{ "name": IMAGE, "alias": "web", "command": ["/bin/sh", "-c", server] }]
    });
    harness.push_container_job(1, &commands, &more);
    let job = harness.wait_for_end(0, 1).await;
    let trace = job.text();
    for expected in [
        "\u{1b}[36;1mPreparing the \"docker\" executor\u{1b}[0;m",
        &format!("Using Docker executor with image {IMAGE} ..."),
        &format!("Starting service {IMAGE}..."),
        "user 1000 in /builds/group/project on runner-",
        "\nserved\n",
        "ERROR: Job failed: exit ",
    ] {
        assert!(trace.contains(expected), "{expected} is missing in {trace}\n{}", run.log());
    }
    let position = |text: &str| trace.find(text).unwrap_or_else(|| panic!("{text} is missing in {trace}"));
    assert!(position("section_end:") < position("Preparing environment"), "{trace}");
    assert_eq!(objects_left(engine, 1), "", "no object of the job must be left");
    // With the strategy `none`, the volume of the checkout is removed with its job.
    let same_project = json!({ "image": { "name": IMAGE }, "job_info": { "name": "test", "project_id": 1 } });
    harness.push_container_job(2, &["cat ../kept"], &same_project);
    let job = harness.wait_for_end(0, 2).await;
    assert!(!job.text().contains("\nkept\n"), "{}", job.text());
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_with_a_disallowed_image_fails_with_the_messages_of_gitlab_runner() {
    let harness = Harness::start(1).await;
    let settings = format!("image = \"{IMAGE}\"\nallowed_images = [\"ruby:*\"]\n");
    if harness.configure_docker(&settings).is_none() {
        return;
    }
    let run = harness.run();
    harness.push_container_job(3, &["echo runs"], &json!({ "image": { "name": "group/ruby:3" } }));
    let refused = harness.wait_for_end(0, 3).await;
    let lines =
        "ERROR: The \"group/ruby:3\" image is not present on list of allowed images:\u{1b}[0;m\n\u{1b}[0K- ruby:*";
    assert!(refused.text().contains(lines), "{}", refused.text());
    assert!(
        refused.text().ends_with("ERROR: Job failed (system failure): disallowed image\u{1b}[0;m\n"),
        "{}",
        refused.text()
    );
    harness.push_container_job(4, &["echo runs"], &json!({}));
    let job = harness.wait_for_end(0, 4).await;
    assert!(job.text().contains("Using default image"), "{}", job.text());
    assert!(job.text().contains("\nruns\n") && job.text().contains("Job succeeded"), "{}", job.text());
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_steps_that_the_step_policy_can_deny() {
    let harness = Harness::start(1).await;
    let policy = harness.home.path("policy.toml");
    std::fs::write(&policy, "[[rules]]\ndeny = \"builtin:docker/service\"\nreason = \"no services\"\n").unwrap();
    let settings = format!("[runners.steps]\npolicy = \"{}\"\n", policy.display());
    let Some(engine) = harness.configure_docker(&settings) else { return };
    let run = harness.run();
    let image = json!({ "name": IMAGE });
    harness.push_container_job(5, &["echo runs"], &json!({ "image": image, "services": [image] }));
    let refused = harness.wait_for_end(0, 5).await;
    let text = refused.text();
    let step =
        format!("step \"service {IMAGE}\": the step policy of the runner does not allow `builtin:docker/service`");
    assert!(text.contains(&step) && text.contains("policy.toml:2 (no services)"), "{text}");
    assert!(!text.contains("Starting service") && !text.contains("\nruns\n"), "{text}");
    assert_eq!(refused.updates.last().unwrap().failure_reason.as_deref(), Some("runner_configuration_error"), "{text}");
    assert_eq!(objects_left(engine, 5), "");
    harness.push_container_job(6, &["echo runs"], &json!({ "image": image }));
    let job = harness.wait_for_end(0, 6).await;
    assert!(job.text().contains("\nruns\n") && job.text().contains("Job succeeded"), "{}", job.text());
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}
