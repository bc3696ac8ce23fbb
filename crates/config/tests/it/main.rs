//! Tests of the configuration file on disk, and of the documentation about its keys.
#![expect(clippy::unwrap_used, reason = "helper functions of tests may panic, just as tests may")]

mod disk;
mod docs;
