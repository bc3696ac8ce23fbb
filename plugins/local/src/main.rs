//! `fleeting-plugin-local`: instances on this host. Each is a process with an SSH server of its own, a directory of its
//! own, and, where the system permits it, process and mount namespaces of its own.
//!
//! It is also a cloud for demonstrations and tests: boot time, API rate, failures, short grants and losses are settings.

mod clouds_mood;
mod config;
mod instance;
mod provider;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The plugin starts itself again as each of its instances.
    if std::env::args().nth(1).as_deref() == Some(instance::WORD) {
        return instance::main();
    }
    muster_fleeting::sdk::main::<provider::Local>()
}
