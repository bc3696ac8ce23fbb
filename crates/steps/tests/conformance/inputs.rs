//! Cases 24 to 33: inputs and their types.

use super::harness::Project;

async fn echo(project: Project, inputs: &str) -> String {
    project.run(&format!("- {{name: e, step: ./e, inputs: {inputs}}}")).await.log().trim_end().to_owned()
}

#[tokio::test]
async fn c024_types_of_inputs_are_not_checked_legacy() {
    assert_eq!(echo(Project::legacy(), "{n: abc, s: 42, b: 12}").await, "42|abc|12|{}|[]|");
}

#[tokio::test]
async fn c025_null_is_a_value() {
    assert_eq!(echo(Project::new(), "{s: null}").await, "null|1|true|{}|[]|");
}

#[tokio::test]
async fn c026_numbers_are_written_as_in_go() {
    let printed = echo(Project::new(), "{n: 12345678901234567890, a: [1000000, 1e21, 0.0000001]}").await;
    assert_eq!(printed, "d|12345678901234567000|true|{}|[1000000,1e+21,1e-7]|");
}

#[tokio::test]
async fn c027_html_characters_are_escaped_in_json_legacy() {
    let printed = echo(Project::legacy(), r#"{o: {k: "<a>&b"}}"#).await;
    assert_eq!(printed, r#"d|1|true|{"k":"\u003ca\u003e\u0026b"}|[]|"#);
}

#[tokio::test]
async fn c028_array_of_objects_is_an_input_current() {
    assert_eq!(echo(Project::new(), "{a: [1, x, {k: v}]}").await, r#"d|1|true|{}|[1,"x",{"k":"v"}]|"#);
}

#[tokio::test]
async fn c029_default_may_nest_arrays_of_objects() {
    let step = "spec: {inputs: {o: {type: struct, default: {list: [{k: [1, {deep: true}]}]}}}}\n---\n\
                exec: {command: [echo, '${{inputs.o}}']}";
    for project in [Project::new(), Project::legacy()] {
        let outcome = project.step("nested", step).run("- {name: a, step: ./nested}").await;
        assert_eq!(outcome.log(), "{\"list\":[{\"k\":[1,{\"deep\":true}]}]}\n");
    }
}

#[tokio::test]
async fn c030_undeclared_input_is_rejected() {
    let outcome = Project::new().run("- {name: e, step: ./e, inputs: {z: 1}}").await;
    outcome.assert_error("step \"e\": failed to load: step does not accept input with name \"z\"");
}

#[tokio::test]
async fn c031_required_input_must_be_given() {
    let outcome = Project::new().run("- {name: w, step: ./w}").await;
    outcome.assert_error(
        "step \"w\": failed to load: failed to parse spec definition: input \"line\" required, but not defined",
    );
}

#[tokio::test]
async fn c031_null_default_leaves_the_input_required() {
    let step = "spec: {inputs: {a: {type: string, default: null}}}\n---\nexec: {command: [echo]}";
    let outcome = Project::new().step("none", step).run("- {name: a, step: ./none}").await;
    outcome.assert_error("input \"a\" required, but not defined");
}

#[tokio::test]
async fn c032_expression_in_default_is_literal() {
    let step =
        "spec: {inputs: {s: {type: string, default: '${{ job.V }}'}}}\n---\nexec: {command: [echo, '${{inputs.s}}']}";
    let outcome = Project::new().step("literal", step).run("- {name: a, step: ./literal}").await;
    assert_eq!(outcome.log(), "${{ job.V }}\n");
}

#[tokio::test]
async fn c033_outermost_step_uses_defaults_and_cannot_have_required_inputs() {
    let file =
        |input: &str| format!("spec: {{inputs: {{a: {input}}}}}\n---\nexec: {{command: [echo, '${{{{inputs.a}}}}']}}");
    let outcome = Project::new().run_file(&file("{type: string}")).await;
    outcome.assert_error("input \"a\" required, but not defined");
    let outcome = Project::new().run_file(&file("{type: number, default: 1.50}")).await;
    assert_eq!(outcome.log(), "1.5\n");
}

#[tokio::test]
async fn names_of_inputs_and_variables_may_be_expressions_current() {
    let items = "- {name: e, step: ./e, inputs: {'${{ vars.INPUT }}': x}}\n\
                 - {name: s, script: 'echo $NAMED', env: {'${{ vars.VARIABLE }}': y}}";
    let project = || Project::new().variable("INPUT", "s").variable("VARIABLE", "NAMED");
    assert_eq!(project().run(items).await.log(), "x|1|true|{}|[]|\ny\n");
    project().variable("INPUT", "a b").run(items).await.assert_error("\"a b\" is not a valid name");
    let outcome = Project::legacy().variable("INPUT", "s").run(items).await;
    outcome.assert_error("\"${{ vars.INPUT }}\" is not a valid name");
}
