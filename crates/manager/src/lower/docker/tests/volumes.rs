use super::*;

#[test]
fn checkouts_on_the_engine_machine_are_separate_for_each_slot() {
    let (container, job) = lowered(|docker| docker.volumes = texts(&["/srv/ci:/builds"]), json!({}));
    assert_eq!(container.project_dir, "/builds/shorttoke/1/group/project");
    assert_eq!(value(&job, "CI_SHARED_ENVIRONMENT"), None);
    let sources: Vec<&str> = container.volumes.iter().map(|volume| volume.source.as_str()).collect();
    assert_eq!(sources, ["/srv/ci"], "no other volume is mounted at `/builds`");
    assert!(!container.directories.contains(&"/builds".to_owned()), "the operator sets its permissions");
    assert!(container.directories.contains(&"/builds/shorttoke".to_owned()));
}

#[test]
fn checkouts_in_a_named_volume_are_separate_for_each_slot() {
    let container = container(|docker| docker.volumes = texts(&["ci-builds:/builds"]), json!({}));
    assert_eq!(container.project_dir, "/builds/shorttoke/1/group/project");
    let sources: Vec<&str> = container.volumes.iter().map(|volume| volume.source.as_str()).collect();
    assert_eq!(sources, ["ci-builds"]);
}

fn volumes(change: impl FnOnce(&mut DockerSettings), more: Value) -> Vec<(String, String, bool)> {
    let shown = |volume: &DockerVolume| {
        let DockerVolume { source, destination, mode, temporary, .. } = volume;
        (source.clone(), format!("{destination}:{mode}"), *temporary)
    };
    container(change, more).volumes.iter().map(shown).collect()
}

/// MD5 of `/builds`.
const BUILDS: &str = "c33bcaa1fd2c77edfc3893b41966cea8";
/// MD5 of `/cache`.
const CACHE: &str = "3c3f060a0374fc8bc39395164f415a70";

#[test]
fn volumes_are_named_like_those_of_gitlab_runner() {
    let names = Names::of(&payload(json!({})), &context_with(|_| ()));
    // The digests have 32 and 16 digits.
    assert!(names.volumes.len() == "runner-".len() + 32 && names.job.len() == names.project.len() + "-".len() + 16);
    let (reused, own) = (&names.volumes, &names.job);
    let volume = |source: String, destination: &str, temporary| (source, destination.to_owned(), temporary);
    let cached = json!({ "cache": [{ "key": "k", "paths": ["x"] }] });
    assert_eq!(
        volumes(|_| (), cached.clone()),
        [
            volume(format!("{reused}-cache-{BUILDS}"), "/builds:", false),
            volume(format!("{own}-cache-{CACHE}"), "/cache:", true)
        ]
    );
    let with_cache = |docker: &mut DockerSettings| docker.volumes = texts(&["/cache"]);
    assert_eq!(volumes(with_cache, cached)[0], volume(format!("{reused}-cache-{CACHE}"), "/cache:", false));
    // A clone does not need the checkout of an earlier job.
    let clone = variables(&[("GIT_STRATEGY", "clone")]);
    assert_eq!(volumes(|_| (), clone)[0], volume(format!("{own}-cache-{BUILDS}"), "/builds:", true));
    let disabled = |docker: &mut DockerSettings| (docker.disable_cache, docker.volumes) = (true, texts(&["/cache"]));
    assert!(
        volumes(disabled, json!({}))
            .iter()
            .all(|(source, _, temporary)| *temporary && source.starts_with(own.as_str()))
    );
    let on_host = |docker: &mut DockerSettings| docker.cache_dir = "/srv/cache/".to_owned();
    assert_eq!(volumes(on_host, json!({}))[0], volume(format!("/srv/cache/{reused}/{BUILDS}"), "/builds:", false));
}

#[test]
fn environments_that_share_an_engine_share_no_volumes_at_the_same_time() {
    // Two jobs of a project run at the same time in slot 3 of two instances.
    let volumes = |shares_host: bool, engine: &str, project_slot: u32| {
        let mut context = context_with(|docker| docker.host = engine.to_owned());
        context.slot.project_slot = project_slot;
        context.share = Some(SlotShare { shares_host, ..share(3) });
        Names::of(&payload(json!({})), &context).volumes
    };
    for engine in ["", "unix:///run/docker.sock"] {
        assert_eq!(volumes(false, engine, 0), volumes(false, engine, 1), "each instance has its own engine");
        assert_ne!(volumes(true, engine, 0), volumes(true, engine, 1));
    }
    assert_ne!(volumes(false, "tcp://engine.example:2376", 0), volumes(false, "tcp://engine.example:2376", 1));
}

#[test]
fn protected_jobs_have_separate_volumes() {
    let is_protected = |more: Value| volumes(|_| (), more)[0].0.ends_with("-protected");
    let git = |protected: bool| json!({ "git_info": { "repo_url": "https://gitlab.example/a/b.git", "protected": protected } });
    assert!(is_protected(git(true)) && !is_protected(git(false)));
    let cache = |key: &str| json!([{ "key": key, "paths": ["x"] }]);
    assert!(
        is_protected(json!({ "cache": cache("k-protected") }))
            && is_protected(json!({ "cache": cache("k-Protected.") }))
    );
    // The payload states that the ref is unprotected, so the job chose the key itself.
    let mut unprotected = git(false);
    unprotected["cache"] = cache("k-protected");
    assert!(!is_protected(unprotected));
    assert!(!is_protected(json!({ "cache": [{ "key": "k-non_protected", "paths": ["x"] }] })));
}

#[test]
fn volumes_of_the_configuration_are_mounted() {
    let change = |docker: &mut DockerSettings| {
        docker.volumes = texts(&["/srv/$NAME:/data/$NAME:ro", "named:relative", "/builds/"]);
        (docker.volume_driver, docker.volume_driver_ops) =
            ("nfs".to_owned(), [("o".to_owned(), "rw".to_owned())].into());
    };
    let container = container(change, variables(&[("NAME", "one")]));
    let mounted: Vec<String> = container
        .volumes
        .iter()
        .map(|volume| format!("{} {} {} {}", volume.source, volume.destination, volume.mode, volume.driver))
        .collect();
    let reused = Names::of(&payload(json!({})), &context_with(|_| ())).volumes;
    let expected = [
        "/srv/$NAME /data/one ro ".to_owned(),
        "named /builds/group/project/relative  ".to_owned(),
        format!("{reused}-cache-{BUILDS} /builds  nfs"),
    ];
    assert_eq!(mounted, expected);
    for (volumes, reason) in [
        (&["/a:/"][..], "`/a:/` is not a valid volume: the root directory cannot be a volume"),
        (&["/a", "/b:/a"], "`/b:/a` is not a valid volume: another entry has the path /a"),
        (&["a:b:c:d"], "`a:b:c:d` is not a valid volume: write PATH, SOURCE:PATH or SOURCE:PATH:MODE"),
        (&[":/a"], "`:/a` is not a valid volume: write PATH"),
    ] {
        let error = refused(|docker| docker.volumes = texts(volumes), json!({}));
        assert!(error.starts_with("runner_configuration_error: volumes of [runners.docker]: "), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn kept_volumes_are_announced() {
    let container = container(|docker| docker.volume_keep = true, json!({}));
    assert!(container.keep_volumes);
    assert!(container.lines.iter().any(|line| matches!(line, LogLine::Warning(text) if text.contains("volume_keep"))));
}
