//! `muster ci run` with jobs in containers of a real Docker Engine.

use std::process::Command;

use muster_test_prerequisites::{DockerEngine, shellless_root};

use super::{CommandOutput, Project};

/// Image of the tests: busybox, without git.
const IMAGE: &str = "muster-test/ci-busybox:1";

fn ci(project: &Project, engine: &str, arguments: &[&str]) -> CommandOutput {
    CommandOutput::from(project.command(arguments).env("DOCKER_HOST", engine).output().unwrap())
}

/// Returns the URL of an engine that has the image, if the machine has an engine.
fn engine() -> Option<String> {
    let engine = DockerEngine::shared()?;
    engine.create_image(IMAGE, &[]).then(|| engine.url())
}

#[test]
fn job_with_an_image_runs_in_a_container_and_all_others_on_this_machine() {
    let Some(engine) = engine() else { return };
    let project = Project::new(&format!(
        "inside:\n  image: {IMAGE}\n  variables: {{GIT_STRATEGY: empty}}\n  script:\n    - cat /proc/1/cmdline | tr '\\0' ' '\n    \
         - wget -q -O - $CI_SERVER_URL/no/such/page || echo answered\n    - mkdir out && echo content > out/file\n  artifacts: {{paths: [out]}}\n\
         outside:\n  stage: deploy\n  script: ['cat out/file', 'git log -1 --format=%s']\n"
    ));
    let output = ci(&project, &engine, &["run", "--log", "all"]).code(0);
    output.warns("jobs with `image:` run in containers of unix://");
    output
        .prints("Using Docker executor with image muster-test/ci-busybox:1")
        .prints("/.muster/muster-agent agent container");
    output.prints("404").prints("answered").prints("content").prints("First commit");
}

#[test]
fn result_tree_lists_services_before_the_steps_of_the_job() {
    let Some(engine) = engine() else { return };
    let service = |command: &str| {
        format!(
            "{{name: {IMAGE}, alias: db, variables: {{HEALTHCHECK_TCP_PORT: 8080}}, command: [sh, -c, '{command}']}}"
        )
    };
    let project = Project::new(&format!(
        "job:\n  image: {IMAGE}\n  variables: {{GIT_STRATEGY: empty}}\n  services:\n    - {}\n    - {}\n  script: [echo ran]\n",
        service("exec httpd -f -p 8080"),
        service("echo no disk; exit 3")
    ));
    ci(&project, &engine, &["run", "--log", "all"]).code(0).prints("Starting service").prints("ran");
    let shown = ci(&project, &engine, &["show", "last", "job", "--results"]).code(0);
    let tree: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    let steps = &tree["steps"][0]["steps"];
    for (index, status) in ["success", "failure"].iter().enumerate() {
        let step = &steps[index];
        assert_eq!(
            (&step["name"], &step["status"]),
            (&format!("service {IMAGE}").into(), &(*status).into()),
            "{tree:#}"
        );
        let call = &step["call"];
        assert_eq!((&call["step"], &call["inputs"]["image"]), (&"builtin:docker/service".into(), &IMAGE.into()));
    }
    assert!(steps[0]["call"]["inputs"]["aliases"].as_array().unwrap().contains(&"db".into()), "{tree:#}");
    assert_eq!(steps[1]["exit_code"], 3, "{tree:#}");
    assert!(steps[1]["message"].as_str().unwrap().contains("no disk"), "{tree:#}");
    let script = steps.as_array().unwrap().iter().position(|step| step["name"] == "step_script");
    assert!(script.is_some_and(|position| position > 1), "{tree:#}");
}

#[test]
fn only_the_volumes_of_caches_are_kept_after_a_run() {
    let Some(engine) = engine() else { return };
    let project = Project::new(&format!(
        "job:\n  image: {IMAGE}\n  variables: {{GIT_STRATEGY: empty}}\n  cache: {{key: k, paths: [kept]}}\n  script:\n    - cat kept/file || echo first\n    \
         - mkdir -p kept && echo again > kept/file\n    - echo project=$CI_PROJECT_ID\n"
    ));
    ci(&project, &engine, &["run", "--log", "all"]).code(0).prints("first");
    let second = ci(&project, &engine, &["run", "--log", "all"]).code(0);
    let id =
        second.prints("again").out.split("project=").last().and_then(|rest| rest.lines().next().map(str::to_owned));
    let (_, list) = DockerEngine::shared().unwrap().call("GET", "/volumes", &[]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let of_project = |volume: &&serde_json::Value| {
        volume["Labels"]["com.gitlab.gitlab-runner.project.id"].as_str().map(str::trim) == id.as_deref().map(str::trim)
    };
    let names: Vec<_> =
        list["Volumes"].as_array().unwrap().iter().filter(of_project).map(|volume| &volume["Name"]).collect();
    assert!(names.len() == 1 && names[0].as_str().unwrap().starts_with("muster-ci-cache-"), "{id:?}: {names:?}");
}

#[test]
fn sources_are_checked_out_in_an_image_without_git() {
    let Some(engine) = engine() else { return };
    let project = Project::new("job: {script: ['! command -v git', cat new-file]}\n");
    project.write("new-file", "not committed yet\n");
    let arguments = ["run", "--executor", "docker", "--image", IMAGE, "--log", "all"];
    let output = ci(&project, &engine, &arguments).code(0);
    output.prints("as detached HEAD").prints("not committed yet");
    output.warns("jobs run in containers of unix://");
}

#[test]
fn steps_of_a_repository_run_in_an_image_without_a_shell() {
    const NO_SHELL: &str = "muster-test/ci-shellless:1";
    let (Some(engine), Some(root)) = (engine(), shellless_root()) else { return };
    DockerEngine::shared().unwrap().import_image(NO_SHELL, &root, &["USER 1000"]);
    let project = Project::new(&format!(
        "steps:\n  image: {NO_SHELL}\n  run: [{{name: who, step: ./who}}, {{name: make, step: ./make}}]\n  artifacts: {{paths: [made]}}\n\
         script:\n  image: {NO_SHELL}\n  needs: []\n  allow_failure: true\n  script: [echo never]\n\
         outside: {{stage: deploy, needs: [steps], script: [ls -l made]}}\n"
    ));
    project.write("who/step.yml", "spec: {}\n---\nexec: {command: [/usr/bin/id, -u]}\n");
    project.write("make/step.yml", "spec: {}\n---\nexec: {command: [touch, made]}\n");
    let output = ci(&project, &engine, &["run", "--log", "all"]).code(0);
    output.prints("1000").prints("made");
    output
        .prints("shell not found: the image muster-test/ci-shellless:1 has no `bash` or `sh`")
        .lacks("this machine has");
}

#[test]
fn sources_are_fetched_from_this_machine() {
    let Some(image) = image_with_git() else { return };
    let project =
        Project::new(&format!("job:\n  image: {image}\n  script: ['git log -1 --format=%s', 'cat new-file']\n"));
    project.write("new-file", "not committed yet\n");
    let engine = DockerEngine::shared().map(DockerEngine::url).unwrap();
    let output = ci(&project, &engine, &["run", "--log", "all"]).code(0);
    output.prints("Fetching changes").prints("not committed yet");
}

/// Returns an image with this machine's git, if the machine has an engine.
fn image_with_git() -> Option<&'static str> {
    const NAME: &str = "muster-test/ci-git";
    engine()?;
    let docker = DockerEngine::shared()?;
    let command = "set -e; core=$(git --exec-path); files=\"$(command -v git) $core/git-remote-http\"; \
                   tar -chf - $files $(ldd $files | grep -o '/[^ :]*\\.so[^ ]*' | sort -u)";
    let archive = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(archive.status.success(), "{}", String::from_utf8_lossy(&archive.stderr));
    let call = |method: &str, path: &str, body: &[u8]| {
        let (status, answer) = docker.call(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    };
    call(
        "POST",
        "/containers/create?name=ci-git",
        format!("{{\"Image\": \"{IMAGE}\", \"Cmd\": [\"true\"]}}").as_bytes(),
    );
    call("PUT", "/containers/ci-git/archive?path=/", &archive.stdout);
    call("POST", &format!("/commit?container=ci-git&repo={NAME}&tag=1"), b"{}");
    call("DELETE", "/containers/ci-git", b"");
    Some("muster-test/ci-git:1")
}

#[test]
fn missing_engine_is_an_error_only_if_containers_were_requested() {
    let project = Project::new("job: {image: busybox, variables: {GIT_STRATEGY: none}, script: ['echo ran here']}\n");
    let nowhere = "unix:///no/such/docker.sock";
    ci(&project, nowhere, &["run", "--executor", "docker"])
        .code(2)
        .warns("/no/such/docker.sock")
        .warns("--executor host");
    let fallback = ci(&project, nowhere, &["run", "--log", "all"]).code(0);
    fallback.warns("`image:` of job `job` is ignored").warns("/no/such/docker.sock");
    fallback.prints("ran here");
    ci(&project, "ssh://engine.example", &["run", "--executor", "docker"])
        .code(2)
        .warns("not a socket of this machine");
}

#[test]
fn docker_executor_requires_a_default_image_for_a_job_without_an_image() {
    let project = Project::new("job: {script: ['true']}\n");
    project.ci(&["run", "--executor", "docker"]).code(2).warns("job `job` has no `image:`").warns("--image");
    project.ci(&["run", "--image", "busybox"]).code(2).warns("`--image` has no effect");
}
