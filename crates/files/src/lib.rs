//! Files, directories and sockets at paths that a job or another user may write.
//!
//! A job can put anything there: a FIFO without a writer, a link to a device, a file of a terabyte. Whatever it is becomes an
//! error of the caller that reads it, with the path in its text.
//!
//! - [`open`] and its variants open regular files only, and never wait. A symbolic link is followed only by [`open_chosen`].
//! - [`read_open`] stops at a limit that the caller names.
//! - [`read`], [`read_in`], [`read_tail`] and [`apart`] work on threads for blocking calls, and give up after [`READ_TIMEOUT`].
//! - [`private_directory`] creates a directory that only its owner can enter, and [`own_directory`] checks that no other user can
//!   enter or replace one.
//! - [`remove_tree`] removes a directory of any depth.
//! - [`listen`] binds a socket that no other user can connect to at any time.

mod directory;
mod regular;
mod remove;
mod socket;

pub use directory::{own_directory, private_directory};
pub use regular::{
    FileError, Limit, Problem, READ_TIMEOUT, apart, open, open_at, open_chosen, open_in, open_with, read, read_in,
    read_open, read_tail,
};
pub use remove::{remove_locked_tree, remove_tree};
pub use socket::listen;
