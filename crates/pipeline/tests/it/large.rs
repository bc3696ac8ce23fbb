//! Large configurations, which are compiled or rejected. Each test would take minutes if its time were quadratic in the
//! size.

use std::fmt::Write as _;

use crate::harness::{assert_rejected, errors, project};

/// Returns a configuration with `default`, global variables, and 5,000 jobs in ten stages. Each job has rules, an
/// environment, a cache, and (except in the first stage) ten needs for jobs of the previous stage.
fn many_jobs() -> String {
    let mut text = String::from("default: {image: i, before_script: [p]}\nvariables: {A: a, B: $A-b}\nstages:\n");
    for stage in 0..10 {
        let _ = writeln!(text, "  - s{stage}");
    }
    for number in 0..5_000 {
        let stage = number / 500;
        let _ = writeln!(
            text,
            "job{number}:\n  stage: s{stage}\n  script: [echo $B]\n  environment: review/$B\n  cache: {{key: {{files: \
             [Dockerfile]}}, paths: [v]}}\n  rules:\n    - if: $CI_COMMIT_TAG =~ /^v\\d+/\n    - changes: [src/**/*]\n      \
             variables: {{C: c}}"
        );
        if stage > 0 {
            let first = (stage - 1) * 500;
            let needs: Vec<String> =
                (0..10).map(|index| format!("job{}", first + (number * 7 + index * 31) % 500)).collect();
            let _ = writeln!(text, "  needs: [{}]", needs.join(", "));
        }
    }
    text
}

#[test]
fn many_jobs_are_compiled() {
    let compiled = project().compile(many_jobs());
    assert_eq!(
        compiled.pipeline.map(|pipeline| pipeline.jobs.len()),
        Some(5_000),
        "{:#?}",
        compiled.diagnostics.first()
    );
}

/// 150 jobs with 200 instances each are rejected before 300 million links are created. Each instance needs the 10,000
/// instances of 50 other jobs.
#[test]
fn needs_between_parallel_jobs_are_bounded() {
    let mut text = String::new();
    for number in 0..200 {
        let needs: Vec<String> = (0..50).map(|index| format!("p{index}")).collect();
        let (stage, needs) = if number < 50 { ("build", String::new()) } else { ("test", needs.join(", ")) };
        let _ = writeln!(text, "p{number}: {{stage: {stage}, script: [x], parallel: 200, needs: [{needs}]}}");
    }
    let compiled = project().compile(&text);
    assert_rejected(&compiled.diagnostics, "`needs` and `dependencies` in total");
    // With stubs, unknown names are not reported as errors, but exceeding this limit is.
    let mut project = project();
    project.context.stubs_includes = true;
    let compiled = project.compile(format!("include: {{template: T.yml}}\nx: {{script: [x], needs: [nope]}}\n{text}"));
    assert_rejected(&compiled.diagnostics, "`needs` and `dependencies` in total");
}

/// Each of 10,000 jobs has an error that could have a suggestion. The first 1,000 errors are reported.
#[test]
fn many_errors_are_reported() {
    let check = |keyword: &dyn Fn(usize) -> String, expected: &str| {
        let jobs = (0..10_000).map(|number| format!("job{number}: {{script: [x], {}}}\n", keyword(number)));
        let found = errors(&project().compile(jobs.collect::<String>()).diagnostics);
        assert_eq!((found.len(), found.last().map(String::as_str)), (1_000, Some(expected)));
    };
    check(&|_| "onyl: [main]".to_owned(), "jobs:job999 config contains unknown keys: `onyl`");
    let stages = ".pre, build, test, deploy, .post";
    check(
        &|_| "stage: nope".to_owned(),
        &format!("job999 job: chosen stage nope does not exist; available stages are {stages}"),
    );
    check(&|number| format!("needs: [jbo{number}x]"), "job999 job: undefined need: jbo999x");
}

/// Each of 20,000 unknown parents could be a misspelling of any of 20,000 keys.
///
/// Unlike compiling, loading reports all errors.
#[test]
fn many_unknown_parents_are_reported() {
    let text: String = (0..20_000).map(|number| format!("a-job-{number}: {{extends: .a-job-{number}}}\n")).collect();
    assert_eq!(errors(&project().load(&text).diagnostics).len(), 20_000);
}

/// Short patterns that are expensive to compile, in every keyword that has patterns.
#[test]
fn many_patterns_are_rejected() {
    let large = |number: usize| format!("(\\w{{90}}x{number}){{9}}");
    let jobs =
        |job: &dyn Fn(usize) -> String| (0..5_000).map(|n| format!("j{n}: {{{}}}\n", job(n))).collect::<String>();
    let variables = |n: usize| format!("script: [x], variables: {{P: '/{}/'}}, rules: [{{if: $CI =~ $P}}]", large(n));
    let inputs = |n: usize| format!("  i{n}: {{default: x, rules: [{{if: '\"x\" =~ /{}/', default: x}}]}}\n", large(n));
    for text in [
        jobs(&|n| format!("script: [x], coverage: '/{}/'", large(n))),
        jobs(&|n| format!("script: [x], rules: [{{if: '$CI =~ /{}/'}}]", large(n))),
        jobs(&|n| format!("script: [x], rules: [{{changes: {{regexp: '{}'}}}}]", large(n))),
        jobs(&|n| format!("script: [x], only: ['/{}/']", large(n))),
        jobs(&variables),
        format!("spec:\n inputs:\n{}---\na: {{script: [x]}}\n", (0..5_000).map(inputs).collect::<String>()),
    ] {
        assert_rejected(&project().compile(&text).diagnostics, "exceed 64 MiB in total");
    }
}

/// Small files that expand to gigabytes if every job has its own copy of shared values.
#[test]
fn configurations_that_expand_to_too_many_bytes_are_rejected() {
    let long = "x".repeat(1_000_000);
    let jobs = |keywords: &str| (0..5_000).map(|n| format!("j{n}: {{{keywords}}}\n")).collect::<String>();
    let variables: String = (0..5_000).map(|n| format!("  V{n}: x\n")).collect();
    let lines: String = (0..20_000).map(|n| format!("    - line {n}\n")).collect();
    for text in [
        format!(".p: {{script: [{long}]}}\n{}", jobs("extends: .p")),
        format!("default:\n  before_script:\n{lines}{}", jobs("script: [x]")),
        format!("variables:\n{variables}{}", jobs("script: [x]")),
        (0..3).map(|n| format!("a{n}: {{parallel: 200, script: [{}]}}\n", &long[..500_000])).collect(),
    ] {
        assert_rejected(&project().compile(&text).diagnostics, "exceeds 256 MiB");
    }
}

/// References to long values, each of which is within all other limits.
#[test]
fn variables_that_expand_to_too_many_bytes_are_rejected() {
    let project = project().pipeline_variable("B", &"x".repeat(1_000_000));
    let many = |count: usize, text: &str| (0..count).map(|n| text.replace('#', &n.to_string())).collect::<String>();
    for text in [
        format!("a: {{script: [x], tags: ['{}']}}", "$B".repeat(300_000)),
        format!("a: {{script: [x], environment: '{}'}}", "$B".repeat(300_000)),
        many(500, "j#: {script: [x], tags: [$B]}\n"),
        many(500, "j#: {script: [x], resource_group: $B}\n"),
        many(500, "j#: {script: [x], rules: [{exists: {paths: [x], project: $B, ref: main}}, {when: always}]}\n"),
    ] {
        assert_rejected(&project.compile(&text).diagnostics, "variables expand to more than 1 MiB in one text");
    }
    // A value that would be too long is not expanded.
    let variables = format!("variables:\n  V: {}\n{}", many(5_000, "$V# "), many(5_000, "  V#: $B\n"));
    let compiled = project.compile(format!("{variables}a: {{script: [x], tags: [$V]}}"));
    let tags = compiled.pipeline.map(|pipeline| pipeline.jobs[0].tags.clone());
    assert!(tags.is_some_and(|tags| tags[0].starts_with("$V0 $V1 ")));
    let includes = format!("include:\n{}", many(500, "  - remote: https://x/$B/#.txt\n"));
    let found = errors(&project.load(includes).diagnostics);
    let part = "variables in `include` and in interpolation blocks expand to more than 64 MiB";
    assert!(found.iter().any(|error| error == part), "the error must be reported: {}", found.len());
}

/// Each entry matches all tracked files, but only 150 files may be included.
#[test]
fn wildcards_that_match_too_many_files_are_rejected() {
    let mut project = project();
    for number in 0..2_000 {
        project = project.file(&format!("ci/{number}.yml"), "{}");
    }
    let include = format!("include: [{}]", vec!["'ci/*.yml'"; 20_000].join(", "));
    assert_rejected(&project.load(include).diagnostics, "maximum of 150 nested includes are allowed");
    let files = format!("include: {{project: g/$B, file: [{}]}}", vec!["'x.yml'"; 100_000].join(", "));
    let project = project.pipeline_variable("B", &"x".repeat(1_000_000)).external_file("none", "");
    let found = errors(&project.load(files).diagnostics);
    assert!(found.iter().any(|error| error.contains("maximum of 150 nested includes are allowed")), "{}", found.len());
}

/// Aliases share their text, but each entry copies it.
#[test]
fn include_entries_with_a_long_shared_text_are_bounded() {
    let define = format!(".x: &x {}.yml\n", "x".repeat(1024 * 1024));
    let list = |entry: &str| vec![entry; 100].join(", ");
    for text in [
        format!("{define}include: [{}]", list("*x")),
        format!("{define}include: [{}]", list("{local: *x, rules: [{if: $NONE}]}")),
        format!(
            "spec:\n  inputs: {{x: {{default: {}}}}}\n  include: [{}]\n---\n",
            &define[4..define.len() - 1],
            list("*x")
        ),
    ] {
        let found = errors(&project().load(text).diagnostics);
        let part = "the entries of `include` in all files have more than 64 MiB";
        assert!(found.iter().any(|error| error == part), "the error must be reported: {}", found.len());
    }
}
