//! The refs of `only` and `except`: keywords, names, `/regex/flags`, each perhaps with `@group/project`
//! (pipeline-yaml 1.6).

use regex::Regex;

use crate::context::{Context, PipelineSource, RefKind};
use crate::patterns::Patterns;
use crate::regexp::{self, RegexpError};

/// One entry of `only:refs` or `except:refs`.
#[derive(Debug, Clone)]
pub struct RefPattern {
    what: What,
    /// Only pipelines of this project.
    project: Option<String>,
}

#[derive(Debug, Clone)]
enum What {
    Branches,
    Tags,
    Source(PipelineSource),
    Name(String),
    Pattern(Regex),
}

/// The keywords that stand for what started the pipeline.
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
    /// Reads one entry. An `@` ends the ref and begins the project; inside a pattern it is written `\x40`.
    ///
    /// # Errors
    /// [`RegexpError`] where `/.../` is not RE2.
    pub fn parse(text: &str) -> Result<Self, RegexpError> {
        Self::parse_within(text, &mut Patterns::default())
    }

    /// As [`RefPattern::parse`], within a budget.
    pub(crate) fn parse_within(text: &str, patterns: &mut Patterns) -> Result<Self, RegexpError> {
        let (name, project) = match text.split_once('@') {
            Some((name, project)) => (name, Some(project.to_owned())),
            None => (text, None),
        };
        let source = SOURCES.iter().find(|(keyword, _)| *keyword == name).map(|(_, source)| *source);
        let what = match (name, source, regexp::split_literal(name)) {
            ("branches", _, _) => What::Branches,
            ("tags", _, _) => What::Tags,
            (_, Some(source), _) => What::Source(source),
            (_, None, Some((pattern, flags))) => What::Pattern(patterns.compile(pattern, flags)?),
            (_, None, None) => What::Name(name.to_owned()),
        };
        Ok(Self { what, project })
    }

    /// Whether a pipeline is one of those that the entry describes. Names and patterns of refs hold for branches and
    /// tags only, never for merge requests.
    #[must_use]
    pub fn matches(&self, context: &Context) -> bool {
        if self.project.as_ref().is_some_and(|project| *project != context.project_path) {
            return false;
        }
        let merge_request = context.source == PipelineSource::MergeRequestEvent;
        match &self.what {
            What::Branches => !merge_request && context.ref_kind == RefKind::Branch,
            What::Tags => !merge_request && context.ref_kind == RefKind::Tag,
            What::Source(source) => *source == context.source,
            What::Name(name) => !merge_request && *name == context.ref_name,
            What::Pattern(regex) => !merge_request && regex.is_match(&context.ref_name),
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
    fn keywords_names_and_patterns() {
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
    fn a_broken_pattern_is_an_error() {
        assert!(RefPattern::parse("/(/").is_err());
        assert!(RefPattern::parse("/(?=x)/").is_err());
        assert!(matches!(RefPattern::parse("feature/x").map(|pattern| pattern.what), Ok(What::Name(_))));
    }
}
