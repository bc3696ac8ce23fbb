//! Applies the header of a file to its body, with the inputs of the including entry (docs/spec/pipeline-yaml.md,
//! section 2.1, items 2 and 3).

use std::sync::Arc;

use super::block;
use super::entry::{Entry, Location};
use super::header::{self, Declaration, Header};
use super::inputs::{self, GivenInput, GivenValue};
use super::interpolate::Interpolator;
use super::loader::Loader;
use super::read::File;
use crate::context::Origin;
use crate::diagnostic::{Diagnostic, Severity};
use crate::node::{Map, Span};
use crate::source_map::span_at;

impl Loader<'_> {
    /// Returns the body of a file with its blocks replaced. Returns `None` if the header or the inputs have errors, or
    /// if an input makes the body too deep.
    pub(super) fn interpolated_body(
        &mut self,
        file: &File,
        given: &[GivenInput],
        at: Option<Span>,
    ) -> Option<Arc<Map>> {
        let mut problems = Vec::new();
        let mut header = Header::default();
        if let Some(map) = &file.header {
            header = header::header(map, &mut self.patterns, &mut problems);
            let includes = std::mem::take(&mut header.includes);
            for entry in &includes {
                let more = self.included_inputs(entry, &file.origin, &mut problems);
                add_inputs(&mut header.inputs, more, &mut problems);
            }
        }
        let given = self.with_run_inputs(&header.inputs, given, at.is_none() && file.origin == Origin::Root);
        // Values are not checked against invalid declarations.
        let values = if is_free_of_errors(&problems) {
            inputs::resolve(&file.name, &header.inputs, &given, at, &mut self.patterns, &mut problems)
        } else {
            inputs::Values::new()
        };
        let is_usable = is_free_of_errors(&problems);
        self.diagnostics.append(&mut problems);
        if !is_usable {
            return None;
        }
        if !file.text.contains(block::OPEN) {
            return Some(Arc::clone(&file.body));
        }
        if file.header.is_none() {
            self.report_blocks_without_header(file);
            return Some(Arc::clone(&file.body));
        }
        let mut interpolator = Interpolator {
            inputs: &values,
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

    fn included_inputs(&mut self, entry: &Entry, origin: &Origin, problems: &mut Vec<Diagnostic>) -> Vec<Declaration> {
        let allowed = matches!(entry.location, Location::Local(_) | Location::Remote { .. } | Location::Project { .. });
        if !allowed || entry.inputs.is_some() || entry.rules.is_some() {
            problems.push(Diagnostic::error(
                entry.span,
                "`spec:include` supports only `local`, `remote` and `project`, without `inputs` and `rules`",
            ));
            return Vec::new();
        }
        let mut declarations = Vec::new();
        for (target, span) in self.targets(entry, origin) {
            let Some(file) = self.fetch(&target, span, entry) else { continue };
            for (key, extra) in file.body.iter().filter(|(key, _)| &***key != "inputs") {
                let message = format!("`{}` can contain only `inputs`, not `{key}`", file.name);
                problems.push(Diagnostic::error(extra.key_span, message).related(span, "included in the header here"));
            }
            if let Some(inputs) = file.body.get("inputs") {
                let more = header::declarations(inputs, &mut self.patterns, problems);
                add_inputs(&mut declarations, more, problems);
            }
        }
        declarations
    }
}

fn is_free_of_errors(problems: &[Diagnostic]) -> bool {
    problems.iter().all(|problem| problem.severity != Severity::Error)
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
