//! Compiles `.gitlab-ci.yml` into a checked job graph. Errors point at the line that causes them.
//!
//! ```text
//! text --yaml--> node tree --load--> merged tree --config--> checked entries --graph, seed--> Pipeline
//!                (positions)  (inputs, include,   (keywords,      (matrix, needs;
//!                              extends, !reference) default)       workflow, rules)
//! ```
//! The order is GitLab's (docs/spec/pipeline-yaml.md, section 2.1). All other input is in a [`context::Context`], or
//! comes from files that a [`context::Sources`] reads. The crate uses neither the clock nor random numbers.
//!
//! No input makes this crate panic or run without bound. As many errors of a configuration as possible are reported at once.

mod compile;
mod conditions;
mod config;
pub mod context;
pub mod diagnostic;
pub mod duration;
pub mod expand;
pub mod expression;
mod gaps;
pub mod glob;
mod graph;
pub mod layers;
pub mod limits;
pub mod load;
mod masked;
pub mod model;
pub mod node;
mod patterns;
mod preview;
pub mod ref_match;
pub mod regexp;
pub mod render;
mod seed;
pub mod slug;
pub mod source_map;
mod sub_span;
pub mod suggest;
pub mod yaml;

pub use compile::{Compiled, compile, compile_child};
pub use model::{NotCreated, NotCreatedReason};
pub use preview::preview;
