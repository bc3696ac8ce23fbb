//! Differences between Unix and Windows.

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
