//! Integration tests of the coordinator, one binary.

mod c_schedule;
mod schedule;
