//! Conformance cases C001-C002 and C019-C023: what the text itself decides (pipeline-yaml 8.1).

use crate::case::{fails, job, jobs, script};
use crate::harness::{errors, rejected, warnings, world};

#[test]
fn c001_an_empty_file_has_no_content() {
    for text in ["", "\n\n", "# nothing\n", "---\n"] {
        let compiled = world().compile(text);
        rejected(&compiled.diagnostics, "please provide content of `.gitlab-ci.yml`");
        assert!(compiled.pipeline.is_none() && compiled.not_created.is_none());
    }
}

#[test]
fn c002_a_visible_job_is_needed() {
    fails(".h: {script: [x]}", "should contain at least one visible job");
}

#[test]
fn c019_nested_scripts_are_flattened() {
    assert_eq!(script(&job("a: {script: [p, [q, [r]]]}", "a")).script, ["p", "q", "r"]);
}

#[test]
fn c020_scripts_are_nested_at_most_ten_deep() {
    let nested = |levels: usize| format!("a: {{script: {}x{}}}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(script(&job(&nested(10), "a")).script, ["x"]);
    fails(&nested(11), "script");
}

#[test]
fn c021_a_colon_slip_in_a_script() {
    fails("a: {script: [{echo: hi}]}", "script");
}

#[test]
fn c022_an_element_may_have_several_lines() {
    assert_eq!(script(&job("a: {script: [\"l1\\nl2\", l3]}", "a")).script, ["l1\nl2", "l3"]);
}

#[test]
fn c023_a_repeated_key_keeps_the_last() {
    let text = "a: {script: [x]}\na: {script: [y]}";
    assert_eq!(jobs(text), ["a"]);
    assert_eq!(script(&job(text, "a")).script, ["y"]);
    let compiled = world().compile(text);
    assert_eq!(errors(&compiled.diagnostics), [""; 0]);
    assert_eq!(warnings(&compiled.diagnostics), ["`a` is written twice; the last one is used"]);
}
