//! Tests of the configuration file on disk, and of the documentation about its keys.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its body does")]

mod disk;
mod docs;
