//! `migrate-machine`: converts a configuration with Docker Machine to one with an autoscaler.
//!
//! Prints the new file to standard output, and remaining tasks to standard error.

use std::io::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;
use muster_config::{self as config, HostFacts, migrate};

use crate::config_file::ConfigArg;

/// Arguments of `muster runner migrate-machine`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: muster runner migrate-machine --config old.toml > new.toml\n\nThe output contains the tokens of \
                                                the file. It contains credentials of MachineOptions only if it still uses docker-machine."
)]
pub(crate) struct MigrateMachineArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Replacement for Docker Machine.
    #[arg(long, value_enum, default_value_t = MachineReplacement::Group)]
    to: MachineReplacement,
}

/// Values of `--to`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum MachineReplacement {
    /// An instance group in the cloud of amazonec2, google or azure. Same as `machines` for other drivers.
    Group,
    /// The same machines, with the plugin `docker-machine`.
    Machines,
}

pub(crate) fn run(args: &MigrateMachineArgs) -> ExitCode {
    let path = args.config.path();
    let text = match config::read_text(&path) {
        Ok(text) => text,
        Err(problem) => {
            anstream::eprintln!("{}", problem.render(&path).trim_end());
            return ExitCode::FAILURE;
        }
    };
    let target = match args.to {
        MachineReplacement::Group => migrate::MigrationTarget::Group,
        MachineReplacement::Machines => migrate::MigrationTarget::Machines,
    };
    match migrate::migrate(&text, &HostFacts::of(&path), target) {
        Ok(migration) => {
            for (name, notes) in &migration.entries {
                notes.iter().for_each(|note| anstream::eprintln!("{name}: {note}"));
            }
            // `println!` would panic on a write error. The user must not use an incomplete configuration.
            match std::io::stdout().lock().write_all(migration.text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    anstream::eprintln!("failed to write the new configuration: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        Err(error) => {
            if let migrate::MigrateError::Invalid(loaded) = &error {
                loaded.problems.iter().for_each(|problem| anstream::eprintln!("{}", problem.render(&path)));
            }
            anstream::eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
