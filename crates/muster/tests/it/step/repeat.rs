//! `muster step repeat`.

use super::Project;

/// Step that calls `pack`, which writes its input and environment into a file.
const RELEASE: &str = "spec:\n  inputs: {version: {type: string}, level: {type: number, default: 6}}\n---\nenv: {BRAND: acme}\nrun:\n  \
    - {name: pack, step: ./pack, inputs: {text: '${{ inputs.version }} ${{ inputs.level }}'}}\n  \
    - {name: note, script: 'echo \"note ${{ steps.pack.outputs.size }}\" >note.txt'}\n";
const PACK: &str = "spec:\n  inputs: {text: {type: string}}\n  outputs: {size: {type: string}}\n---\n\
    exec: {command: [sh, -c, 'echo \"$1 $BRAND $SUFFIX\" >out; s=$(wc -c <out); echo \"{\\\"name\\\":\\\"size\\\",\\\"value\\\":\\\"$s\\\"}\" >\"$2\"', \
    pack, '${{ inputs.text }}', '${{ output_file }}']}\n";

/// Returns a project with the results of a run in `r.json`. The file `out` of the run was moved to `kept/out`.
fn recorded_project() -> Project {
    let project = Project::empty();
    project.write("release/step.yml", RELEASE);
    project.write("release/pack/step.yml", PACK);
    let run = ["run", "release", "--input", "version=v1", "--env", "SUFFIX=end", "--results", "r.json"];
    project.step(&run[..]).check(0, &[]);
    project.write("kept/out", &project.read("out"));
    std::fs::remove_file(project.path("out")).unwrap();
    project
}

#[test]
fn artifact_is_reproduced_from_the_result_tree() {
    let project = recorded_project();
    assert_eq!(project.read("kept/out"), "v1 6 acme end\n");
    for step in [&[][..], &["--step", "release"], &["--step", "release/pack"]] {
        project.step(&[&["repeat", "r.json", "--compare", "out=kept/out"], step].concat()).check(0, &[]);
        assert_eq!(project.read("out"), project.read("kept/out"), "{step:?}");
        std::fs::remove_file(project.path("out")).unwrap();
    }
    std::fs::remove_file(project.path("note.txt")).unwrap();
    project.step(&["repeat", "r.json", "--step", "release/note"]).check(0, &[]);
    assert_eq!(project.read("note.txt"), "note 14\n", "the recorded output of the other step must be used");
}

#[test]
fn changed_outputs_and_files_are_reported() {
    let project = recorded_project();
    let repeat = ["repeat", "r.json", "--step", "release/pack", "--compare", "out=kept/out"];
    let other = project.step(&[&repeat[..], &["--env", "SUFFIX=other"]].concat());
    other.check(
        1,
        &[
            "out differs at byte 10; it has 14 bytes after the first run, and 16 after the second",
            "output \"size\" of step pack is \"14\" in the first run, and \"16\" in the second",
            "the result differs from the recorded one: 2 differences",
        ],
    );
    for (arguments, message) in [
        (&["repeat", "none.json"][..], "failed to read none.json"),
        (&["repeat", "r.json", "--step", "release/none"], "has no step \"release/none\"; its steps are pack, note"),
        (&["repeat", "r.json", "--compare", "new=kept/out"], "new exists only after the first run"),
    ] {
        project.step(arguments).check(1, &[message]);
    }
}

#[test]
fn tree_without_recorded_steps_is_reported() {
    let project = Project::empty();
    project.write("empty.json", r#"{"name":"job","status":"success","started_ms":0,"duration_ms":0}"#);
    project.step(&["repeat", "empty.json"]).check(1, &["has no step with recorded inputs"]);
}

#[test]
fn masked_value_must_be_set_for_a_repetition() {
    let project = Project::new();
    let run = ["run", "greet", "--input", "token=s3cret-value", "--results", "r.json"];
    project.step(&run).check(0, &[]);
    let message = "the value of token is masked in the result tree; set it with --input token=VALUE";
    project.step(&["repeat", "r.json"]).check(1, &[message]);
    project.step(&["repeat", "r.json", "--input", "token=s3cret-value"]).check(0, &["Hello world 1"]);
}
