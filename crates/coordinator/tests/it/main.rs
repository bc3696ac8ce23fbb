//! Integration tests of the coordinator, one binary.

mod accept_timeout;
mod artifacts;
mod assignments;
mod c_bridges;
mod c_coordinator;
mod c_payload;
mod c_schedule;
mod c_variables;
mod clone;
mod from_yaml;
mod memory;
mod outbox;
mod repositories;
mod requests;
mod runner_contact;
mod schedule;
mod service;
mod store;
mod support;
