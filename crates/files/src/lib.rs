//! Files, directories and sockets at paths that a job or another user may write.
//!
//! A job can create any kind of file at such a path: a FIFO without a writer, a symbolic link to a device, or a file of a terabyte.
//! Opening or reading such a file fails with an error that names the path.
//!
//! - [`open`] and its variants open regular files only, and never wait for the writer of a FIFO. A symbolic link is followed only by
//!   [`open_following_links`].
//! - [`read_open`] reads at most as much as the caller permits.
//! - [`read`], [`read_in`], [`read_tail`] and [`run_blocking`] use threads for blocking calls, and fail after [`READ_TIMEOUT`].
//! - [`private_directory`] creates a directory that only its owner can enter, and [`own_directory`] checks that no other user can
//!   enter or replace a directory.
//! - [`replace`] writes a whole file, which no reader ever finds incomplete.
//! - [`remove_tree`] removes a directory of any depth.
//! - [`DiskUsage`] measures the disk space that a directory uses, whatever the directory contains.
//! - [`listen`] binds a socket that no other user can connect to at any time.

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
