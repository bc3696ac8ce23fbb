//! Interoperability tests with gitlab-runner.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers fail as its body does")]

mod archives;
mod density;
mod extension;
mod gitlab_runner;
mod instance_executor;
