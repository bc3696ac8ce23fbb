//! Files, directories and sockets at paths that a job or another user may write.
//!
//! A job can create a FIFO, a link to a device, or a file of a terabyte there. Opening or reading such a file fails
//! with an error that names the path.
//!
//! - [`open`] and its variants open only regular files, without waiting. Only [`open_following_links`] follows symbolic
//!   links.
//! - [`read`], [`read_in`], [`read_tail`] and [`run_blocking`] use threads, and fail after [`READ_TIMEOUT`].

mod directory;
mod regular;
mod remove;
mod replace;
mod socket;
mod usage;

pub use directory::{own_directory, private_directory};
pub use regular::{
    FileError, Limit, Problem, READ_TIMEOUT, open, open_at, open_following_links, open_in, open_with, read, read_in,
    read_open, read_tail, run_blocking,
};
pub use remove::{remove_locked_tree, remove_most_of_tree, remove_tree};
pub use replace::replace;
pub use socket::listen;
pub use usage::{DiskUsage, Unmeasured};
