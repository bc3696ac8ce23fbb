//! From the text of the root file to one merged tree (pipeline-yaml 2.1, steps 1 to 5).
//!
//! ```text
//! file --yaml--> header + body --interpolate--> body --include, depth first--> merged --extends--> --!reference--> tree
//! ```
//! Each file goes through the first three steps alone, with the inputs that its own include entry gives; then it is
//! merged over the files it includes. What comes out has no `include`, no header and no `!reference` any more; jobs keep
//! the `extends` they were written with, for [`Loaded::parents`] and for people.
//!
//! Invariant: errors do not end a load as long as something sensible is left to read, so that all are seen at once.

mod block;
mod body;
mod children;
mod entry;
mod extends;
mod header;
mod inputs;
mod interpolate;
mod loader;
mod merge;
mod read;
mod reference;
mod rules;
mod target;
mod variables;

use std::collections::BTreeMap;

use crate::context::{ChildSource, Context, Sources};
use crate::diagnostic::{Diagnostic, Severity};
use crate::gaps::Gaps;
use crate::limits::Limits;
use crate::node::{Node, SourceId, Span};
use crate::patterns::Patterns;
use crate::source_map::SourceMap;
pub use children::children;

/// Findings after which unknown names are not compared with all known ones any more, which costs their product.
const SUGGESTIONS: usize = 20;

/// The merged configuration and how it came about.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The merged tree; always a map, empty where nothing could be read. With errors, parts of it may be missing.
    pub root: Node,
    /// The texts that were read; the first is the root file.
    pub sources: SourceMap,
    /// Errors and warnings.
    pub diagnostics: Vec<Diagnostic>,
    /// `# @Description` comments by the name of the job they stand above.
    pub descriptions: BTreeMap<String, String>,
    /// The include entries in the order in which they were looked at.
    pub includes: Vec<IncludeRecord>,
    /// For every key with `extends`: its parents, in the order in which they were merged.
    pub parents: BTreeMap<String, Vec<Parent>>,
    /// The regular expressions so far.
    pub(crate) patterns: Patterns,
    /// What could not be had.
    pub(crate) gaps: Gaps,
}

impl Loaded {
    /// Whether something is wrong, so that no pipeline can be made.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

/// What became of one include entry (one file of it, where it names several).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncludeRecord {
    /// What was asked for: `local ci/build.yml`.
    pub what: String,
    /// The entry.
    pub included_at: Span,
    /// 1 for an entry of the root file, 2 for one in a file included by it, ...
    pub depth: usize,
    /// What became of it.
    pub outcome: IncludeOutcome,
}

/// What became of an include entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncludeOutcome {
    /// Its file was merged; keys that come from it have spans in this source.
    Merged(SourceId),
    /// Its rules kept it out.
    KeptOutByRules,
    /// It could not be read; there is a diagnostic.
    Failed,
    /// It is not on this machine, and was left out on purpose; there is a warning.
    LeftOut,
}

/// A parent that `extends` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// The name.
    pub name: String,
    /// Where `extends` names it.
    pub named_at: Span,
}

/// Loads the configuration that starts with the text of the root file.
#[must_use]
pub fn load(root_text: &[u8], context: &Context, sources: &dyn Sources) -> Loaded {
    loader::Loader::new(context, sources, Limits::default()).root(root_text)
}

/// Loads a child pipeline from one to three texts or include entries (pipeline-yaml 1.9), merged in order.
#[must_use]
pub fn load_child(entries: &[ChildSource], context: &Context, sources: &dyn Sources) -> Loaded {
    loader::Loader::new(context, sources, Limits::default()).child(entries)
}
