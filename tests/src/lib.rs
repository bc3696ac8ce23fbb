//! Test environment that the system and interoperability tests in `tests/` share.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test's helpers fail as its body does")]

pub mod bench;
pub mod machines;
pub mod process;
pub mod proxy;
pub mod vms;
