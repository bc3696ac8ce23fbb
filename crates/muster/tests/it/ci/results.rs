//! Result tree of a finished job: its parameters, and the repetition of its steps.

use serde_json::{Value, json};

use super::Project;

/// Step that writes its input and its environment into the file `out`.
const PACK: &str = "spec:\n  inputs: {text: {type: string}}\n  outputs: {size: {type: string}}\n---\n\
    exec: {command: [sh, -c, 'echo \"$1 $BRAND\" >out; s=$(wc -c <out); echo \"{\\\"name\\\":\\\"size\\\",\\\"value\\\":\\\"$s\\\"}\" >\"$2\"', \
    pack, '${{ inputs.text }}', '${{ output_file }}']}\n";

const JOB: &str = r"
build:
  run:
    - {name: pack, step: ./pack, inputs: {text: 'v ${{ vars.CI_JOB_NAME }}'}, env: {BRAND: acme}}
    - {name: fails, script: exit 7}
  artifacts: {paths: [out], when: always}
scripted:
  script: [echo scripted]
";

/// Runs the pipeline. Returns the project, and the tree of the job `build`, which is also in `tree.json`.
fn run_build() -> (Project, Value) {
    let project = Project::empty();
    project.write("pack/step.yml", PACK);
    project.write(".gitlab-ci.yml", JOB);
    project.commit("First commit");
    project.ci(&["run"]).code(1);
    let shown = project.ci(&["show", "last", "build", "--results"]).code(0);
    project.write("tree.json", &shown.out);
    let tree = serde_json::from_str(&shown.out).unwrap();
    (project, tree)
}

fn find<'t>(node: &'t Value, name: &str) -> Option<&'t Value> {
    let steps = node["steps"].as_array()?;
    steps.iter().find_map(|step| if step["name"] == name { Some(step) } else { find(step, name) })
}

#[test]
fn result_tree_of_a_failed_job_is_complete() {
    let (project, tree) = run_build();
    let step = |name: &str| find(&tree, name).unwrap_or_else(|| panic!("no {name} in {tree:#}"));
    let pack = &step("pack")["call"];
    assert_eq!((&pack["step"], &pack["inputs"]), (&json!("./pack"), &json!({ "text": "v build" })));
    assert_eq!((&pack["env"]["BRAND"], &pack["outputs"]), (&json!("acme"), &json!({ "size": "13" })));
    assert_eq!(pack["command"][0], "sh");
    let fails = step("fails");
    assert_eq!((&fails["status"], &fails["exit_code"]), (&json!("failure"), &json!(7)));
    assert_eq!(fails["call"]["inputs"]["script"], "exit 7");
    let checkout = &step("get_sources")["call"];
    assert_eq!(checkout["step"], "builtin:checkout");
    assert_eq!(checkout["inputs"]["sha"], json!(project.git(&["rev-parse", "HEAD"])));
    let artifacts = &step("upload_artifacts_on_failure")["call"]["inputs"]["artifacts"];
    assert_eq!(artifacts[0]["paths"], json!(["out"]));
}

#[test]
fn finished_job_is_repeated_from_its_results() {
    let (project, _) = run_build();
    let run = |arguments: &[&str]| {
        super::CommandOutput::from(project.muster(&[&["step"], arguments].concat()).output().unwrap())
    };
    let target = project.path().join("kept");
    project.ci(&["show", "last", "build", "--extract", target.to_str().unwrap()]).code(0);
    assert_eq!(std::fs::read_to_string(target.join("out")).unwrap(), "v build acme\n");
    let repeat = ["repeat", "tree.json", "--step", "pack", "--compare", "out=kept/out"];
    run(&repeat).code(0);
    assert_eq!(std::fs::read_to_string(project.path().join("out")).unwrap(), "v build acme\n");
    run(&[&repeat[..], &["--env", "BRAND=other"]].concat()).code(1).prints("out differs at byte 8");
    run(&["repeat", "tree.json", "--step", "fails"]).code(7);
    run(&["repeat", "tree.json"]).code(1).warns("has several steps; select one with --step: pack, fails");
    run(&["repeat", "tree.json", "--step", "get_sources"])
        .code(1)
        .warns("\"get_sources\" is a built-in step, which cannot be repeated");
    run(&["results", "tree.json"]).code(0).prints("step: ./pack").prints("text = v build");
}

#[test]
fn results_need_a_job_that_ran() {
    let (project, _) = run_build();
    project.ci(&["show", "last", "--results"]).code(2).warns("`--results` and `--extract` require a job");
    project.ci(&["show", "scripted", "--results"]).code(0).prints("builtin:script").prints("echo scripted");
    project.write(".gitlab-ci.yml", "a: {script: exit 1}\nb: {stage: deploy, script: 'true'}\n");
    project.commit("Fail first");
    project.ci(&["run"]).code(1);
    project.ci(&["show", "b", "--results"]).code(2).warns("job `b` has no result tree");
}
