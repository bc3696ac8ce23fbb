//! Cases 74 to 81: layers of the environment.

use super::harness::Project;

#[tokio::test]
async fn c074_env_may_contain_expressions() {
    let show = "{}\n---\nexec: {command: [sh, -c, 'echo $A $B']}\nenv: {A: 'definition ${{env.GLOBAL}}'}";
    let project = || Project::new().env("GLOBAL", "global").variable("V", "v").step("show", show);
    let outcome = project().run("- {name: s, step: ./show, env: {B: 'item ${{job.V}}'}}").await;
    assert_eq!(outcome.log(), "definition global item v\n");
    let file =
        "{}\n---\nenv: {C: 'run-${{env.GLOBAL}}'}\nrun:\n- {name: s, script: 'echo $C', env: {C: 'item-${{env.C}}'}}";
    assert_eq!(project().run_file(file).await.log(), "item-run-global\n");
}

#[tokio::test]
async fn c075_inner_layers_override_outer_ones() {
    let show = "{}\n---\nexec: {command: [sh, -c, 'echo $A $B $C $D']}\nenv: {D: definition}";
    let project = ["A", "B", "C", "D"].into_iter().fold(Project::new(), |project, name| project.env(name, "global"));
    let file = "{}\n---\nenv: {B: run, C: run, D: run}\nrun:\n- {name: s, step: ./show, env: {C: item, D: item}}";
    assert_eq!(project.step("show", show).run_file(file).await.log(), "global run item definition\n");
}

#[tokio::test]
async fn c076_env_of_an_item_is_not_visible_in_its_inputs() {
    let outcome = Project::new().run("- {name: e, step: ./e, env: {A: a}, inputs: {s: '${{env.A}}'}}").await;
    outcome.assert_error("failed to load: expand input \"s\": ");
}

#[tokio::test]
async fn c077_env_of_an_item_does_not_reach_the_next_item() {
    let items = "- {name: a, script: 'echo \"<$A>\"', env: {A: a}}\n- {name: b, script: 'echo \"<$A>\"'}";
    assert_eq!(Project::new().run(items).await.log(), "<a>\n<>\n");
}

#[tokio::test]
async fn c078_variables_of_one_block_do_not_see_each_other() {
    let items = "- {name: a, script: 'echo $B', env: {A: inner, B: 'from ${{env.A}}'}}";
    assert_eq!(Project::new().env("A", "outer").run(items).await.log(), "from outer\n");
    let file = "{}\n---\nexec: {command: [sh, -c, 'echo $B']}\nenv: {A: inner, B: 'from ${{env.A}}'}";
    assert_eq!(Project::new().env("A", "outer").run_file(file).await.log(), "from outer\n");
    Project::new().run(items).await.assert_error("failed to load: env \"B\": ");
    Project::new().run_file(file).await.assert_error("expand step env: env variable \"B\": ");
}

#[tokio::test]
async fn c079_struct_in_env_is_json() {
    let step =
        "spec: {inputs: {o: {type: struct}}}\n---\nexec: {command: [sh, -c, 'echo \"$O\"']}\nenv: {O: '${{inputs.o}}'}";
    let outcome = Project::new().step("json", step).run("- {name: a, step: ./json, inputs: {o: {b: 1, a: [x]}}}").await;
    assert_eq!(outcome.log(), "{\"a\":[\"x\"],\"b\":1}\n");
}

#[tokio::test]
async fn c080_log_level_is_in_the_environment() {
    let items = "- {name: a, script: 'echo $CI_STEPS_LOG_LEVEL ${{env.CI_STEPS_LOG_LEVEL}}'}";
    assert_eq!(Project::new().run(items).await.log(), "info info\n");
    assert_eq!(Project::new().env("CI_STEPS_LOG_LEVEL", "error").run(items).await.log(), "error error\n");
    let project = Project::new().env("CI_STEPS_LOG_LEVEL", "error").variable("CI_STEPS_LOG_LEVEL", " DEBUG ");
    assert_eq!(project.run(items).await.log(), "debug debug\n");
}

#[tokio::test]
async fn c080_unknown_log_level_is_rejected() {
    let outcome = Project::new().variable("CI_STEPS_LOG_LEVEL", "loud").run("- {name: a, script: echo}").await;
    assert_eq!(outcome.log_before_error(), "");
    outcome.assert_error("log level: loud not supported");
}

#[tokio::test]
async fn c081_variables_of_the_job_are_not_in_the_environment() {
    let items = "- {name: a, script: 'echo \"<$V> ${{job.V}}\"'}";
    assert_eq!(Project::new().variable("V", "v").run(items).await.log(), "<> v\n");
    let items = "- {name: a, script: 'echo \"<$V> ${{vars.V}}\"'}";
    assert_eq!(Project::new().variable("V", "v").run(items).await.log(), "<> v\n");
}
