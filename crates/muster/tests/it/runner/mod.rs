//! The commands of `gitlab-runner`, which are also the commands of `muster runner`.

mod docker_machine;
mod entries;
mod helper_commands;
mod program_names;
mod register;
mod run;
mod server;
mod service;
mod support;
mod transfer;
mod verify_config;
mod wrapper;
