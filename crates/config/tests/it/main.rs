//! Tests of the configuration on disk, and of the page about its keys.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its body does")]

mod disk;
mod docs;
