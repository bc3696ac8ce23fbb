//! `migrate-machine`: the configuration without Docker Machine (R026).
//!
//! Prints the whole new file on standard output and what there is to do on standard error; writes nothing. Exit code 1 where
//! there is nothing to migrate, or the configuration has errors.

use std::io::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;
use muster_config::{self as config, HostFacts, migrate};

use crate::config_file::ConfigArg;

/// Flags of the command.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: muster runner migrate-machine --config old.toml > new.toml\n\nThe output holds the tokens of \
                        the file. Credentials among MachineOptions are written only with `--to machines`."
)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// What takes the machines' place.
    #[arg(long, value_enum, default_value_t = To::Group)]
    to: To,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum To {
    /// The group of the driver's cloud, by its plugin: amazonec2, google, azure; other drivers as with `machines`.
    Group,
    /// The same machines, by the plugin `docker-machine`.
    Machines,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> ExitCode {
    let path = args.config.path();
    let text = match config::text_of(&path) {
        Ok(text) => text,
        Err(problem) => {
            anstream::eprintln!("{}", problem.render(&path).trim_end());
            return ExitCode::FAILURE;
        }
    };
    let way = match args.to {
        To::Group => migrate::MigrationTarget::Group,
        To::Machines => migrate::MigrationTarget::Machines,
    };
    match migrate::migrate(&text, &HostFacts::of(&path), way) {
        Ok(migration) => {
            for (name, notes) in &migration.entries {
                notes.iter().for_each(|note| anstream::eprintln!("{name}: {note}"));
            }
            // Half a configuration must not look like a whole one.
            match std::io::stdout().lock().write_all(migration.text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    anstream::eprintln!("cannot write the new configuration: {error}");
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
