//! Cases 64 to 68: exports.

use super::harness::Project;

fn export(name: &str, value: &str) -> String {
    let line = serde_json::Value::from(format!("{{\"name\":\"{name}\",\"value\":{value}}}"));
    format!("- {{name: x, step: ./x, inputs: {{line: {line}}}}}\n")
}

fn sequence(items: &str) -> String {
    format!("{{}}\n---\nrun:\n{items}").replace("./", "../")
}

#[tokio::test]
async fn c064_scalars_are_exported_as_text() {
    for (value, text) in [("\"v\"", "v"), ("1.50", "1.5"), ("1e21", "1000000000000000000000"), ("true", "true")] {
        let outcome = Project::new().run(&(export("V", value) + "- {name: p, script: 'echo $V'}")).await;
        assert_eq!(outcome.log(), format!("{text}\n"), "{value}");
    }
}

#[tokio::test]
async fn c064_other_values_are_not_exported() {
    for (value, part) in [
        ("[1]", "export file: read env file: key \"V\": cannot convert value type \"array\" to string"),
        ("{}", "export file: read env file: key \"V\": cannot convert value type \"struct\" to string"),
        ("null", "\"value\" field value is null"),
    ] {
        Project::new().run(&export("V", value)).await.assert_error(part);
    }
}

#[tokio::test]
async fn c065_export_overrides_only_the_environment_of_the_request() {
    let show =
        "{}\n---\nexec: {command: [sh, -c, 'echo $REQUEST $RUN $ITEM $DEFINITION']}\nenv: {DEFINITION: definition}";
    let project = Project::new().env("REQUEST", "request").step("show", show);
    let exports = ["REQUEST", "RUN", "ITEM", "DEFINITION"].map(|name| export(name, "\"exported\"")).concat();
    let file = format!("{{}}\n---\nenv: {{RUN: run}}\nrun:\n{exports}- {{name: s, step: ./show, env: {{ITEM: item}}}}");
    assert_eq!(project.run_file(&file).await.log(), "exported run item definition\n");
}

#[tokio::test]
async fn c066_failed_step_exports_nothing() {
    let bad =
        "{}\n---\nexec: {command: [sh, -c, 'echo ''{\"name\":\"V\",\"value\":\"v\"}'' >${{export_file}}; exit 1']}";
    let project = Project::new().variable("CI_STEPS_DEBUG", "1").step("bad", bad);
    project.run("- {name: a, step: ./bad}").await.assert_error("exec: exit status 1");
    let results = std::fs::read_to_string(project.path().join("step-results.json")).unwrap();
    assert!(!results.contains("exports"), "{results}");
}

#[tokio::test]
async fn c067_export_of_a_nested_sequence_is_visible_after_it() {
    let project = Project::new().step("nested", &sequence(&export("V", "\"v\"")));
    let outcome = project.run("- {name: n, step: ./nested}\n- {name: p, script: 'echo $V ${{env.V}}'}").await;
    assert_eq!(outcome.log(), "v v\n");
}

/// Runs a nested sequence that replaces the existing variable `OLD` and adds `NEW`.
async fn override_in_nested_sequence(project: Project) -> String {
    let show = "- {name: p, script: 'echo $OLD $NEW'}\n";
    let nested = sequence(&(export("OLD", "\"second\"") + &export("NEW", "\"new\"") + show));
    let project = project.env("OLD", "first").step("nested", &nested);
    project.run(&format!("- {{name: n, step: ./nested}}\n{show}")).await.log().to_owned()
}

#[tokio::test]
async fn c068_nested_sequence_keeps_variables_that_exist_at_its_start_legacy() {
    assert_eq!(override_in_nested_sequence(Project::legacy()).await, "first new\nsecond new\n");
}

#[tokio::test]
async fn c068_export_is_visible_to_every_later_step_current() {
    assert_eq!(override_in_nested_sequence(Project::new()).await, "second new\nsecond new\n");
}
