//! Integration tests of the coordinator, one binary.

mod artifacts;
mod c_bridges;
mod c_payload;
mod c_schedule;
mod c_variables;
mod c_world;
mod clone;
mod contact;
mod from_yaml;
mod handouts;
mod leases;
mod memory;
mod outbox;
mod repositories;
mod requests;
mod schedule;
mod service;
mod store;
mod support;
