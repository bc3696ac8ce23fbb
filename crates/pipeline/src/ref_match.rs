//! Entries of `only:refs` and `except:refs`: keywords, names and `/regex/flags`, each optionally followed by
//! `@group/project` (docs/spec/pipeline-yaml.md, section 1.6).

use regex::Regex;

use crate::context::{Context, PipelineSource, RefKind};
use crate::patterns::Patterns;
use crate::regexp::{self, RegexpError};

/// An entry of `only:refs` or `except:refs`.
#[derive(Debug, Clone)]
pub struct RefPattern {
    test: RefTest,
    /// Restricts the entry to pipelines of this project.
    project: Option<String>,
}

#[derive(Debug, Clone)]
enum RefTest {
    Branches,
    Tags,
    Source(PipelineSource),
    Name(String),
    Pattern(Regex),
}

const SOURCES: &[(&str, PipelineSource)] = &[
    ("api", PipelineSource::Api),
    ("chat", PipelineSource::Chat),
    ("external", PipelineSource::External),
    ("external_pull_requests", PipelineSource::ExternalPullRequestEvent),
    ("merge_requests", PipelineSource::MergeRequestEvent),
    ("parent_pipelines", PipelineSource::ParentPipeline),
    ("pipelines", PipelineSource::Pipeline),
    ("pushes", PipelineSource::Push),
    ("schedules", PipelineSource::Schedule),
    ("triggers", PipelineSource::Trigger),
    ("web", PipelineSource::Web),
    ("webides", PipelineSource::WebIde),
];

impl RefPattern {
    /// Parses an entry. An `@` separates the ref from the project. Inside a regular expression, `@` must be written as `\x40`.
    ///
    /// # Errors
    /// Returns [`RegexpError`] if a regular expression is not valid in RE2, or too large.
    pub fn parse(text: &str) -> Result<Self, RegexpError> {
        Self::parse_within(text, &mut Patterns::default())
    }

    pub(crate) fn parse_within(text: &str, patterns: &mut Patterns) -> Result<Self, RegexpError> {
        let (name, project) = match text.split_once('@') {
            Some((name, project)) => (name, Some(project.to_owned())),
            None => (text, None),
        };
        let source = SOURCES.iter().find(|(keyword, _)| *keyword == name).map(|(_, source)| *source);
        let test = match (name, source, regexp::split_literal(name)) {
            ("branches", _, _) => RefTest::Branches,
            ("tags", _, _) => RefTest::Tags,
            (_, Some(source), _) => RefTest::Source(source),
            (_, None, Some((pattern, flags))) => RefTest::Pattern(patterns.compile(pattern, flags)?),
            (_, None, None) => RefTest::Name(name.to_owned()),
        };
        Ok(Self { test, project })
    }

    /// Returns true if the entry matches the pipeline. Names and regular expressions match branches and tags, never
    /// merge requests.
    #[must_use]
    pub fn matches(&self, context: &Context) -> bool {
        if self.project.as_ref().is_some_and(|project| *project != context.project_path) {
            return false;
        }
        let is_merge_request = context.source == PipelineSource::MergeRequestEvent;
        match &self.test {
            RefTest::Branches => !is_merge_request && context.ref_kind == RefKind::Branch,
            RefTest::Tags => !is_merge_request && context.ref_kind == RefKind::Tag,
            RefTest::Source(source) => *source == context.source,
            RefTest::Name(name) => !is_merge_request && *name == context.ref_name,
            RefTest::Pattern(regex) => !is_merge_request && regex.is_match(&context.ref_name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(source: PipelineSource, ref_kind: RefKind, ref_name: &str) -> Context {
        Context { source, ref_kind, ref_name: ref_name.into(), project_path: "grp/app".into(), ..Context::default() }
    }

    #[track_caller]
    fn matches(pattern: &str, context: &Context) -> bool {
        RefPattern::parse(pattern).unwrap_or_else(|error| panic!("{error}")).matches(context)
    }

    #[test]
    fn matches_keywords_names_and_patterns() {
        let main = context(PipelineSource::Push, RefKind::Branch, "main");
        let tag = context(PipelineSource::Push, RefKind::Tag, "v1.2");
        let schedule = context(PipelineSource::Schedule, RefKind::Branch, "main");
        let merge_request = context(PipelineSource::MergeRequestEvent, RefKind::Branch, "refs/merge-requests/1/head");
        for (pattern, expected) in [
            ("branches", [true, false, true, false]),
            ("tags", [false, true, false, false]),
            ("pushes", [true, true, false, false]),
            ("schedules", [false, false, true, false]),
            ("merge_requests", [false, false, false, true]),
            ("main", [true, false, true, false]),
            ("/^v\\d/", [false, true, false, false]),
            ("/^MA/i", [true, false, true, false]),
            ("/^MA/", [false, false, false, false]),
            ("/.*/", [true, true, true, false]),
            ("main@grp/app", [true, false, true, false]),
            ("branches@grp/other", [false, false, false, false]),
            ("/^ma.n$/@grp/app", [true, false, true, false]),
        ] {
            let outcome = [&main, &tag, &schedule, &merge_request].map(|context| matches(pattern, context));
            assert_eq!(outcome, expected, "{pattern}");
        }
    }

    #[test]
    fn rejects_invalid_pattern_but_accepts_name_with_slash() {
        assert!(RefPattern::parse("/(/").is_err());
        assert!(RefPattern::parse("/(?=x)/").is_err());
        assert!(matches!(RefPattern::parse("feature/x").map(|pattern| pattern.test), Ok(RefTest::Name(_))));
    }
}
