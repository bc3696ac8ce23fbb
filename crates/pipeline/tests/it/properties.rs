//! Property tests of the compiler: no text causes a panic, and the results of valid configurations are consistent.

use std::collections::HashSet;

use muster_pipeline::model::Need;
use muster_pipeline::{Compiled, preview};
use proptest::prelude::*;

use crate::harness::{errors, json, project};

pub(crate) const WORDS: &[&str] = &[
    "a",
    "b",
    ".h",
    "script",
    "stage",
    "stages",
    "needs",
    "dependencies",
    "rules",
    "if",
    "changes",
    "exists",
    "when",
    "manual",
    "delayed",
    "never",
    "start_in",
    "1 day",
    "variables",
    "value",
    "expand",
    "options",
    "workflow",
    "name",
    "default",
    "image",
    "services",
    "cache",
    "key",
    "files",
    "paths",
    "artifacts",
    "reports",
    "junit",
    "coverage_report",
    "coverage_format",
    "cobertura",
    "path",
    "parallel",
    "matrix",
    "job",
    "optional",
    "only",
    "except",
    "refs",
    "trigger",
    "include",
    "artifact",
    "project",
    "strategy",
    "depend",
    "forward",
    "environment",
    "on_stop",
    "action",
    "stop",
    "retry",
    "max",
    "exit_codes",
    "allow_failure",
    "timeout",
    "tags",
    "inherit",
    "extends",
    "pages",
    "publish",
    "secrets",
    "vault",
    "release",
    "tag_name",
    "id_tokens",
    "aud",
    "hooks",
    "run",
    "step",
    "inputs",
    "interruptible",
    "auto_cancel",
    "$CI_COMMIT_BRANCH",
    "$X == \"y\"",
    "$[[ matrix.OS ]]",
    "/x/",
    "src/**/*",
    "build",
    "test",
    ".pre",
    "true",
    "nil",
];

fn tree() -> impl Strategy<Value = String> {
    let word = prop::sample::select(WORDS).prop_map(|word| format!("'{}'", word.replace('\'', "''")));
    let leaf = prop_oneof![
        8 => word,
        1 => Just("null".to_owned()),
        1 => any::<bool>().prop_map(|flag| flag.to_string()),
        1 => (-3_i64..300).prop_map(|number| number.to_string()),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        let key = prop::sample::select(WORDS).prop_map(|word| format!("'{}'", word.replace('\'', "''")));
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..5).prop_map(|items| format!("[{}]", items.join(", "))),
            3 => prop::collection::vec((key, inner), 0..6).prop_map(|entries| {
                let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key}: {value}")).collect();
                format!("{{{}}}", entries.join(", "))
            }),
        ]
    })
}

fn configuration() -> impl Strategy<Value = String> {
    let keyword = prop::sample::select(WORDS);
    let job = prop::collection::vec((keyword, tree()), 0..5).prop_map(|entries| {
        let entries: Vec<String> = entries
            .iter()
            .filter(|(key, _)| *key != "script")
            .map(|(key, value)| format!(", '{}': {value}", key.replace('\'', "''")))
            .collect();
        format!("{{script: [x]{}}}", entries.concat())
    });
    prop::collection::vec((prop::sample::select(&["a", "b", "c", ".h", "default", "workflow"][..]), job), 1..5)
        .prop_map(|jobs| jobs.iter().map(|(name, job)| format!("{name}: {job}\n")).collect::<String>())
}

/// The result must be exactly one of three: a pipeline, the reason why none was created, or errors.
pub(crate) fn check_consistency(compiled: &Compiled) -> Result<(), TestCaseError> {
    let outcomes = [compiled.pipeline.is_some(), compiled.not_created.is_some(), compiled.has_errors()];
    prop_assert_eq!(outcomes.iter().filter(|outcome| **outcome).count(), 1, "{:#?}", compiled);
    for diagnostic in &compiled.diagnostics {
        if let Some(span) = diagnostic.span {
            prop_assert!(compiled.sources.get(span.source).is_some(), "the source of {:?} does not exist", diagnostic);
        }
    }
    let Some(pipeline) = &compiled.pipeline else { return Ok(()) };
    let names: HashSet<&str> = pipeline.jobs.iter().map(|job| job.name.as_str()).collect();
    prop_assert_eq!(names.len(), pipeline.jobs.len(), "the names of jobs must be unique");
    for job in &pipeline.jobs {
        prop_assert_eq!(pipeline.stages.get(job.stage_index), Some(&job.stage));
        for need in job.needs.iter().flatten() {
            if let Need::Job { name, .. } = need {
                prop_assert!(names.contains(name.as_str()), "{} needs {}, which does not exist", job.name, name);
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_consistency(&project().compile(&bytes))?;
    }

    #[test]
    fn text_with_yaml_indicators_never_panics(text in "[a-c:\\[\\]{}\\-#&*!|>'\",%@ \n\t$.?~<]{0,120}") {
        check_consistency(&project().compile(&text))?;
    }

    #[test]
    fn trees_of_known_words_never_panic(text in tree()) {
        check_consistency(&project().compile(&text))?;
    }

    #[test]
    fn jobs_of_known_keywords_never_panic(text in configuration()) {
        check_consistency(&project().compile(&text))?;
    }

    #[test]
    fn preview_parses_to_the_same_tree(text in tree()) {
        let project = project();
        let loaded = project.load(&text);
        let reloaded = project.load(preview(&loaded.root));
        if errors(&loaded.diagnostics).is_empty() {
            prop_assert_eq!(json(&reloaded.root), json(&loaded.root), "{}", preview(&loaded.root));
        }
    }

    #[test]
    fn preview_preserves_any_text(key in "[ -~é]{1,8}", value in "[ -~é\n\t]{0,24}") {
        let text = serde_json::json!({ key: value, "list": [value, [value], {"k": value}, [], {}] }).to_string();
        let project = project();
        let loaded = project.load(&text);
        if errors(&loaded.diagnostics).is_empty() {
            let printed = preview(&loaded.root);
            let reloaded = project.load(&printed);
            prop_assert_eq!(json(&reloaded.root), json(&loaded.root), "{}", printed);
        }
    }

    /// Each job needs only jobs before it, so there is no cycle.
    #[test]
    fn needs_for_earlier_jobs_always_compile(links in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..4), 1..120)) {
        let mut text = String::new();
        for (number, links) in links.iter().enumerate() {
            let needs: HashSet<usize> = links.iter().filter(|_| number > 0).map(|link| link.index(number)).collect();
            let needs: Vec<String> = needs.iter().map(|need| format!("j{need}")).collect();
            text.push_str(&format!("j{number}: {{script: [x], needs: [{}]}}\n", needs.join(", ")));
        }
        let compiled = project().compile(&text);
        check_consistency(&compiled)?;
        prop_assert_eq!(compiled.pipeline.map(|pipeline| pipeline.jobs.len()), Some(links.len()));
    }
}
