//! `config.toml`: reads text into settings and reports all problems at once, and edits the file.
//!
//! ```text
//! text --toml_edit--> walk (schema) --> tree --checks--> problems
//!                                        |--> runners --> Settings (used by the manager)
//! file --edit::ConfigFile (lock, change, save)--> file
//! ```
//!
//! - [`schema`] lists all sections and keys as data. [`load`] and [`parse`] report every error as a problem.
//! - [`edit`] changes values and entries of a file. [`migrate`] rewrites `[runners.machine]`.
//! - [`codes`] numbers the kinds of problems, and `checks` finds them.
//!
//! Invariants:
//! - A [`Problem`] never contains a secret of the file, and its location always points into the text.
//! - No input causes a panic.
//! - A save leaves either the old file or the new one. Only a file that is itself a mount point is overwritten.

mod autoscaler;
mod cache;
mod checks;
pub mod codes;
mod custom;
mod docker;
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
mod ssh;
mod steps;
mod system_id;
mod text_file;
pub mod tree;
mod unknown;
mod walk;

pub use checks::EXECUTORS;
pub use codes::Severity;
pub use effective::{Effective, Origin, effective};
pub use facts::{FindPlugin, HostFacts, NoPlugin};
pub use from_file::{SettingsContext, runner_settings, settings};
pub use listen::{InvalidListenAddress, ListenAddress};
pub use load::{Config, Loaded, load, parse, parse_scaling, read_text};
pub use problem::Problem;
pub use runners::{Runner, base_url};
pub use source::ProblemLocation;
pub use system_id::system_id;
pub use text_file::MAX_FILE_BYTES;
pub use walk::has_secret;

/// Values of `log_format`.
pub const LOG_FORMATS: [&str; 3] = ["runner", "text", "json"];

#[cfg(test)]
mod mutation;
#[cfg(test)]
mod tests;
