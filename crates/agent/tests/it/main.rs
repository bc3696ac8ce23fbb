//! The real service on a socket, driven through the generated client.

mod harness;
mod jobs;
