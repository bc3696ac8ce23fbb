//! Cases 1 to 23: documents, specification and definition of a step file.

use serde_json::json;

use super::harness::Project;

async fn assert_rejected(text: &str, part: &str) {
    Project::new().run_file(text).await.assert_error(part);
}

#[tokio::test]
async fn c001_step_without_inputs_uses_its_defaults() {
    let outcome = Project::new().run("- {name: e, step: ./e}").await;
    assert_eq!(outcome.log(), "d|1|true|{}|[]|\n");
}

#[tokio::test]
async fn c002_empty_specification_is_accepted() {
    for spec in ["spec:", "spec: null", "spec: {}", "{}"] {
        let outcome = Project::new().run_file(&format!("{spec}\n---\nexec: {{command: [echo, ok]}}")).await;
        assert_eq!(outcome.log(), "ok\n", "{spec}");
    }
}

#[tokio::test]
async fn c003_leading_document_marker_is_accepted() {
    let outcome = Project::new().run_file("---\n{}\n---\nexec: {command: [echo, ok]}").await;
    assert_eq!(outcome.log(), "ok\n");
}

#[tokio::test]
async fn c004_single_document_is_rejected_with_the_misplaced_key() {
    assert_rejected("exec: {command: [echo]}", "field `exec` not found in the specification").await;
}

#[tokio::test]
async fn c005_empty_definition_is_rejected() {
    assert_rejected("{}\n---\n", "the definition must be a mapping").await;
}

#[tokio::test]
async fn c006_third_document_is_ignored() {
    let outcome = Project::new().run_file("{}\n---\nexec: {command: [echo, ok]}\n---\n]garbage: [").await;
    assert_eq!(outcome.log(), "ok\n");
}

#[tokio::test]
async fn c007_unknown_key_beside_spec_is_rejected() {
    assert_rejected("spec: {}\nother: 1\n---\nexec: {command: [echo]}", "field `other` not found").await;
}

const UNKNOWN_KEYS: &str = "spec:
  more: 1
  inputs: {a: {type: string, default: x, description: text}}
---
exec: {command: [echo, '${{inputs.a}}'], shell: no}
more: 1
";

#[tokio::test]
async fn c008_unknown_keys_below_spec_are_ignored_legacy() {
    assert_eq!(Project::legacy().run_file(UNKNOWN_KEYS).await.log(), "x\n");
}

#[tokio::test]
async fn c008_unknown_keys_below_spec_are_ignored_current() {
    assert_eq!(Project::new().run_file(UNKNOWN_KEYS).await.log(), "x\n");
}

#[tokio::test]
async fn c009_unknown_type_is_rejected_with_the_five_types() {
    let text = "spec: {inputs: {a: {type: bool}}}\n---\nexec: {command: [echo]}";
    assert_rejected(text, "one of string, number, boolean, struct and array").await;
}

#[tokio::test]
async fn c010_input_without_type_is_rejected() {
    let text = "spec: {inputs: {a: {default: x}}}\n---\nexec: {command: [echo]}";
    assert_rejected(text, "`inputs.a`: missing property `type`").await;
}

#[tokio::test]
async fn c011_name_of_input_is_checked() {
    let text = "spec: {inputs: {x-y: {type: string}}}\n---\nexec: {command: [echo]}";
    assert_rejected(text, "`inputs`: \"x-y\" is not a valid name").await;
}

#[tokio::test]
async fn c012_unsupported_outputs_are_rejected() {
    assert_rejected("spec: {outputs: foo}\n---\nexec: {command: [echo]}", "unsupported value: foo").await;
}

#[tokio::test]
async fn c013_default_of_another_type_is_rejected_when_the_step_is_loaded() {
    let step = "spec: {inputs: {a: {type: number, default: '1'}}}\n---\nexec: {command: [echo]}";
    let outcome =
        Project::new().step("bad", step).run("- {name: first, script: echo first}\n- {name: b, step: ./bad}").await;
    assert_eq!(outcome.log_before_error(), "first\n");
    outcome.assert_error("must match");
}

#[tokio::test]
async fn c014_empty_string_is_a_default() {
    let text = "spec: {inputs: {a: {type: string, default: ''}}}\n---\nexec: {command: [echo, '<${{inputs.a}}>']}";
    assert_eq!(Project::new().run_file(text).await.log(), "<>\n");
}

#[tokio::test]
async fn c015_exec_without_command_is_rejected() {
    for exec in ["{command: []}", "{}", "{command: echo}", "null"] {
        assert_rejected(&format!("{{}}\n---\nexec: {exec}"), "`exec.command` must be a list of at least one string")
            .await;
    }
}

#[tokio::test]
async fn c016_exec_beside_run_is_rejected() {
    let text = "{}\n---\nexec: {command: [echo]}\nrun: [{name: a, script: echo}]";
    assert_rejected(text, "exactly one of `exec` and `run`").await;
}

#[tokio::test]
async fn c017_empty_run_is_rejected() {
    assert_rejected("{}\n---\nrun: []", "`run` must be a list of at least one step").await;
}

#[tokio::test]
async fn c018_name_of_item_is_checked_in_step_files() {
    for (item, part) in [
        ("{name: a-b, script: echo}", "\"a-b\" is not a valid name"),
        ("{name: 1a, script: echo}", "\"1a\" is not a valid name"),
        ("{script: echo}", "`name` is missing"),
    ] {
        assert_rejected(&format!("{{}}\n---\nrun: [{item}]"), part).await;
    }
}

#[tokio::test]
async fn c018_name_of_item_is_not_checked_in_the_list_of_a_job_legacy() {
    let list = json!([{"name": "a-b", "script": "echo 1"}, {"name": "1a", "script": "echo 2"}, {"script": "echo 3"}]);
    assert_eq!(Project::legacy().run_list(list).await.log(), "1\n2\n3\n");
}

#[tokio::test]
async fn c019_underscore_is_a_name() {
    assert_eq!(Project::new().run("- {name: _, script: echo ok}").await.log(), "ok\n");
}

#[tokio::test]
async fn c020_item_with_two_actions_is_rejected() {
    for (item, part) in [
        ("{name: a, script: echo, inputs: {a: 1}}", "`script` does not accept inputs"),
        ("{name: a, script: echo, step: ./e}", "exactly one of"),
        ("{name: a, step: ./e, func: ./e}", "exactly one of"),
        ("{name: a, exec: {command: [echo]}}", "exactly one of"),
        ("{name: a, run: [{name: b, script: echo}]}", "exactly one of"),
        ("{name: a, script: ''}", "a string that is not empty"),
    ] {
        assert_rejected(&format!("{{}}\n---\nrun: [{item}]"), part).await;
    }
}

#[tokio::test]
async fn c021_name_of_environment_variable_is_checked() {
    for text in ["exec: {command: [echo]}\nenv: {A-B: x}", "run: [{name: a, script: echo, env: {A-B: x}}]"] {
        assert_rejected(&format!("{{}}\n---\n{text}"), "`env`: \"A-B\" is not a valid name").await;
    }
}

#[tokio::test]
async fn c022_scalars_of_env_are_text() {
    let text = "{}\n---\nexec: {command: [sh, -c, 'echo $A $B $C $D']}\nenv: {A: 1, B: true, C: 1.10, D: 2024-01-02}";
    assert_eq!(Project::new().run_file(text).await.log(), "1 true 1.10 2024-01-02\n");
}

#[tokio::test]
async fn c023_timestamps_and_duplicate_keys_and_keys_of_other_types_are_rejected() {
    for (inputs, part) in [
        ("{s: 2024-01-02}", "`inputs.s`: \"2024-01-02\" is a timestamp"),
        ("{o: {k: [2001-12-14t21:59:43.10-05:00]}}", "is a timestamp"),
        ("{o: {1: x}}", "the key `1` is not a string"),
        ("{o: {[a]: x}}", "the key is not a string"),
        ("{s: a, s: b}", "the key `s` is defined twice"),
    ] {
        assert_rejected(&format!("{{}}\n---\nrun: [{{name: a, step: ./e, inputs: {inputs}}}]"), part).await;
    }
}

#[tokio::test]
async fn c023_quoted_dates_and_merge_keys_and_carriage_returns_are_accepted() {
    let text =
        "{}\r\n---\r\nrun:\r\n- &first {name: a, step: ./e, inputs: {s: '2024-01-02'}}\r\n- {<<: *first, name: b}\r\n";
    let outcome = Project::new().run_file(text).await;
    assert_eq!(outcome.log(), "2024-01-02|1|true|{}|[]|\n".repeat(2));
}
