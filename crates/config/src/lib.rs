//! `config.toml`: from text to settings, with everything that is wrong with it at once; and changes to the file.
//!
//! ```text
//! text --toml_edit--> walk (schema) --> tree --checks--> problems
//!                                        |--> runners --> Settings (what the manager works by)
//! file --edit::ConfigFile (lock, change, save)--> file
//! ```
//!
//! - [`schema`] is the list of all sections and keys, as data. [`load`] and [`parse`] never fail otherwise than by problems.
//! - [`edit`] changes one thing of a file and leaves every other byte alone.
//! - [`migrate`] writes `[runners.machine]` anew.
//! - [`codes`] numbers the mistakes; `checks` finds them.
//!
//! Invariants: no secret of the file is in any [`Problem`]; a place always points into the text; no input panics; a save
//! leaves either the old file or the new one, also when the disk is full or the process is killed.

mod autoscaler;
mod checks;
pub mod codes;
pub mod edit;
mod effective;
mod facts;
mod from_file;
mod links;
mod listen;
mod load;
mod machine;
pub mod migrate;
mod problem;
mod runners;
pub mod runtime;
mod scaling;
pub mod schema;
pub mod settings;
mod source;
mod system_id;
pub mod tree;
mod unknown;
mod walk;

pub use checks::EXECUTORS;
pub use codes::Severity;
pub use effective::{Effective, Origin, effective};
pub use facts::{Facts, FindPlugin, NoPlugin};
pub use from_file::{Surroundings, runner_settings, settings};
pub use listen::{ListenAddress, NotAnAddress};
pub use load::{Config, FILE_SIZE_MAX, Loaded, load, parse, parse_scaling, text_of};
pub use problem::Problem;
pub use runners::{Runner, base_url};
pub use source::Place;
pub use system_id::system_id;
pub use walk::has_secret;

/// Values of `log_format`.
pub const LOG_FORMATS: [&str; 3] = ["runner", "text", "json"];

#[cfg(test)]
mod mutation;
#[cfg(test)]
mod tests;
