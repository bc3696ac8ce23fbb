use std::time::Duration;

use muster_agent_api::builtin::{Checkout, DockerContainer, GitMirror, Inputs};
use muster_agent_api::plan::{Call, Step};
use muster_config::settings::{DockerSettings, GitMirrorSettings};
use serde_json::{Value, json};

use super::super::*;
use super::{context, payload, runner};

fn lowered(change: impl FnOnce(&mut RunnerSettings), extra: Value) -> Vec<Step> {
    let git_mirror = GitMirrorSettings { enabled: true, dir: None, max_age: Duration::from_secs(60) };
    let mut runner = RunnerSettings { git_mirror, ..runner() };
    change(&mut runner);
    let directories = Directories { builds: "/srv/builds".into(), cache: "/srv/cache".into(), shared: true };
    let context = JobContext { runner: Arc::new(runner), directories, ..context() };
    lower(&payload(extra), &context).unwrap().plan.steps
}

fn inputs<T: Inputs>(steps: &[Step]) -> Option<T> {
    steps.iter().find_map(|step| match &step.call {
        Call::Builtin { name, inputs } if name == T::BUILTIN => serde_json::from_value(inputs.clone()).ok(),
        _ => None,
    })
}

fn docker(host: &str) -> impl FnOnce(&mut RunnerSettings) {
    let host = host.to_owned();
    move |runner| {
        "docker".clone_into(&mut runner.executor);
        runner.docker =
            Some(Box::new(DockerSettings { host, image: "alpine".to_owned(), ..DockerSettings::default() }));
    }
}

#[test]
fn job_on_the_host_reads_the_view_of_its_repository() {
    let steps = lowered(|_| (), json!({}));
    let mirror: GitMirror = inputs(&steps).unwrap();
    assert_eq!((mirror.root.as_str(), mirror.view.as_str(), mirror.max_age_s), ("/srv/git-mirrors", "42", 60));
    assert!(mirror.name.starts_with("5-") && mirror.tags, "{}", mirror.name);
    assert_eq!(inputs::<Checkout>(&steps).unwrap().mirror, Some(mirror.view_dir()));
    let position = |name: &str| steps.iter().position(|step| step.name == name).unwrap();
    assert!(position("git_mirror") < position("get_sources"));
    let elsewhere = lowered(|runner| runner.git_mirror.dir = Some("/other".into()), json!({}));
    assert_eq!(inputs::<GitMirror>(&elsewhere).unwrap().root, "/other");
}

#[test]
fn name_of_a_mirror_depends_on_project_and_url_but_not_on_credentials() {
    let name = |url: &str, project: i64| {
        let git =
            json!({ "repo_url": url, "ref": "main", "sha": "0123", "refspecs": ["+refs/heads/main:refs/heads/main"] });
        let job = json!({ "name": "job", "project_id": project });
        inputs::<GitMirror>(&lowered(|_| (), json!({ "git_info": git, "job_info": job }))).unwrap().name
    };
    let first = name("https://gitlab-ci-token:one@gitlab.example/g/p.git", 5);
    assert_eq!(first, name("https://gitlab-ci-token:two@gitlab.example/g/p.git", 5));
    assert_ne!(first, name("https://gitlab.example/g/p.git", 6));
    assert_ne!(first, name("https://other.example/g/p.git", 5));
}

#[test]
fn container_has_only_the_view_and_cannot_write_to_it() {
    let steps = lowered(docker(""), json!({}));
    let mirror: GitMirror = inputs(&steps).unwrap();
    assert_eq!(mirror.root, "/srv/git-mirrors", "the directory is on the machine, not in the container");
    let (container, inside) = steps
        .iter()
        .find_map(|step| match &step.call {
            Call::Delegate { inputs, steps, .. } => Some((inputs.clone(), steps)),
            _ => None,
        })
        .unwrap();
    let container: DockerContainer = serde_json::from_value(container).unwrap();
    let volume = container.volumes.iter().find(|volume| volume.source == mirror.view_dir()).unwrap();
    assert_eq!((volume.destination.as_str(), volume.mode.as_str()), ("/.muster-git-mirror", "ro"));
    assert_eq!(inputs::<Checkout>(inside).unwrap().mirror.as_deref(), Some("/.muster-git-mirror"));
    assert!(inputs::<GitMirror>(inside).is_none());
}

#[test]
fn mirror_leaves_half_of_the_time_for_the_checkout() {
    let timeouts = |change: fn(&mut RunnerSettings)| {
        let steps = lowered(change, json!({}));
        let timeout = |name: &str| steps.iter().find(|step| step.name == name).unwrap().policy.timeout_ms;
        (timeout("git_mirror"), timeout("get_sources"))
    };
    assert_eq!(timeouts(|runner| runner.get_sources_timeout = Some(Duration::from_secs(60))), (30_000, 60_000));
    assert_eq!(timeouts(|_| ()), (1_800_000, 0), "the timeout of the job is an hour");
}

#[test]
fn jobs_without_mirror_use_the_server() {
    let without = |steps: &[Step]| inputs::<GitMirror>(steps).is_none();
    assert!(without(&lowered(|runner| runner.git_mirror.enabled = false, json!({}))));
    assert!(without(&lowered(docker("tcp://docker.example:2376"), json!({}))));
    assert!(without(&lowered(|_| (), super::variables(&[("GIT_STRATEGY", "none")]))));
    let ssh = json!({ "repo_url": "git@gitlab.example:g/p.git", "ref": "main", "sha": "0123", "refspecs": [] });
    assert!(without(&lowered(|_| (), json!({ "git_info": ssh }))));
}
