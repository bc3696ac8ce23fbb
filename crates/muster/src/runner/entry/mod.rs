//! Flags for the keys of a `[[runners]]` entry, with the names of gitlab-runner. `register` and `run-single` have these
//! flags.

mod flags;
mod template;
mod values;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches};
use toml_edit::Table;

pub(super) use template::{TemplateError, merge, read_entries, read_template};

/// Values of the flags. An environment variable replaces a missing flag.
#[derive(Debug, Clone, Default)]
pub(crate) struct EntryFlags {
    pub(super) table: Table,
}

#[cfg(test)]
pub(crate) fn is_entry_flag(name: &str) -> bool {
    flags::all().iter().any(|flag| flag.long == name)
}

impl clap::Args for EntryFlags {
    fn augment_args(command: Command) -> Command {
        flags::all().iter().fold(command, |command, flag| command.arg(flag.argument()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for EntryFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut table = Table::new();
        for flag in flags::all() {
            let flag_values = matches.get_many::<String>(&flag.long).map(|values| values.cloned().collect::<Vec<_>>());
            let (values, source) = match (flag_values, flag.environment()) {
                (Some(values), _) => (values, format!("--{}", flag.long)),
                (None, Some((name, value))) => (vec![value], name.to_owned()),
                (None, None) => continue,
            };
            match values::item(flag.key.kind, flag.parsing, &values) {
                Ok(Some(item)) => values::insert(&mut table, &flag.tables, flag.key.name, item),
                Ok(None) => {}
                Err(error) => {
                    let message = format!("invalid value for {source}: {error}\n");
                    return Err(clap::Error::raw(ErrorKind::ValueValidation, message));
                }
            }
        }
        Ok(Self { table })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
