//! Cases 50 to 63 and 69 to 73: outputs.

use super::harness::{Outcome, Project};

async fn write(project: &Project, lines: &str) -> Outcome {
    let lines = serde_json::Value::from(lines);
    let print = "echo \"${{steps.w.outputs.x}} ${{steps.w.outputs.n}}\"";
    project.run(&format!("- {{name: w, step: ./w, inputs: {{line: {lines}}}}}\n- {{name: p, script: '{print}'}}")).await
}

async fn assert_rejected(lines: &str, part: &str) {
    write(&Project::new(), lines).await.assert_error(part);
}

#[tokio::test]
async fn c050_later_step_reads_a_written_output_and_a_default() {
    assert_eq!(write(&Project::new(), r#"{"name":"x","value":"1"}"#).await.log(), "1 2\n");
}

#[tokio::test]
async fn c051_output_of_another_type_is_rejected() {
    let part = "key \"n\": mismatched types, declared as \"number\" in step specification and received from step as type \"string\"";
    assert_rejected(r#"{"name":"n","value":"1"}"#, part).await;
}

#[tokio::test]
async fn c052_undeclared_output_is_rejected_before_types_are_checked() {
    let lines = "{\"name\":\"n\",\"value\":\"1\"}\n{\"name\":\"z\",\"value\":1}";
    let part = "output file: read output file: key \"z\": unexpected output, remove from step outputs or define in step specification";
    assert_rejected(lines, part).await;
}

#[tokio::test]
async fn c053_missing_output_without_default_is_rejected() {
    let step = "spec: {outputs: {x: {type: string}}}\n---\nexec: {command: ['true']}";
    let outcome = Project::new().step("none", step).run("- {name: a, step: ./none}").await;
    outcome.assert_error("key \"x\": missing output, add to step outputs or remove from step specification");
}

#[tokio::test]
async fn c054_line_that_is_not_json_is_rejected_with_its_number() {
    assert_rejected("x=1", "output file: read output file: failed to unmarshal JSON at line 1: ").await;
    let project = Project::new().variable("CI_STEPS_DEBUG", "true");
    write(&project, "\nx=1").await.assert_error(", line: x=1");
}

#[tokio::test]
async fn c055_line_needs_name_and_value() {
    for (line, part) in [
        (r#"{"value":1}"#, "\"name\" field is missing"),
        (r#"{"name":null,"value":1}"#, "\"name\" field value is null"),
        (r#"{"name":"","value":1}"#, "\"name\" field value is empty"),
        (r#"{"name":"x"}"#, "\"value\" field is missing"),
        (r#"{"name":"x","value":null}"#, "\"value\" field value is null"),
    ] {
        assert_rejected(line, &format!("failed to unmarshal JSON at line 1: {part}")).await;
    }
}

#[tokio::test]
async fn c056_name_of_output_is_a_string() {
    assert_rejected(r#"{"name":1,"value":1}"#, "failed to unmarshal JSON at line 1").await;
}

#[tokio::test]
async fn c057_keys_of_lines_may_be_upper_case_legacy() {
    assert_eq!(write(&Project::legacy(), r#"{"NAME":"x","Value":"1"}"#).await.log(), "1 2\n");
}

#[tokio::test]
async fn c058_empty_line_is_skipped_and_line_of_spaces_is_rejected() {
    assert_eq!(write(&Project::new(), "\n\n{\"name\":\"n\",\"value\":5}\n").await.log(), "dx 5\n");
    assert_rejected("   ", "failed to unmarshal JSON at line 1").await;
}

#[tokio::test]
async fn c059_last_of_several_lines_is_used_and_other_keys_are_ignored() {
    let lines = "{\"name\":\"n\",\"value\":5}\n{\"name\":\"n\",\"value\":6,\"more\":[]}";
    assert_eq!(write(&Project::new(), lines).await.log(), "dx 6\n");
}

#[tokio::test]
async fn c060_long_output_arrives_completely() {
    let step = "spec: {outputs: {x: {type: string}, last: {type: number}}}\n---\nexec:\n  command:\n  - sh\n  - -c\n  - |\n    \
                { printf '{\"name\":\"x\",\"value\":\"'; head -c 70000 /dev/zero | tr '\\0' y; echo '\"}'; \
                echo '{\"name\":\"last\",\"value\":1}'; } >${{output_file}}\n";
    let print = "x='${{steps.a.outputs.x}}'; echo ${#x} ${{steps.a.outputs.last}}";
    let items = format!("- {{name: a, step: ./long}}\n- name: p\n  script: {print}");
    assert_eq!(Project::new().step("long", step).run(&items).await.log(), "70000 1\n");
}

#[tokio::test]
async fn c061_deleted_output_file_is_an_error() {
    let step = "{}\n---\nexec: {command: [rm, '${{output_file}}']}";
    let outcome = Project::new().step("rm", step).run("- {name: a, step: ./rm}").await;
    outcome.assert_error("step \"a\": output file: ");
    outcome.assert_error("No such file");
}

#[tokio::test]
async fn c062_outputs_of_a_failed_process_are_not_read() {
    let step = "{}\n---\nexec: {command: [sh, -c, 'echo bad >${{output_file}}; echo bad >${{export_file}}; exit 3']}";
    let outcome = Project::new().step("bad", step).run("- {name: a, step: ./bad}").await;
    assert_eq!(outcome.nodes[0].message, "exec: exit status 3");
    assert_eq!(outcome.nodes[0].exit_code, Some(3));
}

#[tokio::test]
async fn c063_all_types_reach_a_second_step_unchanged() {
    let values = "spec:
  outputs: {s: {type: string}, n: {type: number}, b: {type: boolean}, o: {type: struct}, a: {type: array}}
---
exec:
  command:
  - sh
  - -c
  - |
    cat >${{output_file}} <<'EOF'
    {\"name\":\"s\",\"value\":\"a \\\"b\\\"\"}
    {\"name\":\"n\",\"value\":-1.5}
    {\"name\":\"b\",\"value\":false}
    {\"name\":\"o\",\"value\":{\"k\":{\"nothing\":null,\"n\":7} } }
    {\"name\":\"a\",\"value\":[1,\"x\",null,true,[2]]}
    EOF
";
    let inputs = ["s", "n", "b", "o", "a"].map(|name| format!("{name}: '${{{{steps.v.outputs.{name}}}}}'")).join(", ");
    let items = format!(
        "- {{name: v, step: ./v}}\n- {{name: e, step: ./e, inputs: {{{inputs}}}}}\n\
         - {{name: p, script: 'echo ${{{{steps.v.outputs.o.k.n}}}} ${{{{steps.v.outputs.o.k.nothing}}}}'}}"
    );
    for project in [Project::new(), Project::legacy()] {
        let outcome = project.step("v", values).run(&items).await;
        let expected = "a \"b\"|-1.5|false|{\"k\":{\"n\":7,\"nothing\":null}}|[1,\"x\",null,true,[2]]|\n7 null\n";
        assert_eq!(outcome.log(), expected);
    }
}

fn delegating_project(text: &str) -> Project {
    let text = text.replace('\'', "''");
    let command = format!("[sh, -c, 'printf %s \"$1\" >\"$2\"', d, '{text}', '${{{{output_file}}}}']");
    Project::new().step("d", &format!("spec: {{outputs: delegate}}\n---\nexec: {{command: {command}}}"))
}

#[tokio::test]
async fn c069_output_file_may_contain_the_result_of_a_step() {
    let items = "- {name: a, step: ./d}\n- {name: p, script: 'echo ${{steps.a.outputs.q}}'}";
    let result = r#"{"status":"success","outputs":{"q":"w"},"execResult":{"exitCode":1}}"#;
    for text in [r#"{"outputs":{"q":"w"}}"#, result] {
        assert_eq!(delegating_project(text).run(items).await.log(), "w\n");
    }
    for text in ["not json", r#"{"outputs":{"q":"w"},"more":1}"#] {
        let outcome = delegating_project(text).run(items).await;
        outcome.assert_error("output file: delegate: reading output_file as a step result: ");
    }
}

#[tokio::test]
async fn c070_outputs_of_an_inner_step_become_outputs_of_the_sequence() {
    let inner = "spec: {outputs: delegate}\n---\nrun: [{name: e, step: ../w, inputs: {line: '{\"name\":\"n\",\"value\":9}'}}]\n\
                 delegate: e\noutputs: {ignored: 1}";
    let outer =
        "spec: {outputs: delegate}\n---\nrun: [{name: first, script: 'true'}, {name: i, step: ../inner}]\ndelegate: i";
    let items = "- {name: i, step: ./inner}\n- {name: o, step: ./outer}\n\
                 - {name: p, script: 'echo ${{steps.i.outputs.n}} ${{steps.o.outputs.x}} ${{steps.o.outputs.n}}'}";
    let outcome = Project::new().step("inner", inner).step("outer", outer).run(items).await;
    assert_eq!(outcome.log(), "9 dx 9\n");
}

#[tokio::test]
async fn c071_unknown_step_of_delegate_is_an_error_after_all_steps() {
    let step = "spec: {outputs: delegate}\n---\nrun: [{name: a, script: echo ran}]\ndelegate: other";
    let outcome = Project::new().step("seq", step).run("- {name: s, step: ./seq}").await;
    assert_eq!(outcome.log_before_error(), "ran\n");
    outcome.assert_error("step \"s\": outputs: delegate: could not find step with name \"other\"");
}

#[tokio::test]
async fn c072_sequence_returns_literals_and_expressions() {
    let step = "spec: {outputs: {a: {type: string}}}\n---\nrun: [{name: e, step: ../e}]\ndelegate: e\n\
                outputs: {a: [1, '${{steps.e.outputs.x}}'], undeclared: literal}";
    let items = "- {name: s, step: ./seq}\n- {name: p, script: 'echo ''${{steps.s.outputs.a}}'' ${{steps.s.outputs.undeclared}}'}";
    let outcome = Project::new().step("seq", step).run(items).await;
    assert_eq!(outcome.log(), "d|1|true|{}|[]|\n[1,\"dx\"] literal\n");
}

#[tokio::test]
async fn c072_error_of_an_output_names_the_output() {
    let step = "{}\n---\nrun: [{name: e, script: 'true'}]\noutputs: {a: '${{steps.no}}'}";
    let outcome = Project::new().step("seq", step).run("- {name: s, step: ./seq}").await;
    outcome.assert_error("step \"s\": outputs: expand \"a\": ");
}

#[tokio::test]
async fn c073_steps_of_a_sequence_cannot_be_read_outside_it() {
    let step = "{}\n---\nrun: [{name: child, step: ../e}]";
    let project = Project::new().step("seq", step);
    let items = |name: &str| {
        format!("- {{name: s, step: ./seq}}\n- {{name: p, script: 'echo ${{{{steps.{name}.outputs.x}}}}'}}")
    };
    project.run(&items("child")).await.assert_error("attribute not found");
    project.run(&items("s.child")).await.assert_error("attribute not found");
    let parent = "{}\n---\nrun: [{name: child, script: 'echo ${{steps.before.outputs.x}}'}]";
    let outcome = Project::new().step("seq", parent).run("- {name: before, step: ./e}\n- {name: s, step: ./seq}").await;
    outcome.assert_error("attribute not found");
}
