//! Cases 34 to 47 and 49: texts with expressions, and lookups.
//!
//! Step `e` prints its inputs `s`, `n`, `b`, `o` and `a`, separated by `|`.

use super::harness::{Outcome, Project};

const VALUES: &str = "spec:
  outputs:
    arr: {type: array, default: [a, {k: v}]}
    obj: {type: struct, default: {k: {deep: 1}}}
    s: {type: string, default: text}
---
exec: {command: ['true']}
";

/// Runs a script with this text after step `v`, which returns [`VALUES`].
async fn script(project: &Project, text: &str) -> Outcome {
    let text = text.replace('\'', "''");
    project.run(&format!("- {{name: v, step: ./v}}\n- {{name: s, script: '{text}'}}")).await
}

fn current() -> Project {
    Project::new().step("v", VALUES).variable("V", "value").env("GE", "global")
}

fn legacy() -> Project {
    Project::legacy().step("v", VALUES).variable("V", "value").env("GE", "global")
}

async fn assert_prints(project: &Project, text: &str, expected: &str) {
    assert_eq!(script(project, text).await.log(), format!("{expected}\n"), "{text}");
}

async fn assert_fails(project: &Project, text: &str, part: &str) {
    script(project, text).await.assert_error(part);
}

#[tokio::test]
async fn c034_spaces_around_an_expression_are_ignored() {
    for project in [current(), legacy()] {
        assert_prints(&project, "echo ${{job.V}} ${{  job.V  }}", "value value").await;
    }
}

#[tokio::test]
async fn c035_several_expressions_form_a_string() {
    for project in [current(), legacy()] {
        assert_prints(&project, "echo ${{job.V}}:${{env.GE}}", "value:global").await;
    }
}

#[tokio::test]
async fn c036_sole_expression_keeps_its_type() {
    for project in [current(), legacy()] {
        let items = "- {name: v, step: ./v}\n\
                     - {name: e, step: ./e, inputs: {o: '${{steps.v.outputs.obj}}', s: '-${{steps.v.outputs.obj}}'}}";
        let inner = "spec: {inputs: {o: {type: struct}}}\n---\nexec: {command: [echo, '${{inputs.o.k.deep}}']}";
        let project = project.step("inner", inner);
        assert_eq!(project.run(items).await.log(), "-{\"k\":{\"deep\":1}}|1|true|{\"k\":{\"deep\":1}}|[]|\n");
        let items = "- {name: v, step: ./v}\n- {name: i, step: ./inner, inputs: {o: '${{steps.v.outputs.obj}}'}}";
        assert_eq!(project.run(items).await.log(), "1\n");
    }
}

#[tokio::test]
async fn c037_values_of_objects_are_expanded_but_not_their_keys() {
    for project in [current(), legacy()] {
        let inputs = "{o: {'${{job.V}}': '${{job.V}}'}, a: ['${{job.V}}', ['${{job.V}}']]}";
        let outcome = project.run(&format!("- {{name: e, step: ./e, inputs: {inputs}}}")).await;
        assert_eq!(outcome.log(), "d|1|true|{\"${{job.V}}\":\"value\"}|[\"value\",[\"value\"]]|\n");
    }
}

#[tokio::test]
async fn c038_unknown_names_are_in_the_error_legacy() {
    let project = legacy();
    assert_fails(&project, "${{ nope }}", "nope: the \"nope\" was not found").await;
    assert_fails(&project, "${{ }}", ": the \"\" was not found").await;
    assert_fails(&project, "${{ env.A.B }}", "env.A.B: the \"A\" was not found").await;
    assert_fails(&project, "${{ vars.V }}", "the \"vars\" was not found").await;
    assert_fails(&project, "${{ job . V }}", "the \"job \" was not found").await;
    assert_fails(&project, "${{ steps.v.exports }}", "the \"exports\" was not found").await;
}

#[tokio::test]
async fn c038_unknown_names_are_in_the_error_current() {
    let project = current();
    assert_fails(&project, "${{ nope }}", "at \".nope\": attribute not found").await;
    assert_fails(&project, "${{ }}", "expected a value").await;
    assert_fails(&project, "${{ env.A.B }}", "at \".A\": attribute not found").await;
}

#[tokio::test]
async fn c039_string_has_no_fields_legacy() {
    assert_fails(&legacy(), "${{ env.GE.B }}", "\"string\" is not supported").await;
}

#[tokio::test]
async fn c040_whole_maps_cannot_be_read_legacy() {
    for name in ["job", "env", "inputs", "steps", "steps.v", "steps.v.outputs"] {
        assert_fails(&legacy(), &format!("${{{{ {name} }}}}"), "invalid type").await;
    }
}

#[tokio::test]
async fn c040_whole_maps_are_objects_current() {
    let project = current();
    assert_prints(&project, "echo '${{ job }}'", "{\"V\":\"value\"}").await;
    let items = "- {name: v, step: ./v}\n- {name: e, step: ./e, inputs: {o: '${{ steps.v.outputs }}'}}";
    let expected = "d|1|true|{\"arr\":[\"a\",{\"k\":\"v\"}],\"obj\":{\"k\":{\"deep\":1}},\"s\":\"text\"}|[]|\n";
    assert_eq!(project.run(items).await.log(), expected);
}

#[tokio::test]
async fn c041_item_of_array_cannot_be_read_legacy() {
    assert_fails(&legacy(), "${{ steps.v.outputs.arr.0 }}", "is not map to get \"0\" key").await;
}

#[tokio::test]
async fn c041_item_of_array_has_an_index_current() {
    let project = current();
    assert_fails(&project, "${{ steps.v.outputs.arr.0 }}", "parser: ").await;
    let text = "echo ${{ steps.v.outputs.arr[0] }} ${{ steps.v.outputs.arr[1].k }}";
    assert_prints(&project, text, "a v").await;
}

#[tokio::test]
async fn c042_unclosed_expression_is_rejected() {
    for project in [current(), legacy()] {
        assert_fails(&project, "echo ${{ job.V", "the \"${{ job.V\" is not closed").await;
    }
}

#[tokio::test]
async fn c043_closing_braces_outside_an_expression_are_rejected_legacy() {
    assert_fails(&legacy(), "echo a }} b", "the \"echo a }} b\" has extra '}}'").await;
}

#[tokio::test]
async fn c043_closing_braces_outside_an_expression_are_literal_current() {
    assert_prints(&current(), "echo a }} b", "a }} b").await;
}

#[tokio::test]
async fn c044_single_braces_in_a_shell_script_are_literal() {
    for project in [current(), legacy()] {
        assert_prints(&project, "{ { echo hi; }; }", "hi").await;
    }
}

#[tokio::test]
async fn c044_double_closing_braces_in_a_shell_script_are_rejected_legacy() {
    assert_fails(&legacy(), "x={a}}; echo $x", "has extra '}}'").await;
}

#[tokio::test]
async fn c044_double_closing_braces_in_a_shell_script_are_literal_current() {
    assert_prints(&current(), "x={a}}; echo $x", "{a}}").await;
}

#[tokio::test]
async fn c045_brace_after_an_expression_is_literal() {
    for project in [current(), legacy()] {
        assert_prints(&project, "echo ${{job.V}}}", "value}").await;
    }
}

#[tokio::test]
async fn c046_nested_expression_is_rejected() {
    for project in [current(), legacy()] {
        script(&project, "echo ${{ job.${{ job.V }} }}").await.assert_error("step \"s\"");
    }
}

#[tokio::test]
async fn c047_backslash_does_not_escape_an_expression_legacy() {
    assert_prints(&legacy(), r"echo '\${{ job.V }}'", r"\value").await;
}

#[tokio::test]
async fn c047_backslash_escapes_an_expression_current() {
    assert_prints(&current(), r"echo '\${{ job.V }}'", "${{ job.V }}").await;
}

#[tokio::test]
async fn c049_variables_of_the_job_are_not_in_env() {
    assert_fails(&legacy(), "${{ env.V }}", "env.V: the \"V\" was not found").await;
    assert_fails(&current(), "${{ env.V }}", "evaluating expression failed at \".V\": attribute not found").await;
}
