//! The commands of `gitlab-runner`, by both of their names.

mod names;
mod service;
mod small;
mod support;
mod verify_config;
