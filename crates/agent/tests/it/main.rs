//! The real service on a socket, driven through the generated client.

mod checkout;
mod death;
mod ending;
mod harness;
mod jobs;
mod output;
