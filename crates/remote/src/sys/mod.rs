//! Differences between Unix and Windows. Both modules define:
//!
//! - [`ProcessGroup`]: a child process and its descendants;
//! - [`create_private`]: creates or truncates a file. On Unix, only this user can read a new file.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::ProcessGroup;
#[cfg(unix)]
pub(crate) use unix::create_private;
#[cfg(windows)]
pub use windows::ProcessGroup;
#[cfg(windows)]
pub(crate) use windows::create_private;
