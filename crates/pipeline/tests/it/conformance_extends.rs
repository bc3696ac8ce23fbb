//! Conformance cases C102-C113: `extends`, `!reference`, anchors (docs/spec/pipeline-yaml.md, section 8.4).

use muster_pipeline::model::When;
use serde_json::{Value, json};

use crate::case::{Case, job, jobs, script, value};
use crate::harness::{assert_rejected, errors, merged, project};

#[track_caller]
fn tree(text: &str) -> Value {
    merged(&project().load(text))
}

/// Returns a chain of jobs: `j0` extends `j1`, and so on. The last job has the script.
fn chain(jobs: usize) -> String {
    let links = (1..jobs).map(|index| format!("j{}: {{extends: j{index}}}\n", index - 1));
    links.chain([format!("j{}: {{script: [x]}}\n", jobs - 1)]).collect()
}

#[test]
fn c102_extends_merges_maps() {
    let text = ".b: {script: [x], variables: {A: 1, B: 1}}\na: {extends: .b, variables: {B: 2}}";
    assert_eq!(tree(text)["a"]["variables"], json!({"A": 1, "B": 2}));
    let a = job(text, "a");
    assert_eq!((value(&a, "A").as_deref(), value(&a, "B").as_deref()), (Some("1"), Some("2")));
}

#[test]
fn c103_later_parents_win() {
    let parents = ".x: {script: [p]}\n.y: {script: [q], image: i}\n";
    let a = |order: &str| tree(&format!("{parents}a: {{extends: [{order}]}}"))["a"].clone();
    assert_eq!(a(".x, .y"), json!({"script": ["q"], "image": "i", "extends": [".x", ".y"]}));
    assert_eq!(a(".y, .x")["script"], json!(["p"]));
}

#[test]
fn c104_lists_and_null_replace_inherited_values() {
    let base = ".b: {script: [x], tags: [t1], variables: {A: 1}}\n";
    let a = |keys: &str| tree(&format!("{base}a: {{extends: .b, {keys}}}"))["a"].clone();
    assert_eq!(a("tags: [t2]")["tags"], json!(["t2"]));
    assert_eq!(a("tags: ~")["tags"], json!(null));
    assert_eq!(a("variables: ~")["variables"], json!(null));
    assert_eq!(job(&format!("{base}a: {{extends: .b, tags: [t2]}}"), "a").tags, ["t2"]);
    assert_eq!(job(&format!("{base}a: {{extends: .b, tags: ~}}"), "a").tags, [""; 0]);
}

#[test]
fn c105_unknown_or_invalid_parent_is_rejected() {
    let loaded = project().load(".node: {image: n}\na: {extends: .nope, script: [x]}");
    assert_rejected(&loaded.diagnostics, "a: unknown keys in `extends` (.nope)");
    assert_eq!(loaded.diagnostics[0].help.as_deref(), Some("did you mean `.node`?"));
    assert_rejected(
        &project().load(".b: text\na: {extends: .b}").diagnostics,
        "invalid base in `extends`: `.b` is text",
    );
    assert_rejected(&project().load("a: {extends: {b: c}}").diagnostics, "`extends` must be a job's name");
    assert_rejected(
        &project().load("b: {c: d}\na: {extends: [!reference [b, c]]}").diagnostics,
        "`extends` must be a job's name",
    );
}

#[test]
fn c106_circular_extends_is_rejected() {
    let loaded = project().load(".a: {extends: .b}\n.b: {extends: .a}\nj: {extends: .a, script: [x]}");
    assert_rejected(&loaded.diagnostics, ".a: circular dependency detected in `extends`: .a -> .b -> .a");
    assert_rejected(&project().load("a: {extends: a, script: [x]}").diagnostics, "circular dependency");
}

#[test]
fn second_cycle_of_the_same_key_is_reported() {
    let text = ".a: {extends: [.b, .c]}\n.b: {extends: [.a, .a]}\n.c: {extends: [.d, .b, .a]}\n.d: {extends: .c}\n\
                j: {extends: [.a, .d], script: [x]}";
    let found = errors(&project().load(text).diagnostics);
    let cycle = |key: &str, names: &str| format!("{key}: circular dependency detected in `extends`: {names}");
    let expected = [cycle(".a", ".a -> .b -> .a"), cycle(".c", ".c -> .d -> .c"), cycle(".a", ".a -> .c -> .a")];
    assert_eq!(found, expected);
}

#[test]
fn c107_extends_nests_at_most_eleven_levels_deep() {
    assert_eq!(tree(&chain(11))["j0"]["script"], json!(["x"]));
    assert_eq!(jobs(&chain(11)).len(), 11);
    let loaded = project().load(chain(12));
    assert_rejected(&loaded.diagnostics, "j0: nesting too deep in `extends`");
    assert_rejected(&project().load(chain(5_000)).diagnostics, "nesting too deep in `extends`");
}

#[test]
fn c108_parent_can_be_a_visible_job() {
    let text = "a: {script: [x], stage: build}\nb: {extends: a}";
    assert_eq!(jobs(text), ["a", "b"]);
    assert_eq!(job(text, "b").stage, "build");
    let loaded = project().load(text);
    assert_eq!(merged(&loaded)["b"], json!({"script": ["x"], "stage": "build", "extends": "a"}));
    assert_eq!(loaded.parents["b"].iter().map(|parent| parent.name.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn c109_reference_makes_a_nested_list() {
    let text = ".s: {script: [p, q]}\na: {script: [!reference [.s, script], r]}";
    assert_eq!(tree(text)["a"]["script"], json!([["p", "q"], "r"]), "only the parser of `script` flattens the list");
    assert_eq!(script(&job(text, "a")).script, ["p", "q", "r"]);
}

#[test]
fn c110_missing_and_circular_references_are_rejected() {
    let missing = project().load(".s: {scripts: [p]}\na: {script: [!reference [.s, script]]}");
    assert_rejected(&missing.diagnostics, "`!reference [.s, script]` could not be found");
    assert_eq!(missing.diagnostics[0].help.as_deref(), Some("did you mean `scripts`?"));
    let deep = project().load(".s: {k: text}\na: {script: [!reference [.s, k, x]]}");
    assert_rejected(&deep.diagnostics, "could not be found");
    let circular = project().load("a: {script: [!reference [b, script]]}\nb: {script: [!reference [a, script]]}");
    assert!(errors(&circular.diagnostics)[0].contains("is part of a circular chain"), "{:?}", circular.diagnostics);
    let self_reference = project().load(".a: {x: [!reference [.a]]}");
    assert!(errors(&self_reference.diagnostics)[0].contains("is part of a circular chain"));
}

#[test]
fn c111_reference_can_refer_to_rules_that_a_job_inherits() {
    let text = ".r: {rules: [{if: $CI_COMMIT_TAG}]}\n.e: {extends: .r}\na: {script: [x], rules: [!reference [.e, rules], {when: manual}]}";
    assert_eq!(tree(text)["a"]["rules"], json!([[{"if": "$CI_COMMIT_TAG"}], {"when": "manual"}]));
    assert_eq!(job(text, "a").when, When::Manual);
    assert_eq!(Case::new(text).tag("v1").job("a").when, When::OnSuccess);
}

#[test]
fn c112_later_keys_override_merge_keys() {
    let text = ".d: &d {image: i, retry: 1}\na: {<<: *d, script: [x], retry: 2}";
    assert_eq!(tree(text)["a"], json!({"image": "i", "retry": 2, "script": ["x"]}));
}

#[test]
fn c113_anchors_do_not_cross_files() {
    let project = project().file("c.yml", ".d: &d {image: i}");
    assert_rejected(&project.load("include: c.yml\na: {<<: *d, script: [x]}").diagnostics, "unknown alias `d`");
}

#[test]
fn references_can_be_chained_ten_deep() {
    let chain = |links: usize| {
        let links = (1..=links).map(|index| format!(".r{}: [!reference [.r{index}]]\n", index - 1)).collect::<String>();
        format!("{links}.r{}: [x]\n", links.lines().count())
    };
    assert_eq!(errors(&project().load(chain(10)).diagnostics), [""; 0]);
    assert_rejected(&project().load(chain(11)).diagnostics, "referred to by a chain of more than 10 references");
}

#[test]
fn expansion_to_millions_of_values_is_rejected() {
    let wide = vec!["!reference [.r1]"; 100].join(", ");
    let lists = (0..9).map(|level| format!(".r{level}: [{}]\n", wide.replace(".r1", &format!(".r{}", level + 1))));
    let references = lists.chain([".r9: [x]\n".to_owned()]).collect::<String>();
    let keys: String = (0..5_000).map(|index| format!("  k{index}: 1\n")).collect();
    let children: String = (0..5_000).map(|index| format!("c{index}: {{extends: .p}}\n")).collect();
    for text in [references, format!(".p:\n{keys}{children}")] {
        assert_rejected(&project().load(text).diagnostics, "more than 2000000 values");
    }
}
