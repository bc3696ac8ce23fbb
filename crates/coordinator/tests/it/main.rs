//! Integration tests of the coordinator, one binary.

mod c_payload;
mod c_schedule;
mod c_variables;
mod from_yaml;
mod handouts;
mod schedule;
