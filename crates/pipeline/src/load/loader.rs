//! Loads the files of a configuration: the root, includes depth first, merging, then `extends` and `!reference`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::entry::{self, Entry, Location};
use super::inputs::{GivenInput, GivenValue};
use super::interpolate::push_json;
use super::merge::{Budget, merge_into};
use super::read::{File, read, start_of};
use super::variables::Variables;
use super::{IncludeOutcome, IncludeRecord, Loaded, extends, reference, rules, target};
use crate::conditions::scope::Base;
use crate::context::{ChildSource, Context, IncludeTarget, IncludedFile, InputValue, Origin, SourceError, Sources};
use crate::diagnostic::{Diagnostic, Severity};
use crate::expand::ByteBudget;
use crate::gaps::Gaps;
use crate::limits::{Limits, MAX_CHILD_INCLUDES, MAX_INCLUDE_ENTRIES_BYTES, MAX_INTERPOLATED_TEXT_BYTES};
use crate::node::{Map, Node, SourceId, Span, Value};
use crate::patterns::Patterns;
use crate::source_map::SourceMap;
use crate::yaml;

const MAX_INTERPOLATION_BYTES: usize = 64 * 1024 * 1024;

pub(super) struct Loader<'a> {
    pub(super) context: &'a Context,
    sources: &'a dyn Sources,
    pub(super) limits: Limits,
    pub(super) variables: Variables,
    /// Variables that the rules of `include` can use.
    base: Base<'a>,
    texts: SourceMap,
    pub(super) diagnostics: Vec<Diagnostic>,
    descriptions: BTreeMap<String, String>,
    includes: Vec<IncludeRecord>,
    /// Files by target. `None` for files that could not be read. Their errors have been reported.
    files: HashMap<IncludeTarget, Option<Arc<File>>>,
    /// Inputs of the run request that at least one file declares. True means that the root file declares the input, so
    /// that other files do not get it.
    pub(super) run_inputs: HashMap<String, bool>,
    /// Targets that were skipped because this machine cannot reach them.
    pub(super) skipped: HashSet<IncludeTarget>,
    /// Top-level keys that use an input whose declaration is in a file that was skipped.
    pub(super) incomplete_keys: HashSet<Arc<str>>,
    /// Chain of includes that leads to the current file: the target and inputs of each file, to detect cycles. `None` means
    /// that the inputs are too long to compare.
    stack: Vec<(IncludeTarget, Option<String>)>,
    include_count: usize,
    is_over_include_limit: bool,
    pub(super) budget: Budget,
    pub(super) remaining_interpolation_bytes: usize,
    pub(super) patterns: Patterns,
    /// Bytes that further `include` entries may have.
    pub(super) include_budget: ByteBudget,
}

impl<'a> Loader<'a> {
    pub(super) fn new(context: &'a Context, sources: &'a dyn Sources, limits: Limits) -> Self {
        Self {
            context,
            sources,
            limits,
            variables: Variables::new(context),
            base: Base::new(context),
            texts: SourceMap::default(),
            diagnostics: Vec::new(),
            descriptions: BTreeMap::new(),
            includes: Vec::new(),
            files: HashMap::new(),
            run_inputs: HashMap::new(),
            skipped: HashSet::new(),
            incomplete_keys: HashSet::new(),
            stack: Vec::new(),
            include_count: 0,
            is_over_include_limit: false,
            budget: Budget::new(limits.merged_nodes),
            remaining_interpolation_bytes: MAX_INTERPOLATION_BYTES,
            patterns: Patterns::default(),
            include_budget: ByteBudget::new(MAX_INCLUDE_ENTRIES_BYTES),
        }
    }

    pub(super) fn load_root(mut self, bytes: &[u8]) -> Loaded {
        let name = self.context.config_path.clone();
        self.stack.push((IncludeTarget::Local { origin: Origin::Root, path: name.clone() }, inputs_as_text(&[])));
        let blank_message = format!("please provide content of `{name}`");
        let map = self.given_file(name.clone(), bytes.to_vec(), &blank_message, &[]).unwrap_or_default();
        let is_undeclared = |name: &&String| !self.run_inputs.contains_key(*name);
        // A part that was not read may declare the input.
        let is_complete = self.skipped.is_empty() && !has_errors(&self.diagnostics);
        for input in self.context.inputs.iter().map(|(name, _)| name).filter(|name| is_complete && is_undeclared(name))
        {
            let message = format!("`{name}`: unknown input arguments: `{input}`");
            let help = "declare the input in a header with `spec:inputs`, in this file or in an included file";
            self.diagnostics.push(Diagnostic::error(start_of(SourceId(0)), message).help(help));
        }
        self.finish(map)
    }

    pub(super) fn load_child(mut self, entries: &[ChildSource]) -> Loaded {
        if entries.len() > MAX_CHILD_INCLUDES {
            let message = format!("trigger:include config is too long (maximum is {MAX_CHILD_INCLUDES})");
            self.diagnostics.push(Diagnostic::error(None, message));
        }
        let mut merged = Map::default();
        for child in entries.iter().take(MAX_CHILD_INCLUDES) {
            let map = match child {
                ChildSource::Entry(json) => self.child_entry(json),
                ChildSource::Artifact { name, bytes, inputs } => {
                    let given: Vec<GivenInput> = (inputs.iter())
                        .map(|(name, value)| GivenInput {
                            name: name.clone(),
                            named_at: None,
                            span: None,
                            value: GivenValue::Input(InputValue::Json(value.clone())),
                        })
                        .collect();
                    self.given_file(name.clone(), bytes.clone(), &format!("`{name}` is empty"), &given)
                }
            };
            merge_into(&mut merged, &map.unwrap_or_default(), &mut self.budget);
        }
        self.finish(merged)
    }

    /// Loads the files of an entry of `trigger:include`. Errors show the entry as JSON.
    fn child_entry(&mut self, json: &serde_json::Value) -> Option<Map> {
        let text = serde_json::to_string_pretty(json).unwrap_or_default();
        let source = self.texts.add("trigger:include", text.as_str());
        match yaml::parse(source, &text, &self.limits) {
            Ok(parsed) => {
                let node = parsed.documents.into_iter().next()?.root;
                Some(self.include(&node, &Origin::Root, 1))
            }
            Err(problems) => {
                self.diagnostics.extend(problems);
                None
            }
        }
    }

    /// Loads a file whose content the caller has: the root file, or a file from artifacts. `given` contains the inputs.
    fn given_file(&mut self, name: String, bytes: Vec<u8>, blank_message: &str, given: &[GivenInput]) -> Option<Map> {
        let included = IncludedFile { name, bytes, origin: Origin::Root, component: None };
        let limits = self.limits;
        match read(included, blank_message, None, &limits, &mut self.texts, &mut self.diagnostics) {
            Ok(file) => {
                self.budget.spend(file.nodes);
                self.file(&file, given, None, 1)
            }
            Err(problems) => {
                self.diagnostics.extend(problems);
                None
            }
        }
    }

    /// Resolves `extends` and `!reference` in the merged tree. Also hides masked values in the diagnostics, and removes
    /// repeated diagnostics.
    fn finish(mut self, merged: Map) -> Loaded {
        let failed = |record: &IncludeRecord| record.outcome == IncludeOutcome::Failed;
        let includes_were_skipped = !self.skipped.is_empty();
        let has_missing_file = includes_were_skipped || self.includes.iter().any(failed);
        let mut gaps = Gaps::new(has_missing_file, includes_were_skipped);
        self.incomplete_keys.iter().for_each(|key| gaps.add(key));
        let (extended, parents) = extends::resolve(&merged, &mut self.budget, &mut gaps, &mut self.diagnostics);
        let limits = self.limits;
        let referenced = reference::resolve(&extended, &limits, &mut self.budget, &mut gaps, &mut self.diagnostics);
        let mut map = referenced.unwrap_or(extended);
        let start = start_of(SourceId(0));
        if self.budget.is_spent() {
            let message = format!(
                "the configuration has more than {} values after `extends` and `!reference` are expanded",
                self.limits.merged_nodes
            );
            self.diagnostics.push(
                Diagnostic::error(start, message)
                    .help("use fewer `extends` and `!reference`, or split the configuration into child pipelines"),
            );
            map = Map::default();
        }
        self.diagnostics.extend(self.patterns.budget_error(start));
        self.diagnostics.extend(self.base.budget_error(start));
        self.diagnostics.extend(self.variables.budget_error(start));
        self.diagnostics.extend(entry::budget_error(&self.include_budget, start));
        for diagnostic in &mut self.diagnostics {
            self.base.masked().hide_in(diagnostic);
        }
        let mut seen = HashSet::new();
        self.diagnostics.retain(|diagnostic| seen.insert((diagnostic.span, diagnostic.message.clone())));
        for diagnostic in &mut self.diagnostics {
            diagnostic.narrow(&self.texts);
        }
        Loaded {
            root: Node::new(Value::Map(Arc::new(map)), start),
            sources: self.texts,
            diagnostics: self.diagnostics,
            descriptions: self.descriptions,
            includes: self.includes,
            parents,
            patterns: self.patterns,
            gaps,
        }
    }

    /// Returns the file merged over its includes. `None` if the header or the inputs are invalid, or if an input makes
    /// the file too deep.
    fn file(&mut self, file: &File, given: &[GivenInput], at: Option<Span>, depth: usize) -> Option<Map> {
        let body = self.interpolated_body(file, given, at)?;
        self.descriptions.extend(yaml::descriptions(&file.text, &body));
        let mut own_keys = Map::clone(&body);
        if let Some(spec) = own_keys.remove("spec") {
            let problem =
                Diagnostic::error(spec.key_span, "`spec` is only allowed in the header, the first document of a file");
            self.diagnostics.push(problem.help("put `spec` first and separate it from the jobs with a line `---`"));
        }
        let mut merged = match own_keys.remove("include") {
            Some(include) => self.include(&include.node, &file.origin, depth),
            None => Map::default(),
        };
        merge_into(&mut merged, &own_keys, &mut self.budget);
        Some(merged)
    }

    /// Loads and merges the files of all entries of `include`. `depth` is the nesting level of these entries.
    fn include(&mut self, include: &Node, origin: &Origin, depth: usize) -> Map {
        let mut selected = Vec::new();
        let remaining = self.remaining_includes();
        let mut target_count = 0;
        for entry in entry::entries(include, &self.include_budget, &mut self.diagnostics) {
            if target_count > remaining {
                break;
            }
            let passes_rules = entry.rules.as_ref().is_none_or(|rules| {
                let (patterns, diagnostics) = (&mut self.patterns, &mut self.diagnostics);
                rules::is_included(rules, &self.base, self.sources, origin, patterns, diagnostics)
            });
            let targets = if passes_rules || self.context.ignores_include_rules {
                Some(self.targets(&entry, origin))
            } else {
                None
            };
            target_count += targets.as_ref().map_or(0, Vec::len);
            selected.push((entry, targets));
        }
        self.prefetch(selected.iter().filter_map(|(_, targets)| targets.as_ref()).flatten().map(|(target, _)| target));

        let mut merged = Map::default();
        for (entry, targets) in selected {
            let Some(targets) = targets else {
                let description = target::location_description(&entry.location);
                let outcome = IncludeOutcome::ExcludedByRules;
                self.includes.push(IncludeRecord { description, included_at: entry.span, depth, outcome });
                continue;
            };
            let given: Vec<GivenInput> = (entry.inputs.iter())
                .flat_map(|(map, _)| map.iter())
                .map(|(name, value)| GivenInput {
                    name: name.to_string(),
                    named_at: Some(value.key_span),
                    span: Some(value.node.span),
                    value: GivenValue::Node(value.node.clone()),
                })
                .collect();
            for (target, target_span) in targets {
                if self.is_over_include_limit {
                    return merged;
                }
                if let Some(map) = self.include_target(&entry, target, target_span, &given, depth) {
                    merge_into(&mut merged, &map, &mut self.budget);
                }
            }
        }
        merged
    }

    fn include_target(
        &mut self,
        entry: &Entry,
        target: IncludeTarget,
        target_span: Span,
        given: &[GivenInput],
        depth: usize,
    ) -> Option<Map> {
        if !self.count_include(target_span) {
            return None;
        }
        let inclusion = (target.clone(), inputs_as_text(given));
        let is_repeated = |known: &(IncludeTarget, Option<String>)| known.1.is_some() && *known == inclusion;
        if let Some(first) = self.stack.iter().position(is_repeated) {
            let names: Vec<String> = (self.stack.get(first..).unwrap_or_default().iter())
                .map(|(target, _)| target::name(target))
                .chain([target::name(&target)])
                .collect();
            let message = format!("files include each other in a cycle: {}", names.join(" -> "));
            let limit = self.limits.includes;
            self.diagnostics.push(
                Diagnostic::error(target_span, message)
                    .help(format!("remove one of the includes; maximum of {limit} nested includes are allowed")),
            );
            return None;
        }
        let index = self.includes.len();
        let outcome = IncludeOutcome::Failed;
        self.includes.push(IncludeRecord {
            description: self.base.masked().hide(&target::description(&target)),
            included_at: entry.span,
            depth,
            outcome,
        });
        let file = self.fetch(&target, target_span, entry);
        if let (None, Some(record)) = (&file, self.includes.get_mut(index))
            && self.skipped.contains(&target)
        {
            record.outcome = IncludeOutcome::Skipped;
        }
        let file = file?;
        self.stack.push(inclusion);
        let map = self.file(&file, given, Some(target_span), depth + 1);
        self.stack.pop();
        if let (Some(record), true) = (self.includes.get_mut(index), map.is_some()) {
            record.outcome = IncludeOutcome::Merged(file.source);
        }
        map
    }

    /// Returns a file, which is read only once. Returns `None` if the file cannot be read or does not match
    /// `integrity`.
    pub(super) fn fetch(&mut self, target: &IncludeTarget, target_span: Span, entry: &Entry) -> Option<Arc<File>> {
        let file = match self.files.get(target) {
            Some(known) => known.clone(),
            None => {
                let file = self.read(target, target_span).map(Arc::new);
                self.budget.spend(file.as_ref().map_or(0, |file| file.nodes));
                self.files.insert(target.clone(), file.clone());
                file
            }
        }?;
        if let Location::Remote { integrity: Some(expected), .. } = &entry.location
            && expected.text != file.digest
        {
            let message = format!("integrity check of `{}` failed", file.name);
            let help = format!("check how the file changed, then set `integrity` to `{}`", file.digest);
            self.diagnostics.push(Diagnostic::error(expected.span, message).help(help));
            return None;
        }
        Some(file)
    }

    fn read(&mut self, target: &IncludeTarget, target_span: Span) -> Option<File> {
        let included = match self.sources.read(target) {
            Ok(included) => IncludedFile { name: self.base.masked().hide(&included.name), ..included },
            Err(SourceError::Unreachable(reason)) if self.context.stubs_includes => {
                let message = format!("skipped {}: {reason}", target::description(target));
                self.diagnostics.push(Diagnostic::warning(target_span, message));
                self.skipped.insert(target.clone());
                return None;
            }
            Err(error) => {
                let mut problem = Diagnostic::error(target_span, error.to_string());
                if let IncludeTarget::Local { origin: Origin::Root, path } = target {
                    let is_yaml = |known: &&String| target::has_yaml_extension(known);
                    let known = self.context.tracked_paths.iter().filter(is_yaml).map(String::as_str);
                    problem.help = crate::suggest::did_you_mean(path, known);
                }
                self.diagnostics.push(problem);
                return None;
            }
        };
        let blank_message = format!("included file `{}` is empty", included.name);
        let limits = self.limits;
        read(included, &blank_message, Some(target_span), &limits, &mut self.texts, &mut self.diagnostics)
            .map_err(|problems| {
                let related = |problem: Diagnostic| match problem.span {
                    Some(span) if span != target_span => problem.related(target_span, "included here"),
                    _ => problem,
                };
                self.diagnostics.extend(problems.into_iter().map(related));
            })
            .ok()
    }

    /// Returns the files of an entry. If there are more than may be included, omits some of them.
    pub(super) fn targets(&mut self, entry: &Entry, origin: &Origin) -> Vec<(IncludeTarget, Span)> {
        let resolver = target::Resolver {
            context: self.context,
            sources: self.sources,
            variables: &self.variables,
            origin,
            max_targets: self.remaining_includes().saturating_add(1),
        };
        resolver.targets(&entry.location, &mut self.diagnostics)
    }

    pub(super) fn remaining_includes(&self) -> usize {
        self.limits.includes.saturating_sub(self.include_count)
    }

    /// Counts an included file. Returns false if there are too many, and reports this once.
    pub(super) fn count_include(&mut self, target_span: Span) -> bool {
        if self.remaining_includes() == 0 {
            if !self.is_over_include_limit {
                let message = format!("maximum of {} nested includes are allowed", self.limits.includes);
                self.diagnostics
                    .push(Diagnostic::error(target_span, message).help("nested and repeated includes count, too"));
            }
            self.is_over_include_limit = true;
            return false;
        }
        self.include_count += 1;
        true
    }

    /// Announces the files that were not read yet, as far as they may be included.
    pub(super) fn prefetch<'t>(&self, targets: impl Iterator<Item = &'t IncludeTarget>) {
        let targets = targets.take(self.remaining_includes());
        let new: Vec<IncludeTarget> = targets.filter(|target| !self.files.contains_key(*target)).cloned().collect();
        self.sources.prefetch(&new);
    }
}

pub(super) fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
}

/// Returns a text that differs between inclusions of a file with different inputs. Returns `None` if the text is too
/// long.
fn inputs_as_text(given: &[GivenInput]) -> Option<String> {
    let mut text = String::new();
    for given in given {
        text.push_str(&given.name);
        match &given.value {
            GivenValue::Node(node) => push_json(&mut text, &node.value),
            GivenValue::Input(InputValue::Text(value)) => text.push_str(value),
            GivenValue::Input(InputValue::Json(json)) => text.push_str(&json.to_string()),
        }
        text.push('\n');
    }
    (text.len() <= MAX_INTERPOLATED_TEXT_BYTES).then_some(text)
}
