//! `muster step` as users run it: the real executable, and a real registry.

use std::process::Output;

use muster_test_prerequisites::DockerRegistry;

use crate::ci::Project;

const ECHO: &str = "spec:\n  inputs:\n    word: {type: string, default: hello}\n  outputs:\n    said: {type: string, default: none}\n---\n\
     exec: {command: ['${{step_dir}}/bin/say', '${{inputs.word}}']}\n";

/// Repository with a step in `echo`, and a registry.
struct Fixture {
    project: Project,
    registry: DockerRegistry,
}

impl Fixture {
    fn new() -> Option<Self> {
        let registry = DockerRegistry::start(false)?;
        let fixture = Self { project: Project::empty(), registry };
        fixture.write_echo("first");
        Some(fixture)
    }

    fn write_echo(&self, text: &str) {
        self.project.write("echo/step.yml", ECHO);
        self.project.write("echo/bin/say", &format!("#!/bin/sh\necho \"<{text} $1>\"\n"));
        let path = self.project.path().join("echo/bin/say");
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn image(&self, tag: &str) -> String {
        format!("{}/g/echo:{tag}", self.registry.host())
    }

    fn set_pipeline(&self, step: &str) {
        self.project.write(".gitlab-ci.yml", &format!("say:\n  run:\n    - {{name: say, step: '{step}'}}\n"));
        self.project.commit("pipeline");
    }

    fn pass(&self, arguments: &[&str]) -> String {
        let output = self.project.muster(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    fn fail(&self, arguments: &[&str]) -> String {
        let output = self.project.muster(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    fn lock(&self) -> String {
        std::fs::read_to_string(self.project.path().join("muster-steps.lock")).unwrap()
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn published_step_runs_in_a_local_pipeline_and_is_shown() {
    let Some(fixture) = Fixture::new() else { return };
    let image = fixture.image("1.0.0");
    let printed = fixture.pass(&["step", "publish", "echo", &image, "--description", "Says a word"]);
    assert!(printed.contains(&format!("published {image}: sha256:")), "{printed}");
    let printed = fixture.fail(&["step", "publish", "echo", &image]);
    assert!(printed.contains("is already published") && printed.contains("another tag"), "{printed}");
    let info = fixture.pass(&["step", "info", &image]);
    for part in [
        "digest: sha256:",
        "platforms: generic/generic",
        "Says a word",
        "input word: string, default \"hello\"",
        "output said: string",
    ] {
        assert!(info.contains(part), "{part}: {info}");
    }
    fixture.set_pipeline(&image);
    let log = fixture.pass(&["ci", "run"]);
    assert!(log.contains("<first hello>") && log.contains(&format!("Fetched the step {image} (sha256:")), "{log}");
}

#[test]
fn lock_file_pins_steps_and_is_obeyed_by_local_pipelines() {
    let Some(fixture) = Fixture::new() else { return };
    let (one, two) = (fixture.image("1.0.0"), fixture.image("latest"));
    fixture.pass(&["step", "publish", "echo", &one]);
    // A step that only a local step calls must be pinned as well.
    fixture.project.write("local/step.yml", &format!("{{}}\n---\nrun: [{{name: inner, step: '{one}'}}]\n"));
    fixture.set_pipeline("./local");
    let printed = fixture.pass(&["step", "lock"]);
    assert!(printed.contains(&format!("pinned {one}: sha256:")) && printed.contains("pins 1 remote step"), "{printed}");
    let locked = fixture.lock();
    assert!(locked.contains(&format!("source = \"{one}\"")) && locked.contains("digest = \"sha256:"), "{locked}");
    let log = fixture.pass(&["ci", "run"]);
    assert!(log.contains("<first hello>") && log.contains(", as locked)"), "{log}");
    assert!(fixture.pass(&["step", "verify"]).contains("pins every remote step of the pipeline (1 in total)"));

    fixture.write_echo("second");
    fixture.pass(&["step", "publish", "echo", &two]);
    fixture.set_pipeline(&two);
    let log = fixture.fail(&["ci", "run"]);
    assert!(
        log.contains(&format!("{two}: muster-steps.lock does not name this step; run `muster step lock`")),
        "{log}"
    );
    let printed = fixture.fail(&["step", "verify"]);
    assert!(printed.contains(&format!("muster-steps.lock does not name {two}; run `muster step lock`")), "{printed}");
    fixture.pass(&["step", "lock"]);
    assert!(!fixture.lock().contains(&one), "a pin that is not used must be removed");
    assert!(fixture.pass(&["ci", "run"]).contains("<second hello>"));
}

#[test]
fn warnings_of_the_pipeline_do_not_count_as_errors() {
    let project = Project::new(".a: &a {image: a}\n.b: {image: b, <<: *a}\nc: {extends: .none, script: [x]}\n");
    let printed = text(&project.muster(&["step", "lock"]).output().unwrap());
    assert!(
        printed.contains("replaces the earlier `image`") && printed.contains("unknown keys in `extends`"),
        "{printed}"
    );
    assert!(printed.contains("the configuration has 1 error;"), "{printed}");
}

#[test]
fn steps_of_child_pipelines_are_pinned() {
    let Some(fixture) = Fixture::new() else { return };
    let (one, two) = (fixture.image("1.0.0"), fixture.image("2.0.0"));
    for image in [&one, &two] {
        fixture.pass(&["step", "publish", "echo", image]);
    }
    let job = |step: &str| format!("say: {{run: [{{name: say, step: '{step}'}}]}}\n");
    let bridge = |child: &str| format!("start: {{trigger: {{include: {child}, strategy: depend}}}}\n");
    fixture.project.write("grandchild.yml", &job(&two));
    fixture.project.write("child.yml", &(job(&one) + &bridge("grandchild.yml")));
    fixture.project.write(".gitlab-ci.yml", &bridge("child.yml"));
    fixture.project.commit("pipeline");
    let printed = fixture.pass(&["step", "lock"]);
    assert!(printed.contains("pins 2 remote steps") && !printed.contains("warning"), "{printed}");
    let log = fixture.pass(&["ci", "run"]);
    assert_eq!(log.matches(", as locked)").count(), 2, "{log}");
    // A job creates this child pipeline, so pins that it may need are kept.
    fixture
        .project
        .write(".gitlab-ci.yml", &bridge("[{artifact: child.yml, job: make}]").replace("start:", "generated:"));
    fixture.project.commit("generated");
    let printed = fixture.pass(&["step", "lock"]);
    let warning =
        "failed to read the child pipeline of job `generated`: a job creates its configuration; pin its remote steps";
    assert!(printed.contains(warning) && printed.contains("pins 2 remote steps"), "{printed}");
}

#[test]
fn lock_keeps_pins_and_update_replaces_them() {
    let Some(fixture) = Fixture::new() else { return };
    let (tag, other) = (fixture.image("main"), fixture.image("other"));
    fixture.pass(&["step", "publish", "echo", &tag]);
    fixture.set_pipeline(&tag);
    fixture.pass(&["step", "lock"]);
    let first = fixture.lock();
    fixture.write_echo("second");
    fixture.pass(&["step", "publish", "echo", &other]);
    move_tag(&fixture.registry, "other", "main");
    fixture.pass(&["step", "lock"]);
    assert_eq!(fixture.lock(), first, "the pin must not follow the tag");
    assert!(fixture.pass(&["ci", "run"]).contains("<first hello>"));
    let printed = fixture.pass(&["step", "update", &tag]);
    assert!(printed.contains(&format!("updated {tag}: sha256:")), "{printed}");
    assert!(fixture.pass(&["ci", "run"]).contains("<second hello>"));
}

/// Makes the tag `to` point to the index of the tag `from`.
fn move_tag(registry: &DockerRegistry, from: &str, to: &str) {
    let tags = registry.dir().join("data/docker/registry/v2/repositories/g/echo/_manifests/tags");
    let link = std::fs::read(tags.join(from).join("current/link")).unwrap();
    std::fs::write(tags.join(to).join("current/link"), link).unwrap();
}

#[test]
fn reference_with_an_expression_is_pinned_only_if_lock_names_the_concrete_reference() {
    let Some(fixture) = Fixture::new() else { return };
    let image = fixture.image("1.0.0");
    fixture.pass(&["step", "publish", "echo", &image]);
    fixture.set_pipeline(&format!("{}${{{{vars.TAG}}}}", fixture.image("")));
    let printed = fixture.pass(&["step", "lock"]);
    assert!(printed.contains("is known only when a job runs; pin it with `muster step lock REFERENCE`"), "{printed}");
    assert!(fixture.fail(&["ci", "run", "--var", "TAG=1.0.0"]).contains("does not name this step"));
    fixture.pass(&["step", "lock", &image]);
    assert!(fixture.pass(&["ci", "run", "--var", "TAG=1.0.0"]).contains("<first hello>"));
}

#[test]
fn marks_are_printed_by_the_next_job_that_uses_the_step() {
    let Some(fixture) = Fixture::new() else { return };
    let image = fixture.image("1.0.0");
    fixture.pass(&["step", "publish", "echo", &image]);
    fixture.set_pipeline(&image);
    fixture.pass(&["step", "lock"]);
    assert!(!fixture.pass(&["ci", "run"]).contains("deprecated"));
    fixture.pass(&["step", "mark", &image, "--deprecated", "use 2.0.0", "--defective", "loses words"]);
    let log = fixture.pass(&["ci", "run"]);
    for warning in ["is deprecated: use 2.0.0", "is defective: loses words"] {
        assert!(log.contains(&format!("WARNING: the step {image} {warning}")), "{warning}: {log}");
    }
    assert!(log.contains("<first hello>"), "a mark must neither stop the job nor change the digest: {log}");
    fixture.pass(&["step", "mark", &image, "--defective", "loses letters"]);
    let log = fixture.pass(&["ci", "run"]);
    assert!(log.contains("loses letters") && !log.contains("use 2.0.0") && !log.contains("loses words"), "{log}");
    fixture.pass(&["step", "mark", &image, "--clear"]);
    assert!(!fixture.pass(&["ci", "run"]).contains("WARNING"));
}

#[test]
fn search_finds_steps_in_a_registry_and_in_an_index() {
    let Some(fixture) = Fixture::new() else { return };
    let index = ["--index", "catalog"];
    for tag in ["1.0.0", "1.9.0", "1.10.0"] {
        let image = fixture.image(tag);
        fixture.pass(&[&["step", "publish", "echo", &image, "--description", "Says a word"][..], &index].concat());
    }
    fixture.pass(&[&["step", "mark", &fixture.image("1.10.0"), "--deprecated", "use say"][..], &index].concat());
    for catalog in [["--registry", fixture.registry.host()], index] {
        for term in ["ECH", "a word", ""] {
            let found = fixture.pass(&[&["step", "search", term][..], &catalog].concat());
            assert!(found.contains(&fixture.image("1.10.0")) && found.contains("deprecated: use say"), "{found}");
            assert!(!found.contains("1.9.0"), "{found}");
        }
        assert!(
            fixture.fail(&[&["step", "search", "none"][..], &catalog].concat()).contains("no step matches \"none\"")
        );
    }
}

#[test]
fn invalid_arguments_are_explained() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.set_pipeline("./echo");
    for (arguments, part) in [
        (&["step", "publish", "echo/bin", &fixture.image("1")][..], "has neither func.yml nor step.yml"),
        (&["step", "publish", "echo", "gitlab.com/g/p@v1"], "is a Git repository; name an image"),
        (&["step", "publish", "echo", "echo"], "expecting url@rev"),
        (&["step", "mark", &fixture.image("1"), "--deprecated", " "], "the message is empty"),
        (&["step", "mark", &fixture.image("9"), "--clear"], "not found at the registry"),
        (&["step", "info", &fixture.image("9")], "not found at the registry"),
        (&["step", "verify"], "muster-steps.lock does not exist; run `muster step lock`"),
    ] {
        let printed = fixture.fail(arguments);
        assert!(printed.contains(part), "{arguments:?}: {printed}");
    }
}
