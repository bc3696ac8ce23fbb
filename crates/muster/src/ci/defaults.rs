//! Defaults for the flags of `muster ci`, from the environment (`MUSTER_CI_<FLAG>`) and from the option files of
//! gitlab-ci-local: `.gitlab-ci-local-env` and `~/.gitlab-ci-local/.env`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::{ArgAction, Command};

use super::read::read_text_file;
use super::ui;
use super::variables::parse_file;

const PREFIX: &str = "MUSTER_CI_";
/// Options of gitlab-ci-local whose flags have other names here.
const RENAMED_OPTIONS: [(&str, &str); 5] = [
    ("VARIABLE", "var"),
    ("VARIABLES_FILE", "var-file"),
    ("CONCURRENCY", "concurrent"),
    ("CWD", "directory"),
    ("LIST_ALL", "all"),
];

/// Adds defaults for the flags of the subcommand of `muster ci` that `arguments` names, or else of `muster ci` itself.
///
/// Other subcommands get no defaults, because a flag of the same name may take other values there.
pub(crate) fn with_defaults(command: Command, arguments: &[OsString]) -> Command {
    let files = read_option_files();
    command.mut_subcommand("ci", |ci| {
        let names: Vec<String> = ci.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        let selected = arguments.iter().skip(2).find_map(|word| names.iter().find(|name| *word == name.as_str()));
        match selected.cloned() {
            Some(name) => ci.mut_subcommand(name, |command| add_defaults(command, &files)),
            None => add_defaults(ci, &files),
        }
    })
}

fn add_defaults(command: Command, files: &BTreeMap<String, String>) -> Command {
    let flags = command.get_arguments().filter_map(|arg| Some((arg.get_id().clone(), arg.get_long()?.to_owned())));
    let flags: Vec<_> = flags.filter(|(_, long)| long != "help" && long != "version").collect();
    flags.into_iter().fold(command, |command, (id, long)| {
        let name = format!("{PREFIX}{}", long.to_uppercase().replace('-', "_"));
        let value = std::env::var(&name).ok().or_else(|| files.get(&long).cloned()).filter(|text| !text.is_empty());
        let Some(value) = value else { return command };
        command.mut_arg(id, |arg| {
            let is_list = matches!(arg.get_action(), ArgAction::Append);
            // The text leaks once per flag: clap needs the defaults until the program ends.
            let defaults: Vec<&'static str> = match is_list {
                true => value.lines().map(|line| &*line.to_owned().leak()).collect(),
                false => vec![value.clone().leak()],
            };
            // A value may be a secret, so help does not show it.
            let takes_value = arg.get_action().takes_values();
            arg.default_values(defaults).hide_default_value(takes_value)
        })
    })
}

/// Returns the options in the files of gitlab-ci-local, by the name of the flag of `muster ci`.
fn read_option_files() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let home = std::env::home_dir().map(|home| home.join(".gitlab-ci-local/.env"));
    for path in home.into_iter().chain([Path::new(".gitlab-ci-local-env").to_owned()]) {
        let Ok(text) = read_text_file(&path) else { continue };
        match parse_file(&path, &text) {
            Ok(options) => {
                for (name, value) in options {
                    let renamed =
                        RENAMED_OPTIONS.iter().find(|(option, _)| *option == name).map(|(_, flag)| (*flag).to_owned());
                    found.insert(renamed.unwrap_or_else(|| name.to_lowercase().replace('_', "-")), value);
                }
            }
            Err(error) => ui::warning(&error.to_string()),
        }
    }
    found
}
