use std::time::Duration;

use muster_agent_api::builtin::ResourceShare;
use muster_executor::{SlotShare, StickyContextSettings};

use super::*;

/// Returns the share of a job in slot 3 of an instance with two slots.
fn shared() -> SlotShare {
    let sticky = StickyContextSettings {
        root: "/home/ci/.muster/contexts".into(),
        max_size_bytes: 9,
        max_age: Duration::from_secs(8),
    };
    SlotShare {
        slot: 3,
        slots: 2,
        memory_bytes: 7,
        measured: false,
        sticky: Some(sticky),
        is_exclusive: false,
        shares_host: false,
    }
}

fn lowered_on(share: SlotShare, change: impl FnOnce(&mut RunnerSettings), extra: Value) -> LoweredJob {
    let mut runner = runner();
    change(&mut runner);
    let context = JobContext { runner: Arc::new(runner), share: Some(share), ..context() };
    lower(&payload(extra), &context).unwrap()
}

fn share_of(job: &LoweredJob) -> &ResourceShare {
    job.plan.share.as_ref().unwrap()
}

#[test]
fn workspace_is_named_by_slot_of_instance() {
    let job = lowered_on(shared(), |_| {}, json!({}));
    assert_eq!(job.plan.project_dir, "/builds/shorttoke/3/group/project");
    assert_eq!(
        value(&job, "CI_CONCURRENT_PROJECT_ID").unwrap(),
        "1",
        "the variable counts jobs of the project on all instances"
    );
    assert_eq!((share_of(&job).slots, share_of(&job).memory_bytes, share_of(&job).measure), (2, 7, true));
    assert_eq!(lower(&payload(json!({})), &context()).unwrap().plan.share, None, "a job on this host has no share");
}

#[test]
fn slot_cgroup_follows_template() {
    let job = lowered_on(shared(), |_| {}, json!({}));
    assert_eq!((share_of(&job).cgroup.as_str(), value(&job, "GITLAB_RUNNER_SLOT_CGROUP")), ("", None));
    let job = lowered_on(shared(), |runner| runner.use_slot_cgroups = true, json!({}));
    assert_eq!(share_of(&job).cgroup, "gitlab-runner/slot-3");
    assert_eq!(value(&job, "GITLAB_RUNNER_SLOT_CGROUP").unwrap(), "gitlab-runner/slot-3");
    let own = |runner: &mut RunnerSettings| {
        runner.use_slot_cgroups = true;
        runner.slot_cgroup_template = Some("ci/$slot/${other}x".to_owned());
    };
    assert_eq!(share_of(&lowered_on(shared(), own, json!({}))).cgroup, "ci/3/x");
    let measured = SlotShare { measured: true, ..shared() };
    assert_eq!(share_of(&lowered_on(measured, |_| {}, json!({}))).cgroup, "gitlab-runner/slot-3");
}

#[test]
fn sticky_context_depends_on_runner_project_and_protection() {
    let name = |change: fn(&mut RunnerSettings), project: i64, protected: Value, extra: Value| {
        let mut all = variables(&[]);
        all["job_info"] = json!({ "project_id": project, "name": "build" });
        all["git_info"] = json!({ "repo_url": "https://gitlab.example/group/project.git", "protected": protected });
        if extra.is_array() {
            all["variables"] = extra;
        }
        let job = lowered_on(shared(), change, all);
        share_of(&job).context.clone().map(|context| context.name)
    };
    let none = || Value::Null;
    let one = name(|_| {}, 5, json!(true), none()).unwrap();
    assert!(one.ends_with("-5-protected"), "{one}");
    let other_runner = |runner: &mut RunnerSettings| {
        runner.key = RunnerSettings::new(runner.url.clone(), Secret::new("other"), 99).key;
    };
    assert_ne!(name(other_runner, 5, json!(true), none()).unwrap(), one);
    assert!(name(|_| {}, 6, json!(true), none()).unwrap().ends_with("-6-protected"));
    assert!(name(|_| {}, 5, json!(false), none()).unwrap().ends_with("-5-unprotected"));
    // The payload of older servers has no field. The first variable of this name is from the server.
    let protected_variables = |values: &[&str]| {
        Value::Array(values.iter().map(|value| json!({ "key": "CI_COMMIT_REF_PROTECTED", "value": value })).collect())
    };
    assert!(name(|_| {}, 5, none(), protected_variables(&["true"])).unwrap().ends_with("-5-protected"));
    assert!(name(|_| {}, 5, none(), protected_variables(&["false", "true"])).unwrap().ends_with("-5-unprotected"));
    // The protection level is unknown, so the job gets no context.
    for unknown in [none(), protected_variables(&["perhaps"])] {
        assert_eq!(name(|_| {}, 5, none(), unknown), None);
    }
    // Variables of the job do not override the server's fields.
    let claims =
        json!([{ "key": "CI_COMMIT_REF_PROTECTED", "value": "true" }, { "key": "CI_PROJECT_ID", "value": "6" }]);
    assert!(name(|_| {}, 5, json!(false), claims).unwrap().ends_with("-5-unprotected"));
    let without = json!([{ "key": "MUSTER_STICKY_CONTEXT", "value": "false" }]);
    assert_eq!(name(|_| {}, 5, json!(true), without), None);
}

#[test]
fn job_requests_resources_by_variables() {
    let requested = |all: &[(&str, &str)]| {
        let request = environment_request(&payload(variables(all)), &runner()).unwrap();
        (request.cpu_milli, request.memory_bytes)
    };
    assert_eq!(requested(&[]), (None, None));
    assert_eq!(
        requested(&[("MUSTER_CPU_REQUEST", "1.5"), ("MUSTER_MEMORY_REQUEST", "2g")]),
        (Some(1500), Some(2 << 30))
    );
    let kubernetes = [("KUBERNETES_CPU_REQUEST", "500m"), ("KUBERNETES_MEMORY_REQUEST", "64Mi")];
    assert_eq!(requested(&kubernetes), (Some(500), Some(64 << 20)));
    assert_eq!(requested(&[kubernetes[0], ("MUSTER_CPU_REQUEST", "3")]), (Some(3000), None));
    let invalid = variables(&[("MUSTER_CPU_REQUEST", "many")]);
    assert_eq!(environment_request(&payload(invalid.clone()), &runner()).unwrap().cpu_milli, None);
    let warnings = lowered_on(shared(), |_| {}, invalid.clone()).plan.warnings;
    assert!(
        warnings.iter().any(|warning| warning.starts_with("MUSTER_CPU_REQUEST `many` is not a valid quantity")),
        "{warnings:?}"
    );
    assert_eq!(lower(&payload(invalid), &context()).unwrap().plan.warnings, Vec::<String>::new());
}

fn isolated(runner: &mut RunnerSettings) {
    runner.on_instances.image = "macos-$VERSION".to_owned();
    runner.environment = vec![muster_job::Variable::public("VERSION", "14")];
}

#[test]
fn vm_image_of_job_overrides_vm_image_of_runner() {
    let with = |change: &dyn Fn(&mut RunnerSettings), extra: Value| {
        let mut runner = runner();
        change(&mut runner);
        environment_request(&payload(extra), &runner).unwrap().image
    };
    let image = |name: &str, is_of_job| Ok(muster_executor::VmImage { name: name.to_owned(), is_of_job });
    assert_eq!(with(&|_| {}, json!({ "image": { "name": "ubuntu" } })), image("ubuntu", true));
    assert_eq!(with(&isolated, json!({})), image("macos-14", false));
    assert_eq!(with(&isolated, json!({ "image": { "name": "" } })), image("macos-14", false));
    assert_eq!(with(&isolated, json!({ "image": { "name": "ubuntu" } })), image("ubuntu", true));
    let mut own = variables(&[("VERSION", "$MAJOR"), ("MAJOR", "15")]);
    own["image"] = json!({ "name": "macos-$VERSION-xcode" });
    assert_eq!(
        with(&isolated, own),
        image("macos-15-xcode", true),
        "references in the job's variables are expanded, too"
    );
    let none = |runner: &mut RunnerSettings| {
        isolated(runner);
        runner.on_instances.image = "$UNSET".to_owned();
    };
    let error = with(&none, json!({})).unwrap_err();
    assert!(error.contains("no nesting VM image") && error.contains("[runners.autoscaler.vm_isolation]"), "{error}");
}

#[test]
fn disallowed_vm_image_is_refused() {
    let with = |allowed: &[&str], name: &str| {
        let mut runner = runner();
        isolated(&mut runner);
        runner.on_instances.allowed_images = allowed.iter().map(|pattern| (*pattern).to_owned()).collect();
        let mut extra = variables(&[("NAME", "secret/other")]);
        extra["image"] = json!({ "name": name });
        environment_request(&payload(extra), &runner).unwrap().image.map(|image| image.name)
    };
    assert_eq!(with(&[], "any/thing"), Ok("any/thing".to_owned()));
    assert_eq!(with(&["ubuntu-*", "team/**"], "ubuntu-24.04"), Ok("ubuntu-24.04".to_owned()));
    assert_eq!(with(&["team/**"], "team/a/b"), Ok("team/a/b".to_owned()));
    for (pattern, name) in [("ubuntu-*", "ubuntu-1/2"), ("*", "team/a"), ("ubuntu", "macos"), ("$NAME", "$NAME")] {
        let error = with(&[pattern], name).unwrap_err();
        assert!(error.starts_with("disallowed image: "), "{pattern} {name}: {error}");
        assert!(error.contains(&format!("({pattern})")) && error.contains("[runners.instance]"), "{error}");
    }
    assert_eq!(with(&["ubuntu"], ""), Ok("macos-14".to_owned()), "the runner's own image is always allowed");
}

#[test]
fn use_common_build_dir_applies_only_to_jobs_with_a_machine_of_their_own() {
    let with = |is_exclusive| {
        let share = SlotShare { is_exclusive, ..shared() };
        lowered_on(share, |runner| runner.on_instances.use_common_build_dir = true, json!({}))
    };
    let common = with(true);
    assert_eq!(
        (common.plan.project_dir.as_str(), common.plan.warnings.as_slice()),
        ("/builds/group/project", [].as_slice())
    );
    let ignored = with(false);
    assert_eq!(ignored.plan.project_dir, "/builds/shorttoke/3/group/project");
    assert_eq!(
        ignored.plan.warnings,
        ["use_common_build_dir has no effect: requires vm isolation or max_use_count = 1"]
    );
}
