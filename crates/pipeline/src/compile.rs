//! The whole way from text to pipeline, in GitLab's order (pipeline-yaml 2.1).

use crate::config;
use crate::config::parsing::Problems;
use crate::context::{ChildSource, Context, Sources};
use crate::diagnostic::{Diagnostic, Severity};
use crate::graph::{self, Graph};
use crate::load::{self, Loaded};
use crate::model::{NotCreated, Pipeline};
use crate::node::Node;
use crate::seed::{self, Outcome};
use crate::source_map::SourceMap;

/// What became of a configuration. Exactly one of these holds: there is a pipeline; there is a reason why none was
/// created; or `diagnostics` has an error.
#[derive(Debug, Clone, Default)]
pub struct Compiled {
    /// The pipeline, if one is to be created.
    pub pipeline: Option<Pipeline>,
    /// Why a correct configuration made no pipeline for this event.
    pub not_created: Option<NotCreated>,
    /// Errors and warnings, in the order of the places they point at.
    pub diagnostics: Vec<Diagnostic>,
    /// The texts that the diagnostics point into; the first is the root file.
    pub sources: SourceMap,
    /// The configuration after includes, `extends`, `!reference` and `default` (pipeline-yaml 2.1, steps 1 to 7), without
    /// hidden keys: what `lint --preview` shows. `None` if the text could not be read that far.
    pub merged: Option<Node>,
}

impl Compiled {
    /// Whether the configuration is wrong.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

/// Compiles the text of a root file for an event.
///
/// Never fails as a call: what is wrong with the text is in [`Compiled::diagnostics`].
#[must_use]
pub fn compile(root_text: &[u8], context: &Context, sources: &dyn Sources) -> Compiled {
    finish(load::load(root_text, context, sources), context, sources)
}

/// Compiles the texts of a child pipeline for an event ([`crate::context::PipelineSource::ParentPipeline`]).
#[must_use]
pub fn compile_child(entries: &[ChildSource], context: &Context, sources: &dyn Sources) -> Compiled {
    finish(load::load_child(entries, context, sources), context, sources)
}

/// From the merged tree on.
fn finish(mut loaded: Loaded, context: &Context, sources: &dyn Sources) -> Compiled {
    let mut problems = Problems::after_load(&loaded.diagnostics);
    problems.patterns = std::mem::take(&mut loaded.patterns);
    let mut compiled = Compiled::default();
    let complete = !loaded.has_errors();
    if complete || loaded.root.as_map().is_some_and(|map| !map.is_empty()) {
        let (config, merged) = config::config(&loaded.root, complete, &loaded.gaps, &mut problems);
        compiled.merged = Some(merged);
        problems.check_patterns(loaded.root.span);
        // What is missing may have the stages and jobs that the others name.
        let is_whole = loaded.gaps.is_empty() || loaded.gaps.is_stub;
        let graph = if is_whole { graph::graph(&config, &mut problems) } else { Graph::default() };
        if problems.errors() == 0 {
            let outcome = seed::seed(&config, &graph, &loaded, context, sources, &mut problems);
            problems.check_patterns(loaded.root.span);
            if problems.errors() == 0 {
                match outcome {
                    Outcome::Created(pipeline) => compiled.pipeline = Some(*pipeline),
                    Outcome::NotCreated(reason) => compiled.not_created = Some(reason),
                }
            }
        }
    }
    compiled.diagnostics = problems.into_list();
    for diagnostic in &mut compiled.diagnostics {
        diagnostic.narrow(&loaded.sources);
    }
    compiled.sources = loaded.sources;
    compiled
}
