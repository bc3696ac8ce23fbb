use super::*;

#[test]
fn image_of_job_overrides_image_of_runner() {
    let more = json!({ "image": { "name": "node:$V" }, "variables": [{ "key": "V", "value": "22" }] });
    let (container, job) = lowered(|_| (), more);
    assert_eq!(container.build.image.name, "node:22");
    assert_eq!(container.lines, [LogLine::Plain("Using Docker executor with image node:22 ...".to_owned())]);
    assert_eq!(value(&job, "CI_JOB_IMAGE").unwrap(), "node:22");
    let error = refused(|docker| docker.image.clear(), json!({}));
    assert_eq!(error, "runner_configuration_error: no Docker image specified to run the build in");
}

#[test]
fn images_that_the_runner_does_not_allow_are_refused() {
    let patterns = texts(&["ruby:*", "registry.example/**"]);
    let allow = |docker: &mut DockerSettings| docker.allowed_images = patterns.clone();
    let image = |name: &str| json!({ "image": { "name": name } });
    for allowed in ["ruby:3", "registry.example/group/image:1", "alpine:3"] {
        assert_eq!(container(allow, image(allowed)).build.image.name, allowed);
    }
    insta::assert_snapshot!(refused(allow, image("group/ruby:3")));
    let allowed = |docker: &mut DockerSettings| {
        docker.allowed_services = texts(&["postgres:*"]);
        docker.services = vec![DockerService { name: "redis:7".to_owned(), ..DockerService::default() }];
    };
    let service = |name: &str| json!({ "services": [{ "name": name }] });
    assert_eq!(services(allowed, service("postgres:16")).len(), 2);
    assert_eq!(services(allowed, service("redis:7")).len(), 2, "the runner's own services are allowed");
    insta::assert_snapshot!(refused(allowed, service("mysql")));
}

#[test]
fn pull_policies_of_job_are_limited_by_the_runner() {
    let of_job = |policies: &[&str]| json!({ "image": { "name": "a", "pull_policy": policies } });
    let policies = |change: fn(&mut DockerSettings), more| container(change, more).build.image.pull_policies;
    assert_eq!(policies(|_| (), json!({})), ["always"]);
    let two: fn(&mut DockerSettings) = |docker| docker.pull_policy = texts(&["always", "if-not-present"]);
    assert_eq!(policies(two, json!({})), ["always", "if-not-present"]);
    assert_eq!(policies(two, of_job(&["if-not-present"])), ["if-not-present"]);
    assert_eq!(policies(two, of_job(&["never", "always"])), ["always"]);
    let errors = [
        refused(|_| (), of_job(&["never"])),
        refused(two, of_job(&["never"])),
        refused(|docker| docker.allowed_pull_policies = texts(&["never"]), json!({})),
        refused(
            |docker| (docker.pull_policy, docker.allowed_pull_policies) = (texts(&["always"]), texts(&["never"])),
            json!({}),
        ),
    ];
    insta::assert_json_snapshot!(errors);
}

#[test]
fn platform_and_user_of_the_job_are_used() {
    let more = json!({
        "image": { "name": "a", "executor_opts": { "docker": { "platform": "linux/$ARCH", "user": "1000:1000" } } },
        "variables": [{ "key": "ARCH", "value": "arm64" }],
        "services": [{ "name": "b", "executor_opts": { "docker": { "user": "postgres" } } }],
    });
    let (container, job) = lowered(|_| (), more);
    assert_eq!((container.build.image.platform.as_str(), container.build.user.as_str()), ("linux/arm64", "1000:1000"));
    assert_eq!(services_of(&job)[0].container.user, "postgres");
}

#[test]
fn user_of_job_must_be_allowed_and_user_of_runner_takes_precedence() {
    let of_job = json!({ "image": { "name": "a", "executor_opts": { "docker": { "user": "root" } } } });
    let user = |change: fn(&mut DockerSettings)| container(change, of_job.clone()).build.user;
    assert_eq!(user(|docker| docker.user = "1000".to_owned()), "1000");
    assert_eq!(user(|docker| docker.allowed_users = texts(&["root"])), "root");
    let error = refused(|docker| docker.allowed_users = texts(&["1000", "ci"]), of_job.clone());
    assert_eq!(error, "runner_system_failure: user \"root\" is not an allowed user: [1000 ci]");
    assert_eq!(
        container(|docker| docker.allowed_users = texts(&["ci"]), json!({})).build.user,
        "",
        "the container has the user of the image"
    );
}

#[test]
fn entrypoint_of_job_can_be_disabled() {
    let more = json!({
        "image": { "name": "a", "entrypoint": [""] },
        "services": [{ "name": "b", "entrypoint": ["/start"], "command": ["run", "$X"] }],
    });
    let (container, job) = lowered(|_| (), more.clone());
    assert_eq!(container.build.entrypoint, Some(texts(&[""])));
    let service = &services_of(&job)[0].container;
    assert_eq!((&service.entrypoint, &service.command), (&Some(texts(&["/start"])), &Some(texts(&["run", "$X"]))));
    let (container, job) = lowered(|docker| docker.disable_entrypoint_overwrite = true, more);
    assert_eq!((container.build.entrypoint, &services_of(&job)[0].container.entrypoint), (None, &None));
    assert_eq!(job.plan.warnings, ["Entrypoint override disabled", "Entrypoint override disabled"]);
}

#[test]
fn credentials_have_the_order_of_gitlab_runner() {
    let more = json!({
        "variables": [{ "key": "DOCKER_AUTH_CONFIG", "value": "{\"auths\":{\"one.example\":{\"auth\":\"dTpw\"}}}" }],
        "credentials": [
            { "type": "registry", "url": "registry.gitlab.example:443", "username": "gitlab-ci-token", "password": "t" },
            { "type": "other", "url": "x" },
        ],
    });
    let mut context = context_with(|_| ());
    let content = Ok("{\"auths\":{\"two.example\":{\"auth\":\"dTpw\"}}}".to_owned());
    context.docker.auth_file = Some(AuthFile { path: "/root/.docker/config.json".to_owned(), content });
    let job = lower(&payload(more.clone()), &context).unwrap();
    let order: Vec<String> =
        inside(&job).0.credentials.iter().map(|entry| format!("{} of {}", entry.registry, entry.source)).collect();
    let expected = [
        "one.example of $DOCKER_AUTH_CONFIG",
        "two.example of /root/.docker/config.json",
        "registry.gitlab.example:443 of job payload (GitLab Registry)",
    ];
    assert_eq!(order, expected);
    let content = Err("permission denied".to_owned());
    context.docker.auth_file = Some(AuthFile { path: "/root/.dockercfg".to_owned(), content });
    let job = lower(&payload(more), &context).unwrap();
    assert_eq!(job.plan.warnings, ["registry credentials of /root/.dockercfg are not used: permission denied"]);
    assert_eq!(inside(&job).0.credentials.len(), 2);
    let evil = variables(&[("DOCKER_AUTH_CONFIG", "{\"credsStore\":\"../evil\"}")]);
    assert!(refused(|_| (), evil).contains("\"../evil\" is not a valid name of a credential helper"));
}
