//! The commands of `gitlab-runner`, under both of their names.

mod entries;
mod machine;
mod names;
mod register;
mod run;
mod server;
mod service;
mod small;
mod support;
mod transfer;
mod verify_config;
mod wrapper;
