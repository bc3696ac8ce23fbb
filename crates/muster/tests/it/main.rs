//! Tests of the executable itself.

mod manager;
