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
        let program = self.project.path().join("echo/bin/say");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        muster_test_prerequisites::create_program(program, format!("#!/bin/sh\necho \"<{text} $1>\"\n"));
    }

    fn image(&self, tag: &str) -> String {
        format!("{}/g/echo:{tag}", self.registry.host())
    }

    fn set_pipeline(&self, step: &str) {
        self.project.write(".gitlab-ci.yml", &format!("say:\n  run:\n    - {{name: say, step: '{step}'}}\n"));
        self.project.commit("pipeline");
    }

    /// Runs `muster` and checks that it succeeds. Returns its output.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.project.muster(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    /// Runs `muster` and checks that it fails. Returns its output.
    fn run_failing(&self, arguments: &[&str]) -> String {
        let output = self.project.muster(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    fn lock_file_text(&self) -> String {
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
    let printed = fixture.run(&["step", "publish", "echo", &image, "--description", "Says a word"]);
    assert!(printed.contains(&format!("published {image}: sha256:")), "{printed}");
    let printed = fixture.run_failing(&["step", "publish", "echo", &image]);
    assert!(printed.contains("is already published") && printed.contains("another tag"), "{printed}");
    let info = fixture.run(&["step", "info", &image]);
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
    let log = fixture.run(&["ci", "run"]);
    assert!(log.contains("<first hello>") && log.contains(&format!("Fetched the step {image} (sha256:")), "{log}");
}

#[test]
fn lock_file_pins_steps_and_is_obeyed_by_local_pipelines() {
    let Some(fixture) = Fixture::new() else { return };
    let (one, two) = (fixture.image("1.0.0"), fixture.image("latest"));
    fixture.run(&["step", "publish", "echo", &one]);
    // A step that only a local step calls must be pinned as well.
    fixture.project.write("local/step.yml", &format!("{{}}\n---\nrun: [{{name: inner, step: '{one}'}}]\n"));
    fixture.set_pipeline("./local");
    let printed = fixture.run(&["step", "lock"]);
    assert!(printed.contains(&format!("pinned {one}: sha256:")) && printed.contains("pins 1 remote step"), "{printed}");
    let locked = fixture.lock_file_text();
    assert!(locked.contains(&format!("source = \"{one}\"")) && locked.contains("digest = \"sha256:"), "{locked}");
    let log = fixture.run(&["ci", "run"]);
    assert!(log.contains("<first hello>") && log.contains(", as locked)"), "{log}");
    assert!(fixture.run(&["step", "verify"]).contains("pins every remote step of the pipeline (1 in total)"));

    fixture.write_echo("second");
    fixture.run(&["step", "publish", "echo", &two]);
    fixture.set_pipeline(&two);
    let log = fixture.run_failing(&["ci", "run"]);
    assert!(
        log.contains(&format!("{two}: muster-steps.lock does not name this step; run `muster step lock`")),
        "{log}"
    );
    let printed = fixture.run_failing(&["step", "verify"]);
    assert!(printed.contains(&format!("muster-steps.lock does not name {two}; run `muster step lock`")), "{printed}");
    fixture.run(&["step", "lock"]);
    assert!(!fixture.lock_file_text().contains(&one), "a pin that is not used must be removed");
    assert!(fixture.run(&["ci", "run"]).contains("<second hello>"));
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
        fixture.run(&["step", "publish", "echo", image]);
    }
    let job = |step: &str| format!("say: {{run: [{{name: say, step: '{step}'}}]}}\n");
    let bridge = |child: &str| format!("start: {{trigger: {{include: {child}, strategy: depend}}}}\n");
    fixture.project.write("grandchild.yml", &job(&two));
    fixture.project.write("child.yml", &(job(&one) + &bridge("grandchild.yml")));
    fixture.project.write(".gitlab-ci.yml", &bridge("child.yml"));
    fixture.project.commit("pipeline");
    let printed = fixture.run(&["step", "lock"]);
    assert!(printed.contains("pins 2 remote steps") && !printed.contains("warning"), "{printed}");
    let log = fixture.run(&["ci", "run"]);
    assert_eq!(log.matches(", as locked)").count(), 2, "{log}");
    // A job creates this child pipeline, so pins that it may need are kept.
    fixture
        .project
        .write(".gitlab-ci.yml", &bridge("[{artifact: child.yml, job: make}]").replace("start:", "generated:"));
    fixture.project.commit("generated");
    let printed = fixture.run(&["step", "lock"]);
    let warning =
        "failed to read the child pipeline of job `generated`: a job creates its configuration; pin its remote steps";
    assert!(printed.contains(warning) && printed.contains("pins 2 remote steps"), "{printed}");
}

#[test]
fn lock_keeps_pins_and_update_replaces_them() {
    let Some(fixture) = Fixture::new() else { return };
    let (tag, other) = (fixture.image("main"), fixture.image("other"));
    fixture.run(&["step", "publish", "echo", &tag]);
    fixture.set_pipeline(&tag);
    fixture.run(&["step", "lock"]);
    let first = fixture.lock_file_text();
    fixture.write_echo("second");
    fixture.run(&["step", "publish", "echo", &other]);
    move_tag(&fixture.registry, "other", "main");
    fixture.run(&["step", "lock"]);
    assert_eq!(fixture.lock_file_text(), first, "the pin must not follow the tag");
    assert!(fixture.run(&["ci", "run"]).contains("<first hello>"));
    let printed = fixture.run(&["step", "update", &tag]);
    assert!(printed.contains(&format!("updated {tag}: sha256:")), "{printed}");
    assert!(fixture.run(&["ci", "run"]).contains("<second hello>"));
}

/// Makes the tag `to` point to the index of the tag `from`.
fn move_tag(registry: &DockerRegistry, from: &str, to: &str) {
    let tags = registry.dir().join("data/docker/registry/v2/repositories/g/echo/_manifests/tags");
    let link = std::fs::read(tags.join(from).join("current/link")).unwrap();
    std::fs::write(tags.join(to).join("current/link"), link).unwrap();
}

#[test]
fn reference_with_an_expression_is_pinned_only_if_step_lock_is_given_the_concrete_reference() {
    let Some(fixture) = Fixture::new() else { return };
    let image = fixture.image("1.0.0");
    fixture.run(&["step", "publish", "echo", &image]);
    fixture.set_pipeline(&format!("{}${{{{vars.TAG}}}}", fixture.image("")));
    let printed = fixture.run(&["step", "lock"]);
    assert!(printed.contains("is known only when a job runs; pin it with `muster step lock REFERENCE`"), "{printed}");
    assert!(fixture.run_failing(&["ci", "run", "--var", "TAG=1.0.0"]).contains("does not name this step"));
    fixture.run(&["step", "lock", &image]);
    assert!(fixture.run(&["ci", "run", "--var", "TAG=1.0.0"]).contains("<first hello>"));
}

#[test]
fn marks_are_printed_by_the_next_job_that_uses_the_step() {
    let Some(fixture) = Fixture::new() else { return };
    let image = fixture.image("1.0.0");
    fixture.run(&["step", "publish", "echo", &image]);
    fixture.set_pipeline(&image);
    fixture.run(&["step", "lock"]);
    assert!(!fixture.run(&["ci", "run"]).contains("deprecated"));
    fixture.run(&["step", "mark", &image, "--deprecated", "use 2.0.0", "--defective", "loses words"]);
    let log = fixture.run(&["ci", "run"]);
    for warning in ["is deprecated: use 2.0.0", "is defective: loses words"] {
        assert!(log.contains(&format!("WARNING: the step {image} {warning}")), "{warning}: {log}");
    }
    assert!(log.contains("<first hello>"), "a mark must neither stop the job nor change the digest: {log}");
    fixture.run(&["step", "mark", &image, "--defective", "loses letters"]);
    let log = fixture.run(&["ci", "run"]);
    assert!(log.contains("loses letters") && !log.contains("use 2.0.0") && !log.contains("loses words"), "{log}");
    fixture.run(&["step", "mark", &image, "--clear"]);
    assert!(!fixture.run(&["ci", "run"]).contains("WARNING"));
}

#[test]
fn search_finds_steps_in_a_registry_and_in_an_index() {
    let Some(fixture) = Fixture::new() else { return };
    let index = ["--index", "catalog"];
    for tag in ["1.0.0", "1.9.0", "1.10.0"] {
        let image = fixture.image(tag);
        fixture.run(&[&["step", "publish", "echo", &image, "--description", "Says a word"][..], &index].concat());
    }
    fixture.run(&[&["step", "mark", &fixture.image("1.10.0"), "--deprecated", "use say"][..], &index].concat());
    for catalog in [["--registry", fixture.registry.host()], index] {
        for term in ["ECH", "a word", ""] {
            let found = fixture.run(&[&["step", "search", term][..], &catalog].concat());
            assert!(found.contains(&fixture.image("1.10.0")) && found.contains("deprecated: use say"), "{found}");
            assert!(!found.contains("1.9.0"), "{found}");
        }
        assert!(
            fixture
                .run_failing(&[&["step", "search", "none"][..], &catalog].concat())
                .contains("no step matches \"none\"")
        );
    }
}

#[test]
fn search_skips_a_step_whose_marks_cannot_be_read() {
    let Some(fixture) = Fixture::new() else { return };
    let (damaged, other) = (fixture.image("1.0.0"), format!("{}/g/other:1.0.0", fixture.registry.host()));
    for image in [&damaged, &other] {
        fixture.run(&["step", "publish", "echo", image]);
    }
    fixture.run(&["step", "mark", &damaged, "--deprecated", "gone"]);
    // The registry stores the list of marks as a tag, `sha256-...`.
    let tags = fixture.registry.dir().join("data/docker/registry/v2/repositories/g/echo/_manifests/tags");
    let mut tags = std::fs::read_dir(tags).unwrap().map(|entry| entry.unwrap().path());
    let marks = tags.find(|tag| tag.file_name().unwrap().to_string_lossy().starts_with("sha256-")).unwrap();
    let digest = std::fs::read_to_string(marks.join("current/link")).unwrap();
    let hex = digest.strip_prefix("sha256:").unwrap();
    let blobs = fixture.registry.dir().join("data/docker/registry/v2/blobs/sha256");
    std::fs::write(blobs.join(&hex[..2]).join(hex).join("data"), "damaged").unwrap();
    let found = fixture.run(&["step", "search", "--registry", fixture.registry.host()]);
    assert!(found.contains("g/echo:1.0.0 is skipped: ") && found.contains(&other), "{found}");
}

#[test]
fn mark_of_an_old_version_does_not_change_the_index_entry_of_a_newer_one() {
    let Some(fixture) = Fixture::new() else { return };
    let (old, new) = (fixture.image("1.0.0"), fixture.image("2.0.0"));
    for image in [&old, &new] {
        fixture.run(&["step", "publish", "echo", image, "--index", "catalog"]);
    }
    let printed = fixture.run(&["step", "mark", &old, "--deprecated", "use 2.0.0", "--index", "catalog"]);
    assert!(printed.contains(&format!("the index has {new}; its entry is unchanged")), "{printed}");
    let found = fixture.run(&["step", "search", "--index", "catalog"]);
    assert!(found.contains(&new) && !found.contains("deprecated"), "{found}");
}

#[test]
fn message_of_a_publisher_sends_no_commands_to_the_terminal() {
    let Some(fixture) = Fixture::new() else { return };
    let image = fixture.image("1.0.0");
    fixture.run(&["step", "publish", "echo", &image]);
    fixture.run(&["step", "mark", &image, "--deprecated", "\u{1b}[2Jgone"]);
    fixture.set_pipeline(&image);
    let printed = fixture.run(&["step", "lock"]);
    assert!(printed.contains("is deprecated: \u{fffd}[2Jgone"), "{printed:?}");
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
        let printed = fixture.run_failing(arguments);
        assert!(printed.contains(part), "{arguments:?}: {printed}");
    }
}
