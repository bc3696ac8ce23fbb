//! Applies the header of a file to its body, with the inputs of the including entry (docs/spec/pipeline-yaml.md,
//! section 2.1, items 2 and 3).

use std::sync::Arc;

use super::block;
use super::entry::Location;
use super::header::{self, Declaration, Header};
use super::inputs::{self, GivenInput, GivenValue};
use super::interpolate::Interpolator;
use super::loader::{Loader, has_errors};
use super::read::File;
use crate::context::Origin;
use crate::diagnostic::Diagnostic;
use crate::node::{Map, Node, Span};
use crate::source_map::span_at;

impl Loader<'_> {
    /// Returns the body of a file with its blocks replaced. Returns `None` if the header, a file that the header includes,
    /// or the inputs have errors, or if an input makes the body too deep.
    pub(super) fn interpolated_body(
        &mut self,
        file: &File,
        given: &[GivenInput],
        at: Option<Span>,
    ) -> Option<Arc<Map>> {
        let mut problems = Vec::new();
        let mut header = Header::default();
        let mut included = IncludedInputs::Complete;
        if let Some(map) = &file.header {
            header = header::header(map, &self.include_budget, &mut self.patterns, &mut problems);
            included = self.add_included_inputs(&mut header, &file.origin, &mut problems);
        }
        let lacks_inputs = included == IncludedInputs::Skipped;
        let is_root = at.is_none() && file.origin == Origin::Root;
        let mut given = self.with_run_inputs(&header.inputs, given, is_root);
        let undeclared = if lacks_inputs { remove_undeclared(&mut given, &header.inputs) } else { Vec::new() };
        // Values are not checked against invalid or missing declarations.
        let mut values = if included != IncludedInputs::Failed && !has_errors(&problems) {
            inputs::resolve(&file.name, &header.inputs, &given, at, &mut self.patterns, &mut problems)
        } else {
            inputs::Values::new()
        };
        let is_usable = included != IncludedInputs::Failed && !has_errors(&problems);
        self.diagnostics.append(&mut problems);
        if !is_usable {
            return None;
        }
        values.extend(undeclared.into_iter().map(|(name, node)| (name, Some(node))));
        if !file.text.contains(block::OPEN) {
            return Some(Arc::clone(&file.body));
        }
        if file.header.is_none() {
            self.report_blocks_without_header(file);
            return Some(Arc::clone(&file.body));
        }
        let mut interpolator = Interpolator {
            inputs: &values,
            lacks_inputs,
            lacks_value: false,
            incomplete_keys: &mut self.incomplete_keys,
            declared_fields: &header.component,
            component: file.component.as_ref(),
            variables: &self.variables,
            text: &file.text,
            limits: &self.limits,
            depth: 0,
            is_too_deep: false,
            remaining_bytes: &mut self.remaining_interpolation_bytes,
            budget: &mut self.budget,
            diagnostics: &mut self.diagnostics,
        };
        let body = interpolator.map(&file.body).map_or_else(|| Arc::clone(&file.body), Arc::new);
        (!interpolator.is_too_deep).then_some(body)
    }

    /// Adds the inputs of the run request, which override the inputs in `given`. If the root file declares an input,
    /// the run request sets it only for the root file, and otherwise for every file that declares it.
    fn with_run_inputs(&mut self, declared: &[Declaration], given: &[GivenInput], is_root: bool) -> Vec<GivenInput> {
        let mut all = given.to_vec();
        for (name, value) in &self.context.inputs {
            let is_declared = declared.iter().any(|input| *input.name == **name);
            let belongs_to_root = self.run_inputs.get(name).copied().unwrap_or(false);
            if !is_declared || belongs_to_root && !is_root {
                continue;
            }
            self.run_inputs.entry(name.clone()).or_insert(is_root);
            all.retain(|given| given.name != *name);
            let value = GivenValue::Input(value.clone());
            all.push(GivenInput { name: name.clone(), named_at: None, span: None, value });
        }
        all
    }

    /// Reports the first `component` or `inputs` block of a file that has no header: a `component` block as an error,
    /// an `inputs` block as a warning.
    fn report_blocks_without_header(&mut self, file: &File) {
        for (offset, _) in file.text.match_indices(block::OPEN) {
            let rest = file.text.get(offset + block::OPEN.len()..).unwrap_or_default().trim_start();
            let span = || span_at(file.source, &file.text, offset, block::OPEN.len());
            if rest.starts_with("component.") {
                let problem = Diagnostic::error(span(), "`component` can only be used in a component");
                self.diagnostics.push(problem.help("declare the fields in a header: `spec: {component: [name]}`"));
                return;
            }
            if rest.starts_with("inputs.") {
                let problem =
                    Diagnostic::warning(span(), "the block is not replaced, because the file declares no inputs");
                self.diagnostics
                    .push(problem.help("add a header with `spec: {inputs: ...}`, followed by a line with `---`"));
                return;
            }
        }
    }

    /// Adds the inputs that the files of `spec:include` declare.
    fn add_included_inputs(
        &mut self,
        header: &mut Header,
        origin: &Origin,
        problems: &mut Vec<Diagnostic>,
    ) -> IncludedInputs {
        let known = self.diagnostics.len();
        let mut included = IncludedInputs::Complete;
        let mut targets = Vec::new();
        for entry in &header.includes {
            let allowed =
                matches!(entry.location, Location::Local(_) | Location::Remote { .. } | Location::Project { .. });
            if !allowed || entry.inputs.is_some() || entry.rules.is_some() {
                let message =
                    "`spec:include` supports only `local`, `remote` and `project`, without `inputs` and `rules`";
                problems.push(Diagnostic::error(entry.span, message));
                included = IncludedInputs::Failed;
            } else if targets.len() <= self.remaining_includes() {
                targets.extend(self.targets(entry, origin).into_iter().map(|(target, span)| (entry, target, span)));
            }
        }
        self.prefetch(targets.iter().map(|(_, target, _)| target));
        for (entry, target, span) in targets {
            if !self.count_include(span) {
                return IncludedInputs::Failed;
            }
            match self.fetch(&target, span, entry) {
                Some(file) => add_inputs(&mut header.inputs, self.declared_inputs(&file, span, problems), problems),
                None if !self.skipped.contains(&target) => included = IncludedInputs::Failed,
                None if included == IncludedInputs::Complete => included = IncludedInputs::Skipped,
                None => {}
            }
        }
        // The targets of an entry can have errors as well.
        let new = self.diagnostics.get(known..).unwrap_or_default();
        if has_errors(new) { IncludedInputs::Failed } else { included }
    }

    /// Returns the inputs that a file of `spec:include` declares.
    fn declared_inputs(&mut self, file: &File, span: Span, problems: &mut Vec<Diagnostic>) -> Vec<Declaration> {
        for (key, extra) in file.body.iter().filter(|(key, _)| &***key != "inputs") {
            let message = format!("`{}` can contain only `inputs`, not `{key}`", file.name);
            problems.push(Diagnostic::error(extra.key_span, message).related(span, "included in the header here"));
        }
        let inputs = file.body.get("inputs");
        inputs.map(|inputs| header::declarations(inputs, &mut self.patterns, problems)).unwrap_or_default()
    }
}

/// Whether all files of `spec:include` could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IncludedInputs {
    Complete,
    /// A file was skipped ([`crate::context::Context::stubs_includes`]). It may declare any input.
    Skipped,
    /// A file could not be read. The error has been reported.
    Failed,
}

/// Removes and returns the given inputs that are not declared. Those of the run request are dropped.
fn remove_undeclared(given: &mut Vec<GivenInput>, declared: &[Declaration]) -> Vec<(Arc<str>, Node)> {
    let is_declared = |given: &mut GivenInput| declared.iter().any(|input| *input.name == *given.name);
    let undeclared = given.extract_if(.., |given| !is_declared(given));
    let value = |given: GivenInput| match given.value {
        GivenValue::Node(node) => Some((given.name.into(), node)),
        GivenValue::Input(_) => None,
    };
    undeclared.filter_map(value).collect()
}

fn add_inputs(inputs: &mut Vec<Declaration>, more: Vec<Declaration>, problems: &mut Vec<Diagnostic>) {
    for declaration in more {
        match inputs.iter().find(|known| known.name == declaration.name) {
            Some(known) => problems.push(
                Diagnostic::error(declaration.span, format!("duplicate input keys found: `{}`", declaration.name))
                    .related(known.span, "also declared here"),
            ),
            None => inputs.push(declaration),
        }
    }
}
