//! Cases 86 to 88, 91, 93 and 94: references. Tests of `muster-agent` fetch steps from servers.

use super::harness::Project;

/// Step file that prints the step's directory.
const PRINT_STEP_DIR: &str = "{}\n---\nexec: {command: [echo, '${{step_dir}}']}";

/// Returns the directory and the file of the step that a reference in `base/step.yml` names, relative to the project.
async fn directory_and_file_of(reference: &str) -> String {
    let project = Project::new();
    let root = project.path().display().to_string();
    let reference = reference.replace("/abs", &format!("{root}/abs"));
    let base = format!("{{}}\n---\nrun: [{{name: r, step: '{reference}'}}]");
    let mut project = project.step("base", &base);
    for path in ["base/other.yml", "base/a/step.yml", "base/a/my.yml", "abs/step.yml", "abs/x.yml", "a/step.yml"] {
        project = project.file(path, &PRINT_STEP_DIR.replace("}}'", &format!("}}}} {path}'")));
    }
    let outcome = project.run("- {name: b, step: ./base}").await;
    outcome.log().trim_end().replace(&root, "")
}

#[tokio::test]
async fn c086_local_reference_names_a_directory_or_a_file() {
    for (reference, expected) in [
        ("./other.yml", "/base base/other.yml"),
        ("./a", "/base/a base/a/step.yml"),
        (" ./a//", "/base/a base/a/step.yml"),
        ("./a/my.yml", "/base/a base/a/my.yml"),
        ("/abs", "/abs abs/step.yml"),
        ("/abs/", "/abs abs/step.yml"),
        ("/abs/x.yml", "/abs abs/x.yml"),
        ("../a", "/a a/step.yml"),
    ] {
        assert_eq!(directory_and_file_of(reference).await, expected, "{reference}");
    }
}

#[tokio::test]
async fn c086_dot_is_the_directory_of_the_caller() {
    let project = Project::new().file("step.yml", PRINT_STEP_DIR);
    let outcome = project.run("- {name: r, step: .}").await;
    assert_eq!(outcome.log(), format!("{}\n", project.path().display()));
}

#[tokio::test]
async fn c086_missing_file_is_named() {
    let outcome = Project::new().run("- {name: r, step: ./none}").await;
    outcome.assert_error("failed to load: loading file ");
    outcome.assert_error("/none/step.yml\": reading file: No such file");
}

#[tokio::test]
async fn c086_function_file_takes_precedence_current() {
    let project = Project::new().step("both", "{}\n---\nexec: {command: [echo, step]}");
    let project = project.file("both/func.yml", "{}\n---\nexec: {command: [echo, func]}");
    assert_eq!(project.run("- {name: r, func: ./both}").await.log(), "func\n");
}

#[tokio::test]
async fn c086_function_file_is_unknown_legacy() {
    let project = Project::legacy().step("both", "{}\n---\nexec: {command: [echo, step]}");
    let project = project.file("both/func.yml", "{}\n---\nexec: {command: [echo, func]}");
    assert_eq!(project.run("- {name: r, step: ./both}").await.log(), "step\n");
}

#[tokio::test]
async fn c087_other_extension_is_a_directory_legacy() {
    let project = Project::legacy().file("x.yaml", PRINT_STEP_DIR);
    project.run("- {name: r, step: ./x.yaml}").await.assert_error("/x.yaml/step.yml\": reading file");
}

#[tokio::test]
async fn c088_reference_without_revision_is_rejected() {
    for project in [Project::new(), Project::legacy()] {
        project.run("- {name: r, step: numdef}").await.assert_error("expecting url@rev. got \"numdef\"");
    }
}

#[tokio::test]
async fn c088_references_are_parsed_before_the_first_step_runs() {
    for reference in ["numdef", "ssh://gitlab.com/a/b@v1", "gitlab.com/a/b@.git", "{git: {url: gitlab.com, rev: v1}}"] {
        let items = format!("- {{name: a, script: echo ran}}\n- {{name: r, step: {reference}}}");
        let outcome = Project::new().run(&items).await;
        assert_eq!(outcome.log_before_error(), "", "{reference}");
        outcome.assert_error("step \"r\": failed to load: fetching step: ");
    }
}

#[tokio::test]
async fn remote_step_is_rejected_when_steps_cannot_be_fetched() {
    let outcome = Project::new().run("- {name: r, step: gitlab.com/a/b@v1}").await;
    outcome.assert_error("https://gitlab.com/a/b@v1: remote steps are not available here; copy the step");
}

#[tokio::test]
async fn c091_incomplete_mapping_is_rejected() {
    for (reference, part) in [
        ("{git: {url: gitlab.com/a/b}}", "field rev in git: required"),
        ("{git: {rev: main}}", "field url in git: required"),
        ("{oci: {registry: r, tag: t}}", "field repository in oci: required"),
        ("{git: {url: u, rev: r}, oci: {registry: r}}", "cannot use both git: and oci: fields"),
        ("{}", "field git: or oci: required"),
    ] {
        Project::new().run(&format!("- {{name: r, step: {reference}}}")).await.assert_error(part);
    }
}

#[tokio::test]
async fn c093_exported_reference_is_used_by_a_later_step() {
    let project = Project::new().step("where", PRINT_STEP_DIR);
    let line = format!("{{\"name\":\"STEP_REF\",\"value\":\"{}/where\"}}", project.path().display());
    let items =
        format!("- {{name: x, step: ./x, inputs: {{line: '{line}'}}}}\n- {{name: r, step: '${{{{env.STEP_REF}}}}'}}");
    assert_eq!(project.run(&items).await.log(), format!("{}/where\n", project.path().display()));
}

#[tokio::test]
async fn c093_dynamic_reference_is_relative_to_the_caller_current() {
    let caller = "{}\n---\nrun: [{name: r, step: './${{vars.DIR}}'}]";
    let project = Project::new().variable("DIR", "where").step("caller", caller).step("caller/where", PRINT_STEP_DIR);
    let outcome = project.run("- {name: c, step: ./caller}").await;
    assert_eq!(outcome.log(), format!("{}/caller/where\n", project.path().display()));
}

#[tokio::test]
async fn c093_dynamic_reference_is_relative_to_the_agent_legacy() {
    let project = Project::legacy().step("where", "{}\n---\nexec: {command: [echo, found]}");
    let depth = std::env::current_dir().unwrap().components().count() - 1;
    let relative = format!("./{}{}", "../".repeat(depth), project.path().strip_prefix("/").unwrap().display());
    let project = project.variable("DIR", &relative).variable("NONE", "none");
    assert_eq!(project.run("- {name: r, step: '${{job.DIR}}/where'}").await.log(), "found\n");
    let outcome = project.run("- {name: r, step: './${{job.NONE}}'}").await;
    outcome.assert_error("loading file \"none/step.yml\": reading file");
}

#[tokio::test]
async fn c094_script_is_a_bundled_step() {
    for project in [Project::new(), Project::legacy()] {
        let items = "- {name: s, step: 'dist://script', inputs: {script: 'echo $A ${{job.V}}'}, env: {A: a}}";
        assert_eq!(project.variable("V", "v").run(items).await.log(), "a v\n");
    }
}

#[tokio::test]
async fn c094_unknown_bundled_step_is_rejected() {
    let outcome = Project::new().run("- {name: s, step: 'dist://nope'}").await;
    outcome.assert_error("fetching dist step: fetch: distributed step \"nope\" not found");
    let outcome = Project::new().run("- {name: s, step: 'dist://script'}").await;
    outcome.assert_error("input \"script\" required, but not defined");
}

#[tokio::test]
async fn c094_builtin_is_not_a_scheme_legacy() {
    let outcome = Project::legacy().run("- {name: s, step: 'builtin://nope'}").await;
    outcome.assert_error("expecting url@rev. got \"builtin://nope\"");
}

#[tokio::test]
async fn c094_unknown_builtin_is_rejected_current() {
    let outcome = Project::new().run("- {name: s, func: 'builtin://nope'}").await;
    outcome.assert_error("there is no built-in step \"nope\"");
}
