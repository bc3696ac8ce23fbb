//! Sensitive inputs and outputs, which have no numbered case.

use std::fs;

use super::harness::Project;

const INPUT: &str = "spec:
  inputs:
    token: {type: string, sensitive: true}
    open: {type: string, default: visible}
---
exec: {command: [sh, -c, 'echo \"$1 $2\"; printf %s \"$1\"', s, '${{inputs.token}}', '${{inputs.open}}']}
";

#[tokio::test]
async fn sensitive_input_is_masked_even_inside_other_text() {
    let item = "- {name: s, step: ./s, inputs: {token: 'secret-${{vars.V}}'}}\n- {name: p, script: 'echo joined:secret-value:'}";
    let outcome = Project::new().variable("V", "value").step("s", INPUT).run(item).await;
    assert_eq!(outcome.log(), "[MASKED] visible\n[MASKED]joined:[MASKED]:\n");
}

#[tokio::test]
async fn sensitive_output_is_masked_in_later_steps() {
    let step = "spec: {outputs: {o: {type: struct, sensitive: true}}}\n---\n\
                exec: {command: [sh, -c, 'echo ''{\"name\":\"o\",\"value\":{\"k\":[\"hidden-value\",123456]}}'' >${{output_file}}']}";
    let items = "- {name: o, step: ./o}\n- {name: p, script: 'echo ''${{steps.o.outputs.o}}'' 123456'}";
    let outcome = Project::new().step("o", step).run(items).await;
    assert_eq!(outcome.log(), "{\"k\":[\"[MASKED]\",[MASKED]]} [MASKED]\n");
}

#[tokio::test]
async fn sensitive_value_is_masked_in_messages_and_results() {
    let step = "spec: {inputs: {token: {type: string, sensitive: true}}}\n---\nexec: {command: ['${{inputs.token}}']}";
    let project = Project::new().variable("CI_STEPS_DEBUG", "true").variable("V", "hidden-value").step("s", step);
    let outcome = project.run("- {name: s, step: ./s, inputs: {token: '${{vars.V}}'}}").await;
    outcome.assert_error("exec: exec: \"[MASKED]\": executable file not found in $PATH");
    assert!(!outcome.error().contains("hidden-value"));
    let results = fs::read_to_string(project.path().join("step-results.json")).unwrap();
    assert!(results.contains("[MASKED]") && !results.contains("hidden-value"), "{results}");
}

#[tokio::test]
async fn error_of_a_file_with_sensitive_outputs_does_not_quote_the_file() {
    let step = |sensitive: bool| {
        let command = "exec: {command: [sh, -c, 'echo token=hidden-value >${{output_file}}']}";
        format!("spec: {{outputs: {{token: {{type: string, sensitive: {sensitive}}}}}}}\n---\n{command}")
    };
    for (sensitive, is_quoted) in [(false, true), (true, false)] {
        let project = Project::new().variable("CI_STEPS_DEBUG", "true").step("s", &step(sensitive));
        let error = project.run("- {name: s, step: ./s}").await.error();
        assert!(error.contains("failed to unmarshal JSON at line 1"), "{error}");
        assert_eq!(error.contains("hidden-value"), is_quoted, "{error}");
    }
}
