//! Compiles the text of a configuration to a pipeline. The phases of the compilation have the same order as on GitLab
//! (docs/spec/pipeline-yaml.md, section 2.1).

use crate::config;
use crate::config::parsing::Problems;
use crate::context::{ChildSource, Context, Sources};
use crate::diagnostic::{Diagnostic, Severity};
use crate::graph::{self, Graph};
use crate::load::{self, Loaded};
use crate::masked::MaskedValues;
use crate::model::{NotCreated, Pipeline};
use crate::node::Node;
use crate::seed::{self, Outcome};
use crate::source_map::SourceMap;

/// Result of a compilation. Either `pipeline` is set, or `not_created` is set, or `diagnostics` contains an error.
#[derive(Debug, Clone, Default)]
pub struct Compiled {
    /// The pipeline, if the event creates one.
    pub pipeline: Option<Pipeline>,
    /// Reason why a valid configuration creates no pipeline for this event.
    pub not_created: Option<NotCreated>,
    /// Errors and warnings, ordered by position. Errors of loading come before all others, if they have a position.
    pub diagnostics: Vec<Diagnostic>,
    /// Texts that the positions of the diagnostics refer to. The first is the root file or, for a child pipeline, the first entry of
    /// `trigger:include`.
    pub sources: SourceMap,
    /// The configuration after includes, `extends`, `!reference` and `default`, without hidden keys. `None` means that
    /// nothing could be loaded.
    pub merged: Option<Node>,
}

impl Compiled {
    /// Returns true if the configuration contains an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

/// Compiles the root file of a configuration. Errors are in [`Compiled::diagnostics`].
#[must_use]
pub fn compile(root_text: &[u8], context: &Context, sources: &dyn Sources) -> Compiled {
    sources.begin_load();
    compile_loaded(load::load(root_text, context, sources), context, sources)
}

/// Compiles the files of a child pipeline for an event ([`crate::context::PipelineSource::ParentPipeline`]).
#[must_use]
pub fn compile_child(entries: &[ChildSource], context: &Context, sources: &dyn Sources) -> Compiled {
    sources.begin_load();
    compile_loaded(load::load_child(entries, context, sources), context, sources)
}

fn compile_loaded(mut loaded: Loaded, context: &Context, sources: &dyn Sources) -> Compiled {
    let mut problems = Problems::with_load_diagnostics(&loaded.diagnostics);
    problems.patterns = std::mem::take(&mut loaded.patterns);
    let mut compiled = Compiled::default();
    let loaded_completely = !loaded.has_errors();
    if loaded_completely || loaded.root.as_map().is_some_and(|map| !map.is_empty()) {
        let (config, merged) = config::config(&loaded.root, loaded_completely, &loaded.gaps, &mut problems);
        compiled.merged = Some(merged);
        problems.check_patterns_budget(loaded.root.span);
        // Files that could not be read may define the stages and jobs that other jobs refer to.
        let all_jobs_known = loaded.gaps.is_empty() || loaded.gaps.includes_were_skipped;
        let graph = if all_jobs_known { graph::graph(&config, &mut problems) } else { Graph::default() };
        if problems.error_count() == 0 {
            let outcome = seed::seed(&config, &graph, &loaded, context, sources, &mut problems);
            problems.check_patterns_budget(loaded.root.span);
            if problems.error_count() == 0 {
                match outcome {
                    Outcome::Created(pipeline) => compiled.pipeline = Some(*pipeline),
                    Outcome::NotCreated(reason) => compiled.not_created = Some(reason),
                }
            }
        }
    }
    compiled.diagnostics = problems.into_list();
    let masked = MaskedValues::new(context);
    for diagnostic in &mut compiled.diagnostics {
        masked.hide_in(diagnostic);
        diagnostic.narrow(&loaded.sources);
    }
    compiled.sources = loaded.sources;
    compiled
}
