//! Interoperability tests with gitlab-runner, with plugins, and with the engines and machines of other programs.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests may panic")]

mod archives;
mod density;
mod docker_autoscaler;
mod docker_machine;
mod extension;
mod gitlab_runner;
mod instance_executor;
