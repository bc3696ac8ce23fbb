//! Parses every keyword of the merged tree into a type, and reports all errors (docs/spec/pipeline-yaml.md, section 1).
//!
//! A parser takes a node, its path for messages, and the collector of problems. The keys of each part are listed in [`keywords`].

mod artifacts;
mod behavior;
pub(crate) mod cache;
pub(crate) mod defaults;
mod environment;
mod extras;
mod image;
pub(crate) mod job;
mod keywords;
pub(crate) mod needs;
pub(crate) mod only;
pub(crate) mod parallel;
pub(crate) mod parsing;
pub(crate) mod rules;
mod scripts;
pub(crate) mod size_budget;
mod top;
pub(crate) mod trigger;
pub(crate) mod variables;
pub(crate) mod workflow;

pub(crate) use top::{Config, FIRST_STAGE, LAST_STAGE, config};
