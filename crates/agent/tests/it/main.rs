//! Tests of the service on a real socket, through the generated client.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test panics if it fails")]

mod artifacts;
mod caches;
mod callable_steps;
mod checkout;
mod chunk_caches;
mod conformance;
mod debugger;
mod delegation;
mod disk_limits;
mod git_mirrors;
mod git_server;
mod harness;
mod host_services;
mod hostile_archives;
mod idle;
mod job_end;
mod jobs;
mod killed_agent;
mod masking;
mod operator_steps;
mod output;
mod own_keys;
mod records;
mod remote_steps;
mod replaced_steps;
mod requests;
mod script_legacy;
mod shells;
mod sources;
mod special_files;
mod step_groups;
mod users;
mod without_git;
