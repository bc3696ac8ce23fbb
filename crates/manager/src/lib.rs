//! The request loop, and one job's life from request to result.

pub mod lower;
