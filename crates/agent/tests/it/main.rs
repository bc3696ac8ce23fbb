//! The real service on a socket, driven through the generated client.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod artifacts;
mod caches;
mod checkout;
mod death;
mod delegation;
mod ending;
mod harness;
mod hostile_archives;
mod idle;
mod jobs;
mod masking;
mod output;
mod requests;
mod shells;
mod sources;
mod traps;
mod trees;
