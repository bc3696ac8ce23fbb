//! `spec:include`: its files count as includes, and inputs that they may declare cause no further errors if a file cannot
//! be read.

use std::cell::RefCell;
use std::fmt::Write as _;

use muster_pipeline::context::{Changes, IncludeTarget, IncludedFile, Origin, SourceError, Sources};
use muster_pipeline::load;
use serde_json::json;

use crate::harness::{assert_rejected, errors, project, warnings};

/// Counts the files that are read, and those that are announced.
#[derive(Debug, Default)]
struct CountingSources {
    read: RefCell<usize>,
    announced: RefCell<usize>,
}

impl Sources for CountingSources {
    fn prefetch(&self, targets: &[IncludeTarget]) {
        *self.announced.borrow_mut() += targets.len();
    }

    fn read(&self, _: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        *self.read.borrow_mut() += 1;
        let (name, bytes) = ("inputs.yml".to_owned(), b"inputs: {}".to_vec());
        Ok(IncludedFile { name, bytes, origin: Origin::Detached, component: None })
    }

    fn paths(&self, _: &Origin) -> Result<std::sync::Arc<std::collections::BTreeSet<String>>, SourceError> {
        Ok(std::sync::Arc::default())
    }

    fn changed_since(&self, _: &str) -> Option<Changes> {
        None
    }

    fn object_ids(&self, _: &[String], _: bool) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn files_of_spec_include_count_as_includes() {
    let with_entries = |count: usize| {
        let mut text = "spec:\n  include:\n".to_owned();
        for number in 0..count {
            let _ = writeln!(text, "    - remote: https://x/{number}.yml");
        }
        text + "---\na: {script: [x]}\n"
    };
    let (context, sources) = (project().context, CountingSources::default());
    let loaded = load::load(with_entries(20_000).as_bytes(), &context, &sources);
    assert_rejected(&loaded.diagnostics, "maximum of 150 nested includes are allowed");
    assert_eq!((*sources.read.borrow(), *sources.announced.borrow()), (150, 150));
    let loaded = load::load(with_entries(150).as_bytes(), &context, &CountingSources::default());
    assert_eq!(errors(&loaded.diagnostics), [""; 0]);
}

const BODY: &str = "---\na: {script: ['$[[ inputs.x ]]'], image: '$[[ inputs.y ]]'}\nb: {script: [x]}\n";

#[test]
fn only_the_unreadable_header_include_is_reported() {
    for (include, part) in [
        ("nope.yml", "local file `nope.yml` does not exist"),
        ("nope.txt", "does not have YAML extension"),
        ("{project: grp/library, file: inputs.yml}", "cannot be reached"),
        ("{template: T.yml}", "`spec:include` supports only"),
    ] {
        let text = format!("spec: {{include: [{include}]}}\n{BODY}");
        let including = "include: {local: c.yml, inputs: {x: 1}}\nz: {script: [x]}";
        assert_rejected(&project().input("x", json!("1")).compile(&text).diagnostics, part);
        assert_rejected(&project().file("c.yml", &text).compile(including).diagnostics, part);
    }
}

#[test]
fn jobs_that_use_inputs_of_a_skipped_header_include_lack_parts() {
    let text = format!("spec: {{include: [{{project: grp/library, file: inputs.yml}}]}}\n{BODY}");
    let included = "include: {local: c.yml, inputs: {x: given}}\nz: {script: [x]}";
    for (root, expected) in
        [(text.as_str(), vec![("a", true), ("b", false)]), (included, vec![("a", true), ("b", false), ("z", false)])]
    {
        let mut project = project().file("c.yml", &text).input("x", json!("1"));
        project.context.stubs_includes = true;
        let compiled = project.compile(root);
        assert_eq!((errors(&compiled.diagnostics), warnings(&compiled.diagnostics).len()), (vec![], 1));
        let jobs = compiled.pipeline.expect("no pipeline").jobs;
        let jobs: Vec<_> = jobs.iter().map(|job| (job.name.as_str(), job.lacks_parts())).collect();
        assert_eq!(jobs, expected);
    }
}

#[test]
fn input_of_the_run_is_not_called_unknown_if_a_file_was_not_read() {
    let project = project().input("x", json!("1"));
    for (text, part) in [
        ("spec: {inputs: {x: }}\n---\na: {script: [}", "invalid YAML"),
        ("include: nope.yml\na: {script: [x]}", "local file `nope.yml` does not exist"),
        ("include: {lcal: c.yml}\na: {script: [x]}", "unknown keys: `lcal`"),
        ("a: {script: [x]}", "unknown input arguments: `x`"),
    ] {
        assert_rejected(&project.load(text).diagnostics, part);
    }
    let mut project = project;
    project.context.stubs_includes = true;
    let compiled = project.compile("include: {template: T.yml}\na: {script: [x]}");
    assert_eq!(errors(&compiled.diagnostics), [""; 0]);
    assert!(compiled.pipeline.is_some(), "the pipeline must be created without the skipped include");
}
