//! `muster ci run` on a machine whose only engine is Podman, as root and as a user without privileges.

use std::path::PathBuf;
use std::process::Command;

use muster_test_prerequisites::{DockerEngine, PodmanUser};
use serde_json::Value;

use super::{CommandOutput, Project};

const IMAGE: &str = "muster-test/ci-podman:1";
/// [`IMAGE`] with another user than root.
const USER_IMAGE: &str = "muster-test/ci-podman-user:1";

/// Runs `muster ci` as the user of a Podman service, without a variable that names the engine.
fn ci(project: &Project, podman: &DockerEngine, user: PodmanUser, arguments: &[&str]) -> CommandOutput {
    let plain = project.command(arguments);
    let mut command = podman.podman_user_command(user, &project.path(), &executable(podman));
    command.args(plain.get_args()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("XDG_RUNTIME_DIR", podman.dir().join("run"));
    CommandOutput::from(command.output().unwrap())
}

/// Returns a path of the executable that every user can reach.
fn executable(podman: &DockerEngine) -> PathBuf {
    let (built, reachable) = (assert_cmd::cargo::cargo_bin!("muster"), podman.dir().join("muster"));
    if !reachable.exists() && std::fs::hard_link(built, &reachable).is_err() {
        muster_test_prerequisites::copy_program(built, &reachable);
    }
    reachable
}

/// Returns the containers, networks and volumes that jobs left at the engine.
///
/// Omits the engine's own networks and the volume with the agent.
fn objects(podman: &DockerEngine) -> Vec<String> {
    let mut names = Vec::new();
    for (path, list, name) in
        [("/containers/json?all=1", "", "Id"), ("/networks", "", "Name"), ("/volumes", "/Volumes", "Name")]
    {
        let answer: Value = serde_json::from_str(&podman.call("GET", path, &[]).1).unwrap();
        let found = answer.pointer(list).and_then(Value::as_array).cloned().unwrap_or_default();
        names.extend(found.iter().filter_map(|object| object[name].as_str()).map(str::to_owned));
    }
    names.retain(|name| {
        !matches!(name.as_str(), "bridge" | "podman" | "host" | "none") && !name.starts_with("muster-agent-")
    });
    names
}

fn jobs_run_on_podman(user: PodmanUser) {
    let Some(podman) = DockerEngine::shared_podman(user) else { return };
    if !podman.create_image(IMAGE, &[]) || !podman.create_image(USER_IMAGE, &["USER 1000"]) {
        return;
    }
    let project = Project::new(&format!(
        "build:\n  stage: build\n  image: {IMAGE}\n  cache: {{key: k, paths: [kept]}}\n  script:\n    - cat kept/file || echo first\n    \
         - mkdir -p kept out && echo again > kept/file && echo content > out/file\n  artifacts: {{paths: [out]}}\n\
         use:\n  image: {USER_IMAGE}\n  services: [{{name: {IMAGE}, alias: web, command: [nc, -ll, -p, '80', -e, echo, served], \
         variables: {{HEALTHCHECK_TCP_PORT: '80'}}}}]\n  script: ['cat out/file', 'echo \"user $(id -u) has $(nc web 80 </dev/null)\"']\n\
         network:\n  image: {IMAGE}\n  variables: {{FF_NETWORK_PER_BUILD: 'true'}}\n  services: [{{name: {IMAGE}, alias: web, \
         command: [nc, -ll, -p, '80', -e, echo, resolved], variables: {{HEALTHCHECK_TCP_PORT: '80'}}}}]\n  script: [nc web 80 </dev/null]\n\
         fails:\n  image: {IMAGE}\n  allow_failure: true\n  script: [exit 7]\n"
    ));
    let directory = project.path().parent().unwrap().to_owned();
    let owner = format!("{0}:{0}", user.id());
    assert!(Command::new("chown").args(["-R", &owner]).arg(directory).status().unwrap().success());
    let first = ci(&project, podman, user, &["run", "--log", "all"]).code(0);
    first.warns(&format!("run in containers of {}", podman.url()));
    first.prints("first").prints("content").prints("user 1000 has served").prints("resolved").prints("exit code 7");
    let second = ci(&project, podman, user, &["run", "--log", "all", "build"]).code(0);
    second.prints("again");
    let left = objects(podman);
    assert!(left.len() == 1 && left[0].starts_with("muster-ci-cache-"), "only the cache must be kept: {left:?}");
}

#[test]
fn jobs_run_on_podman_of_root() {
    jobs_run_on_podman(PodmanUser::Root);
}

#[test]
fn jobs_run_on_podman_of_a_user_without_privileges() {
    jobs_run_on_podman(PodmanUser::Unprivileged);
}
