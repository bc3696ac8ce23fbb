//! Parses a job: all its keywords and the dependencies between them (docs/spec/pipeline-yaml.md, sections 1.2 and 1.9).

use std::sync::Arc;
use std::time::Duration;

use muster_job::Variable;

use crate::config::cache::{self, CacheEntry};
use crate::config::defaults::{self, Defaults, Filter};
use crate::config::environment::{self, EnvironmentEntry};
use crate::config::extras::{self, PagesEntry};
use crate::config::keywords;
use crate::config::needs::{self, NameEntry, NeedEntry, NeedTarget, Needs, NeedsParent};
use crate::config::only::{self, RefPolicy};
use crate::config::parallel::{self, Parallel};
use crate::config::parsing::{self, Fields, Path, Problems};
use crate::config::rules::{self, Expressions, Rule, RulesParent};
use crate::config::size_budget::{self, SizeBudget};
use crate::config::top::LAST_STAGE;
use crate::config::trigger::{self, BridgeEntry};
use crate::config::{artifacts, behavior, image, scripts, variables};
use crate::diagnostic::Diagnostic;
use crate::gaps::Gaps;
use crate::model::{AllowFailure, Artifacts, Retry, ScriptWork, When};
use crate::node::{Entry, Map, Node, Span, Value};

/// Stage of a job without `stage`.
const DEFAULT_STAGE: &str = "test";
/// Directory that a pages job publishes if it sets none.
const DEFAULT_PAGES: &str = "public";

#[derive(Debug, Clone)]
pub(crate) struct JobEntry {
    pub(crate) name: Arc<str>,
    pub(crate) span: Span,
    pub(crate) stage: NameEntry,
    pub(crate) work: WorkEntry,
    pub(crate) when: Option<When>,
    pub(crate) start_in: Option<Duration>,
    pub(crate) allow_failure: Option<AllowFailure>,
    pub(crate) retry: Retry,
    pub(crate) timeout: Option<Duration>,
    pub(crate) interruptible: bool,
    pub(crate) needs: Option<Needs>,
    pub(crate) dependencies: Option<Vec<NameEntry>>,
    pub(crate) rules: Option<Vec<Rule>>,
    pub(crate) only: Option<RefPolicy>,
    pub(crate) except: Option<RefPolicy>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) inherit_variables: Filter,
    pub(crate) parallel: Option<Parallel>,
    pub(crate) tags: Vec<String>,
    pub(crate) environment: Option<EnvironmentEntry>,
    pub(crate) resource_group: Option<String>,
    pub(crate) manual_confirmation: Option<String>,
    /// Keywords that were inherited from `default`, with their position.
    pub(crate) defaults: Vec<(String, Span)>,
    /// True if errors of the job were reported. Invalid parts of the job are missing.
    pub(crate) is_broken: bool,
    /// True if parts of the job are missing because their include was skipped.
    pub(crate) is_incomplete: bool,
    /// Size of the job including its defaults, in bytes ([`super::size_budget`]).
    pub(crate) bytes: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum WorkEntry {
    /// The keys of the caches are computed later.
    Script {
        work: Box<ScriptWork>,
        caches: Vec<CacheEntry>,
    },
    Bridge(Box<BridgeEntry>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Script,
    Trigger,
    Mirror,
}

#[derive(Debug)]
pub(crate) struct JobParserContext<'a> {
    pub(crate) defaults: Defaults,
    /// True if the configuration was loaded without errors ([`super::config`]).
    pub(crate) complete: bool,
    pub(crate) gaps: &'a Gaps,
    pub(crate) expressions: Expressions,
    pub(crate) size_budget: SizeBudget,
}

/// Returns the entry without its invalid parts, and the node including defaults.
pub(crate) fn job(
    name: &Arc<str>,
    entry: &Entry,
    context: &mut JobParserContext<'_>,
    problems: &mut Problems,
) -> Option<(JobEntry, Node)> {
    let jobs = Path::root("jobs");
    let at = jobs.key(name);
    let map = entry.node.as_map()?;
    let mark = problems.mark();
    let has_gap = context.gaps.has(name);
    if has_gap && !context.gaps.includes_were_skipped {
        unknown_keys(map, at, problems);
        return None;
    }
    let declared_kind = kind(map);
    let kind = match declared_kind {
        Some(kind) => kind,
        None if context.gaps.includes_were_skipped => Kind::Script,
        // The script may be in a file that could not be loaded.
        None if !context.complete => return None,
        None => {
            report_missing_work(map, &entry.node, at, problems);
            return None;
        }
    };
    let inherit = map.get("inherit").filter(|node| !node.is_null());
    let inherit = inherit.map(|node| defaults::inherit(node, at.key("inherit"), problems)).unwrap_or_default();
    let (full, inherited) = context.defaults.apply(map, kind != Kind::Script, &inherit);
    let bytes = size_budget::bytes(&entry.node).saturating_add(context.defaults.bytes(&inherited));
    if !context.size_budget.add(bytes, entry.key_span, problems) {
        return None;
    }
    let node = full.map_or_else(|| entry.node.clone(), |map| Node::new(Value::Map(Arc::new(map)), entry.node.span));
    let fields = if kind == Kind::Script {
        Fields::parse(&node, at, keywords::JOB, problems)?
    } else {
        Fields::parse_with(&node, at, keywords::TRIGGER_JOB, problems, help_for_bridge_key)?
    };
    check_exclusions(&fields, problems);
    let expressions = &mut context.expressions;
    let mut job_parser = JobParser { name, span: entry.key_span, kind, fields, expressions, problems };
    let mut job = job_parser.parse();
    job.inherit_variables = inherit.variables;
    job.defaults = inherited;
    job.bytes = bytes;
    job.is_incomplete = context.gaps.includes_were_skipped && (has_gap || declared_kind.is_none());
    if job.is_incomplete {
        problems.roll_back(mark);
    }
    job.is_broken = problems.error_count() > mark.1;
    Some((job, node))
}

fn help_for_bridge_key(key: &str) -> Option<String> {
    let is_job_key = keywords::JOB.contains(&key);
    is_job_key.then(|| format!("remove `{key}`: a job that starts or mirrors a pipeline does not run on a runner"))
}

fn kind(map: &Map) -> Option<Kind> {
    let is_set = |key: &str| map.get(key).is_some_and(|node| !node.is_null());
    if is_set("trigger") {
        return Some(Kind::Trigger);
    }
    if is_set("script") || is_set("run") {
        return Some(Kind::Script);
    }
    map.get("needs").is_some_and(trigger::is_mirror).then_some(Kind::Mirror)
}

/// Reports a job without `script`, `run` and `trigger`, with a suggestion.
fn report_missing_work(map: &Map, node: &Node, at: Path<'_>, problems: &mut Problems) {
    let mut diagnostic =
        Diagnostic::error(node.span, format!("{at} config should implement a script:, run:, or trigger: keyword"));
    let near = map.keys().find_map(|key| {
        let is_unknown = !keywords::JOB.contains(&&**key);
        is_unknown.then(|| parsing::suggest(key, &["script", "run", "trigger"]).map(|near| (key, near))).flatten()
    });
    diagnostic.help = Some(match near {
        Some((key, near)) => format!("did you mean `{near}` instead of `{key}`?"),
        None => "add `script`; if the job is a template for other jobs, start its name with `.`".to_owned(),
    });
    problems.push(diagnostic);
    unknown_keys(map, at, problems);
}

fn unknown_keys(map: &Map, at: Path<'_>, problems: &mut Problems) {
    let is_known = |key: &str| keywords::JOB.contains(&key) || keywords::TRIGGER_JOB.contains(&key);
    for (key, entry) in map.iter().filter(|(key, _)| !is_known(key)) {
        parsing::unknown_key(key, entry.key_span, at, keywords::JOB, problems);
    }
}

/// Reports keys that are mutually exclusive.
fn check_exclusions(fields: &Fields<'_>, problems: &mut Problems) {
    let at = fields.at();
    if fields.get("rules").is_some() {
        for key in ["only", "except", "start_in"].into_iter().filter(|key| fields.get(key).is_some()) {
            let help = match key {
                "start_in" => "move it to the rule with `when: delayed`".to_owned(),
                _ => format!("remove `{key}`"),
            };
            let message = format!("config key may not be used with `rules`: {key}");
            problems.report_with_help(fields.key_span(key), at, message, help);
        }
    }
    if fields.get("run").is_some() {
        for key in ["script", "before_script", "after_script"].into_iter().filter(|key| fields.get(key).is_some()) {
            let message = format!("config uses both `run` and `{key}`, which are mutually exclusive");
            problems.report_with_help(fields.key_span(key), at, message, "move it into a step of `run`");
        }
    }
}

struct JobParser<'a, 'c> {
    name: &'a Arc<str>,
    span: Span,
    kind: Kind,
    fields: Fields<'a>,
    expressions: &'c mut Expressions,
    problems: &'c mut Problems,
}

impl JobParser<'_, '_> {
    /// Parses the value of a key. Returns `None` if the key is not set or its value is invalid.
    fn parse_key<T>(&mut self, key: &str, parser: fn(&Node, Path<'_>, &mut Problems) -> Option<T>) -> Option<T> {
        let at = self.fields.at();
        self.fields.get(key).and_then(|node| parser(node, at.key(key), self.problems))
    }

    fn parse(&mut self) -> JobEntry {
        let at = self.fields.at();
        let needs = self.needs();
        let work = self.work(needs.as_ref());
        let when =
            self.parse_key("when", if self.kind == Kind::Script { behavior::when } else { behavior::bridge_when });
        // `start_in` together with `rules` has already been reported.
        let is_reported = self.fields.get("rules").is_some() && self.fields.get("start_in").is_some();
        let delayed = when == Some(When::Delayed);
        let start_in = if is_reported { None } else { behavior::start_in(&self.fields, delayed, self.problems) };
        let only = self.fields.get("only");
        let except = self.fields.get("except");
        let rules = self.fields.get("rules");
        JobEntry {
            name: self.name.clone(),
            span: self.span,
            stage: self.stage(),
            work,
            when,
            start_in,
            allow_failure: self.parse_key("allow_failure", behavior::allow_failure),
            retry: self.parse_key("retry", behavior::retry).unwrap_or_default(),
            timeout: self.parse_key("timeout", parsing::duration),
            interruptible: self.parse_key("interruptible", parsing::boolean).unwrap_or(false),
            needs: needs.map(without_mirrors),
            dependencies: self.parse_key("dependencies", needs::dependencies),
            rules: rules.and_then(|node| {
                rules::rules(node, at.key("rules"), RulesParent::Job, self.expressions, self.problems)
            }),
            only: only.and_then(|node| only::only(node, at.key("only"), self.expressions, self.problems)),
            except: except.and_then(|node| only::except(node, at.key("except"), self.expressions, self.problems)),
            variables: self
                .fields
                .get("variables")
                .map(|node| variables::of_job(node, at.key("variables"), self.problems))
                .unwrap_or_default(),
            inherit_variables: Filter::All,
            parallel: self.parse_key("parallel", parallel::parallel),
            tags: self.parse_key("tags", behavior::tags).unwrap_or_default(),
            environment: self.parse_key("environment", environment::environment),
            resource_group: self.parse_key("resource_group", environment::resource_group),
            manual_confirmation: self.parse_key("manual_confirmation", parsing::text),
            defaults: Vec::new(),
            is_broken: false,
            is_incomplete: false,
            bytes: 0,
        }
    }

    fn stage(&mut self) -> NameEntry {
        let Some(node) = self.fields.get("stage") else {
            return NameEntry { name: DEFAULT_STAGE.to_owned(), span: self.span };
        };
        // A job whose `stage` is invalid is put into the last stage, which causes no further errors: it always exists,
        // and no job that this job needs can be in a later stage.
        let name = self.parse_key("stage", parsing::text).unwrap_or_else(|| LAST_STAGE.to_owned());
        NameEntry { name, span: node.span }
    }

    fn needs(&mut self) -> Option<Needs> {
        let parent = match self.kind {
            Kind::Script => NeedsParent::Job,
            Kind::Trigger => NeedsParent::Trigger,
            Kind::Mirror => NeedsParent::Mirror,
        };
        let at = self.fields.at();
        let needs =
            self.fields.get("needs").and_then(|node| needs::needs(node, at.key("needs"), parent, self.problems));
        let is_mirror = |entry: &NeedEntry| matches!(entry.target, NeedTarget::Mirror { .. });
        if self.kind == Kind::Trigger && needs.as_ref().is_some_and(|needs| needs.entries.iter().any(is_mirror)) {
            let message = "config uses both `trigger` and `needs:pipeline`, which are mutually exclusive";
            self.problems.report(self.fields.key_span("needs"), at, message);
        }
        needs
    }

    fn work(&mut self, needs: Option<&Needs>) -> WorkEntry {
        let bridge = match self.kind {
            Kind::Script => None,
            Kind::Trigger => self.parse_key("trigger", trigger::trigger),
            Kind::Mirror => needs.and_then(|needs| {
                needs.entries.iter().find_map(|entry| match &entry.target {
                    NeedTarget::Mirror { project } => Some(trigger::mirror(project.clone())),
                    _ => None,
                })
            }),
        };
        match bridge {
            Some(bridge) => WorkEntry::Bridge(Box::new(bridge)),
            None => WorkEntry::Script {
                work: Box::new(self.script_work()),
                caches: self.parse_key("cache", cache::caches).unwrap_or_default(),
            },
        }
    }

    fn script_work(&mut self) -> ScriptWork {
        extras::check_server_only_keywords(&self.fields, self.problems);
        let mut work = ScriptWork {
            before_script: self.parse_key("before_script", scripts::script).unwrap_or_default(),
            script: self.parse_key("script", scripts::main_script).unwrap_or_default(),
            after_script: self.parse_key("after_script", scripts::script).unwrap_or_default(),
            run: self.parse_key("run", scripts::run),
            image: self.parse_key("image", image::image),
            services: self.parse_key("services", image::services).unwrap_or_default(),
            cache: Vec::new(),
            artifacts: self.parse_key("artifacts", artifacts::artifacts),
            coverage: self.parse_key("coverage", behavior::coverage),
            pre_get_sources_script: self.parse_key("hooks", scripts::hooks).unwrap_or_default(),
            id_tokens: self.parse_key("id_tokens", extras::id_tokens).unwrap_or_default(),
            secrets: self.parse_key("secrets", extras::secrets).unwrap_or_default(),
            release: self.parse_key("release", extras::release),
            pages: self.pages(),
            inputs: self.parse_key("inputs", extras::inputs).unwrap_or_default(),
        };
        if let Some(directory) = &work.pages {
            let artifacts = work.artifacts.get_or_insert_with(|| Artifacts {
                when: "on_success".to_owned(),
                access: "all".to_owned(),
                ..Artifacts::default()
            });
            if !artifacts.paths.contains(directory) {
                artifacts.paths.push(directory.clone());
            }
        }
        work
    }

    /// Returns the directory to publish. `None` unless the job has the name `pages` or the keyword `pages`.
    fn pages(&mut self) -> Option<String> {
        let pages = self.parse_key("pages", extras::pages);
        let publish = extras::publish(&self.fields, self.problems);
        let directory = match pages {
            Some(PagesEntry::Publish(directory)) => Some(directory),
            None if &**self.name == "pages" => Some(None),
            Some(PagesEntry::Disabled) | None => None,
        };
        if let (Some((_, span)), None) = (&publish, &directory) {
            self.problems.report_with_help(
                *span,
                self.fields.at(),
                "config key `publish` can only be used within a `pages` job",
                "write `pages: {publish: ...}`",
            );
        }
        directory.map(|directory| {
            directory.or(publish.map(|(directory, _)| directory)).unwrap_or_else(|| DEFAULT_PAGES.to_owned())
        })
    }
}

fn without_mirrors(mut needs: Needs) -> Needs {
    needs.entries.retain(|entry| !matches!(entry.target, NeedTarget::Mirror { .. }));
    needs
}
