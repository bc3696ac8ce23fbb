//! Tests of loading: files that are not configurations, several errors at once, and the files of child pipelines.

use muster_pipeline::context::ChildSource;
use muster_pipeline::load;
use serde_json::json;

use crate::harness::{assert_rejected, errors, merged, project};

#[test]
fn rejects_blank_binary_and_invalid_files() {
    for text in ["", "# only a comment\n", "---\n", "\u{feff}"] {
        assert_rejected(&project().load(text).diagnostics, "please provide content of `.gitlab-ci.yml`");
    }
    assert_rejected(
        &project().load("- a\n- b").diagnostics,
        "invalid configuration format: `.gitlab-ci.yml` is a list",
    );
    assert_rejected(&project().load(b"a: \xff\xfe").diagnostics, "`.gitlab-ci.yml` is not UTF-8 text");
    let project = project().file("empty.yml", "\n").file("bad.yml", "a: [").file("big.yml", vec![b'#'; 3_000_000]);
    assert_rejected(&project.load("include: empty.yml").diagnostics, "included file `empty.yml` is empty");
    assert_rejected(&project.load("include: big.yml").diagnostics, "`big.yml`: the file is too large: 3000000 bytes");
    let bad = project.load("include: bad.yml");
    assert_rejected(&bad.diagnostics, "invalid YAML");
    assert_eq!(bad.diagnostics[0].related.len(), 1, "the include entry must be shown");
}

#[test]
fn all_errors_are_reported_at_once() {
    let project = project().file("c.yml", "spec: {inputs: {n: {type: number}}}\n---\na: {script: [x]}");
    let includes = "include: [nope.yml, {local: c.yml, inputs: {n: x}}, {lcal: d.yml}]\n";
    let job = "j: {extends: [.no, .where], script: [!reference [.j, k]]}";
    for (text, count) in [(job.to_owned(), 3), (format!("{includes}{job}"), 3)] {
        let found = errors(&project.load(&text).diagnostics);
        assert_eq!(found.len(), count, "of {text}: {found:#?}");
    }
}

#[test]
fn merges_the_files_of_a_child_pipeline() {
    let project = project()
        .file("c.yml", "spec: {inputs: {i: {default: none}}}\n---\na: {script: ['$[[ inputs.i ]]'], image: c}");
    let artifact = ChildSource::Artifact {
        name: "g.yml from job gen".to_owned(),
        bytes: b"spec: {inputs: {k: }}\n---\na: {image: '$[[ inputs.k ]]'}".to_vec(),
        inputs: vec![("k".to_owned(), json!("generated"))],
    };
    let entry = ChildSource::Entry(json!({"local": "c.yml", "inputs": {"i": "given"}}));
    let loaded = project.load_child(&[entry.clone(), artifact.clone()]);
    assert_eq!(merged(&loaded)["a"], json!({"script": ["given"], "image": "generated"}));
    assert_eq!(merged(&project.load_child(std::slice::from_ref(&artifact)))["a"]["image"], "generated");
    assert_eq!(merged(&project.load_child(&[ChildSource::Entry(json!("c.yml"))]))["a"]["image"], "c");
    let child = project.compile_child(&[entry.clone(), artifact.clone()]).pipeline.unwrap();
    assert_eq!(child.jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["a"]);
    let missing = project.load_child(&[ChildSource::Entry(json!({"local": "nope.yml"}))]);
    assert_rejected(&missing.diagnostics, "local file `nope.yml` does not exist");
    let four = vec![entry; 4];
    assert_rejected(&project.load_child(&four).diagnostics, "trigger:include config is too long");
}

#[test]
fn hidden_jobs_are_not_bridges() {
    let triggers = [("t", "c.yml"), ("g", "{artifact: g.yml, job: t}")];
    let jobs = |prefix: &str| {
        let job = |(name, include): (&str, &str)| format!("{prefix}{name}: {{trigger: {{include: [{include}]}}}}\n");
        triggers.map(job).concat()
    };
    let hidden = project().load(jobs("."));
    assert_eq!((load::children(&hidden.root), load::generated_children(&hidden.root)), (vec![], vec![]));
    let visible = project().load(jobs(""));
    assert_eq!(load::children(&visible.root), [[ChildSource::Entry(json!("c.yml"))]]);
    assert_eq!(load::generated_children(&visible.root), ["g"]);
}
