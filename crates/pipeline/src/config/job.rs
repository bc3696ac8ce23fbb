//! Parses a job: all its keywords and the dependencies between them (docs/spec/pipeline-yaml.md, sections 1.2 and 1.9).

use std::sync::Arc;
use std::time::Duration;

use muster_job::Variable;

use crate::config::cache::{self, CacheEntry};
use crate::config::defaults::{self, Defaults, Filter};
use crate::config::environment::{self, EnvironmentEntry};
use crate::config::extras::{self, PagesEntry};
use crate::config::keywords;
use crate::config::needs::{self, Named, NeedTarget, Needs, NeedsOf};
use crate::config::only::{self, RefPolicy};
use crate::config::parallel::{self, Parallel};
use crate::config::parsing::{self, Fields, Path, Problems};
use crate::config::rules::{self, Expressions, Rule, RulesOf};
use crate::config::size_budget::{self, SizeBudget};
use crate::config::top::LAST_STAGE;
use crate::config::trigger::{self, BridgeEntry};
use crate::config::{artifacts, behavior, image, scripts, variables};
use crate::diagnostic::Diagnostic;
use crate::gaps::Gaps;
use crate::model::{AllowFailure, Artifacts, Retry, ScriptWork, When};
use crate::node::{Entry, Map, Node, Span, Value};

/// Stage of a job that sets none.
const DEFAULT_STAGE: &str = "test";
/// Pages directory of a job that sets none.
const DEFAULT_PAGES: &str = "public";

/// A job as written, with the defaults that it inherits.
#[derive(Debug, Clone)]
pub(crate) struct JobEntry {
    pub(crate) name: Arc<str>,
    pub(crate) span: Span,
    pub(crate) stage: Named,
    pub(crate) work: WorkEntry,
    pub(crate) when: Option<When>,
    pub(crate) start_in: Option<Duration>,
    pub(crate) allow_failure: Option<AllowFailure>,
    pub(crate) retry: Retry,
    pub(crate) timeout: Option<Duration>,
    pub(crate) interruptible: bool,
    pub(crate) needs: Option<Needs>,
    pub(crate) dependencies: Option<Vec<Named>>,
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
    /// True if the job has errors, which have been reported. Other parts of it may be missing as a result.
    pub(crate) is_broken: bool,
    /// True if parts of the job are missing because their include was skipped.
    pub(crate) lacks_parts: bool,
    /// Size of the job including its defaults, in bytes ([`super::size_budget`]).
    pub(crate) bytes: usize,
}

/// What a job does, as written.
#[derive(Debug, Clone)]
pub(crate) enum WorkEntry {
    /// The job runs on a runner. The keys of the caches are computed later.
    Script { work: Box<ScriptWork>, caches: Vec<CacheEntry> },
    /// The job starts or mirrors another pipeline.
    Bridge(Box<BridgeEntry>),
}

/// Type of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Script,
    Trigger,
    Mirror,
}

/// Input that all jobs share.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    pub(crate) defaults: Defaults,
    /// True if the configuration was loaded without errors ([`super::config`]).
    pub(crate) complete: bool,
    /// Parts of the configuration that are missing.
    pub(crate) gaps: &'a Gaps,
    pub(crate) expressions: Expressions,
    pub(crate) size_budget: SizeBudget,
}

/// Parses a job. Returns the entry, as far as it could be parsed, and the node including defaults.
pub(crate) fn job(
    name: &Arc<str>,
    entry: &Entry,
    shared: &mut Shared<'_>,
    problems: &mut Problems,
) -> Option<(JobEntry, Node)> {
    let jobs = Path::root("jobs");
    let at = jobs.key(name);
    let own = entry.node.as_map()?;
    let mark = problems.mark();
    let is_gapped = shared.gaps.has(name);
    if is_gapped && !shared.gaps.is_stub {
        unknown_keys(own, at, problems);
        return None;
    }
    let written = kind(own);
    let kind = match written {
        Some(kind) => kind,
        None if shared.gaps.is_stub => Kind::Script,
        // The script may be in a file that could not be loaded.
        None if !shared.complete => return None,
        None => {
            no_work(own, &entry.node, at, problems);
            return None;
        }
    };
    let inherit = own.get("inherit").filter(|node| !node.is_null());
    let inherit = inherit.map(|node| defaults::inherit(node, at.key("inherit"), problems)).unwrap_or_default();
    let (full, taken) = shared.defaults.apply(own, kind != Kind::Script, &inherit);
    let bytes = size_budget::bytes(&entry.node).saturating_add(shared.defaults.bytes(&taken));
    if !shared.size_budget.add(bytes, entry.key_span, problems) {
        return None;
    }
    let node = full.map_or_else(|| entry.node.clone(), |map| Node::new(Value::Map(Arc::new(map)), entry.node.span));
    let fields = if kind == Kind::Script {
        Fields::parse(&node, at, keywords::JOB, problems)?
    } else {
        Fields::parse_with(&node, at, keywords::TRIGGER_JOB, problems, key_of_a_bridge)?
    };
    check_exclusions(&fields, kind, problems);
    let expressions = &mut shared.expressions;
    let mut reader = Reader { name, span: entry.key_span, kind, fields, expressions, problems };
    let mut job = reader.entry();
    job.inherit_variables = inherit.variables;
    job.defaults = taken;
    job.bytes = bytes;
    job.lacks_parts = shared.gaps.is_stub && (is_gapped || written.is_none());
    if job.lacks_parts {
        problems.roll_back(mark);
    }
    job.is_broken = problems.errors() > mark.1;
    Some((job, node))
}

/// Returns help for a key that is valid for ordinary jobs but not for bridges.
fn key_of_a_bridge(key: &str) -> Option<String> {
    let is_of_jobs = keywords::JOB.contains(&key);
    is_of_jobs.then(|| format!("remove `{key}`: a job that starts or mirrors a pipeline does not run on a runner"))
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
fn no_work(map: &Map, node: &Node, at: Path<'_>, problems: &mut Problems) {
    let mut diagnostic =
        Diagnostic::error(node.span, format!("{at} config should implement a script:, run:, or trigger: keyword"));
    let near = map.keys().find_map(|key| {
        let known = !keywords::JOB.contains(&&**key);
        known.then(|| parsing::suggest(key, &["script", "run", "trigger"]).map(|near| (key, near))).flatten()
    });
    diagnostic.help = Some(match near {
        Some((key, near)) => format!("did you mean `{near}` instead of `{key}`?"),
        None => "add `script`; if it is a template for other jobs, start its name with `.`".to_owned(),
    });
    problems.push(diagnostic);
    unknown_keys(map, at, problems);
}

/// Reports keys that no type of job has.
fn unknown_keys(map: &Map, at: Path<'_>, problems: &mut Problems) {
    let is_known = |key: &str| keywords::JOB.contains(&key) || keywords::TRIGGER_JOB.contains(&key);
    for (key, entry) in map.iter().filter(|(key, _)| !is_known(key)) {
        parsing::unknown_key(key, entry.key_span, at, keywords::JOB, problems);
    }
}

/// Reports keys that are mutually exclusive.
fn check_exclusions(fields: &Fields<'_>, kind: Kind, problems: &mut Problems) {
    let at = fields.at();
    if fields.get("rules").is_some() {
        for key in ["only", "except", "start_in"].into_iter().filter(|key| fields.get(key).is_some()) {
            let help = if key == "start_in" { "put it into the rule with `when: delayed`" } else { "keep `rules`" };
            let what = format!("config key may not be used with `rules`: {key}");
            problems.wrong_help(fields.key_span(key), at, what, help);
        }
    }
    if fields.get("run").is_some() {
        for key in ["script", "before_script", "after_script"].into_iter().filter(|key| fields.get(key).is_some()) {
            let what = format!("config uses both `run` and `{key}`, which are mutually exclusive");
            problems.wrong_help(fields.key_span(key), at, what, "make it a step of `run`");
        }
    }
    if kind == Kind::Trigger && fields.get("needs").is_some_and(trigger::is_mirror) {
        let what = "config uses both `trigger` and `needs:pipeline`, which are mutually exclusive";
        problems.wrong(fields.key_span("needs"), at, what);
    }
}

/// Parses the keywords of a job.
struct Reader<'a, 'c> {
    name: &'a Arc<str>,
    span: Span,
    kind: Kind,
    fields: Fields<'a>,
    expressions: &'c mut Expressions,
    problems: &'c mut Problems,
}

impl Reader<'_, '_> {
    /// Parses a keyword with its parser.
    fn read<T>(&mut self, key: &str, parser: fn(&Node, Path<'_>, &mut Problems) -> Option<T>) -> Option<T> {
        let at = self.fields.at();
        self.fields.get(key).and_then(|node| parser(node, at.key(key), self.problems))
    }

    fn entry(&mut self) -> JobEntry {
        let at = self.fields.at();
        let needs = self.needs();
        let work = self.work(needs.as_ref());
        let when = self.read("when", if self.kind == Kind::Script { behavior::when } else { behavior::bridge_when });
        // `start_in` together with `rules` has already been reported.
        let refused = self.fields.get("rules").is_some() && self.fields.get("start_in").is_some();
        let delayed = when == Some(When::Delayed);
        let start_in = if refused { None } else { behavior::start_in(&self.fields, delayed, self.problems) };
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
            allow_failure: self.read("allow_failure", behavior::allow_failure),
            retry: self.read("retry", behavior::retry).unwrap_or_default(),
            timeout: self.read("timeout", parsing::duration),
            interruptible: self.read("interruptible", parsing::boolean).unwrap_or(false),
            needs: needs.map(without_mirrors),
            dependencies: self.read("dependencies", needs::dependencies),
            rules: rules
                .and_then(|node| rules::rules(node, at.key("rules"), RulesOf::Job, self.expressions, self.problems)),
            only: only.and_then(|node| only::only(node, at.key("only"), self.expressions, self.problems)),
            except: except.and_then(|node| only::except(node, at.key("except"), self.expressions, self.problems)),
            variables: self
                .fields
                .get("variables")
                .map(|node| variables::of_job(node, at.key("variables"), self.problems))
                .unwrap_or_default(),
            inherit_variables: Filter::All,
            parallel: self.read("parallel", parallel::parallel),
            tags: self.read("tags", behavior::tags).unwrap_or_default(),
            environment: self.read("environment", environment::environment),
            resource_group: self.read("resource_group", environment::resource_group),
            manual_confirmation: self.read("manual_confirmation", parsing::text),
            defaults: Vec::new(),
            is_broken: false,
            lacks_parts: false,
            bytes: 0,
        }
    }

    fn stage(&mut self) -> Named {
        let Some(node) = self.fields.get("stage") else {
            return Named { name: DEFAULT_STAGE.to_owned(), span: self.span };
        };
        // An invalid stage must not cause further errors. The last stage always exists, and no need can be in a later
        // stage.
        let name = self.read("stage", parsing::text).unwrap_or_else(|| LAST_STAGE.to_owned());
        Named { name, span: node.span }
    }

    fn needs(&mut self) -> Option<Needs> {
        let of = match self.kind {
            Kind::Script => NeedsOf::Job,
            Kind::Trigger => NeedsOf::Trigger,
            Kind::Mirror => NeedsOf::Mirror,
        };
        let at = self.fields.at();
        self.fields.get("needs").and_then(|node| needs::needs(node, at.key("needs"), of, self.problems))
    }

    fn work(&mut self, needs: Option<&Needs>) -> WorkEntry {
        let bridge = match self.kind {
            Kind::Script => None,
            Kind::Trigger => self.read("trigger", trigger::trigger),
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
                caches: self.read("cache", cache::caches).unwrap_or_default(),
            },
        }
    }

    fn script_work(&mut self) -> ScriptWork {
        extras::server_only(&self.fields, self.problems);
        let mut work = ScriptWork {
            before_script: self.read("before_script", scripts::script).unwrap_or_default(),
            script: self.read("script", scripts::main_script).unwrap_or_default(),
            after_script: self.read("after_script", scripts::script).unwrap_or_default(),
            run: self.read("run", scripts::run),
            image: self.read("image", image::image),
            services: self.read("services", image::services).unwrap_or_default(),
            cache: Vec::new(),
            artifacts: self.read("artifacts", artifacts::artifacts),
            coverage: self.read("coverage", behavior::coverage),
            pre_get_sources_script: self.read("hooks", scripts::hooks).unwrap_or_default(),
            id_tokens: self.read("id_tokens", extras::id_tokens).unwrap_or_default(),
            secrets: self.read("secrets", extras::secrets).unwrap_or_default(),
            release: self.read("release", extras::release),
            pages: self.pages(),
            inputs: self.read("inputs", extras::inputs).unwrap_or_default(),
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

    /// Returns the directory to publish if this is a pages job: a job named `pages`, or with `pages`.
    fn pages(&mut self) -> Option<String> {
        let pages = self.read("pages", extras::pages);
        let publish = extras::publish(&self.fields, self.problems);
        let directory = match pages {
            Some(PagesEntry::Publish(directory)) => Some(directory),
            None if &**self.name == "pages" => Some(None),
            Some(PagesEntry::No) | None => None,
        };
        if let (Some((_, span)), None) = (&publish, &directory) {
            self.problems.wrong_help(
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

/// Removes the needs on other pipelines' status, which are the target of the bridge.
fn without_mirrors(mut needs: Needs) -> Needs {
    needs.entries.retain(|entry| !matches!(entry.target, NeedTarget::Mirror { .. }));
    needs
}
