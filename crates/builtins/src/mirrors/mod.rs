//! Files of mirrors, the views of jobs, and the agent's memory of them. [`crate::git_mirror`] fills them.

mod directory;
mod memory;
mod refspecs;
mod view;

pub(crate) use directory::{COMMAND_PREFIX, Mirror};
pub(crate) use memory::{Key, Mirrors, Refs};
pub(crate) use refspecs::{Refspec, parse_refspecs, read_refs, sources};
pub(crate) use view::View;
