//! Fuzz tests of the compiler and of expressions (see `muster_fuzz`).

use muster_fuzz::{Corpus, fuzz};
use muster_pipeline::expression;

use crate::harness::project;
use crate::properties::{WORDS, check_consistency};

const SAMPLES: &[&[u8]] = &[
    include_bytes!("../../../../.gitlab-ci.yml"),
    include_bytes!("../../../../examples/children/.gitlab-ci.yml"),
    include_bytes!("../../../../examples/monorepo/.gitlab-ci.yml"),
    include_bytes!("../../../../examples/python/.gitlab-ci.yml"),
    b"spec:\n  inputs:\n    a: {default: 1, type: number}\n---\nx-$[[ inputs.a ]]:\n  script: [$[[ inputs.a | expand_vars ]]]\n",
    b".a: &a {script: [x]}\nb:\n  <<: *a\n  extends: [.a]\n  rules: [{if: '$X =~ /y/i', when: manual}, !reference [.a, script]]\n",
    b"j:\n  script: |\n    one\n  >-\n  parallel: {matrix: [{A: [1, 2], B: x}]}\n  needs: [{job: k, optional: true}]\n",
    b"\xef\xbb\xbfj: {script: \"\\x41\\u00e9\"}\n%YAML 1.1\n...\n",
];

const INDICATORS: &[&str] = &[
    "- ",
    ": ",
    "? ",
    "&a ",
    "*a",
    "!reference [",
    "!!binary ",
    "|+2\n",
    "<<: ",
    "---\n",
    "[",
    "{",
    "$[[ ",
    "\t",
    "\r\n",
];

#[test]
fn fuzz_pipeline_yaml() {
    let words = [WORDS, INDICATORS].concat();
    let project = project();
    fuzz("pipeline YAML", Corpus { samples: SAMPLES, words: &words }, |input| {
        check_consistency(&project.compile(input)).unwrap();
    });
}

#[test]
fn fuzz_pipeline_expressions() {
    let samples: [&[u8]; 4] = [
        br#"$A == "b" && ($C != null || $D =~ /^x(y|z)+$/i) && $E !~ $F"#,
        b"$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH",
        br"$A =~ /a\/b[^c]{1,3}(?i:d)\b/ || 'x' == $B",
        b"$[[ inputs.x ]] == null",
    ];
    let words = [
        "$A",
        "$[[ inputs.a ]]",
        "==",
        "!=",
        "=~",
        "!~",
        "&&",
        "||",
        "(",
        ")",
        "/",
        "/i",
        "\"",
        "'",
        "null",
        "{1,9}",
        "(?:",
        "\\",
    ];
    fuzz("expressions of rules", Corpus { samples: &samples, words: &words }, |input| {
        let text = String::from_utf8_lossy(input);
        for parsed in [expression::parse(&text), expression::parse_input_rule(&text)].into_iter().flatten() {
            let value = |name: &str| (name != "F").then(|| format!("/{name}+/"));
            let _ = parsed.evaluate(&value);
            let _ = (parsed.variables(), parsed.inputs());
        }
    });
}
