//! Defaults of the flags of `muster ci`, from the environment (`MUSTER_CI_<FLAG>`) and from the files that gitlab-ci-local keeps its
//! options in: `.gitlab-ci-local-env`, `~/.gitlab-ci-local/.env`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::{ArgAction, Command};

use super::read::whole_text;
use super::ui;
use super::variables::parse_file;

/// What stands before a flag's name in the environment.
const PREFIX: &str = "MUSTER_CI_";
/// Options of gitlab-ci-local that have another name here.
const OTHER_NAMES: [(&str, &str); 6] = [
    ("VARIABLE", "var"),
    ("VARIABLES_FILE", "var-file"),
    ("CONCURRENCY", "concurrent"),
    ("CWD", "directory"),
    ("PREVIEW", "preview"),
    ("LIST_ALL", "all"),
];

/// The command with the defaults that hold here, for the subcommand of `ci` that the arguments ask for: flags of one name may
/// take other values elsewhere.
pub(crate) fn with_defaults(command: Command, arguments: &[OsString]) -> Command {
    let files = of_files();
    command.mut_subcommand("ci", |ci| {
        let names: Vec<String> = ci.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        let asked = arguments.iter().skip(2).find_map(|word| names.iter().find(|name| *word == name.as_str()));
        match asked.cloned() {
            Some(name) => ci.mut_subcommand(name, |command| of_command(command, &files)),
            None => of_command(ci, &files),
        }
    })
}

fn of_command(command: Command, files: &BTreeMap<String, String>) -> Command {
    let flags = command.get_arguments().filter_map(|arg| Some((arg.get_id().clone(), arg.get_long()?.to_owned())));
    let flags: Vec<_> = flags.filter(|(_, long)| long != "help" && long != "version").collect();
    flags.into_iter().fold(command, |command, (id, long)| {
        let name = format!("{PREFIX}{}", long.to_uppercase().replace('-', "_"));
        let given = std::env::var(&name).ok().or_else(|| files.get(&long).cloned()).filter(|value| !value.is_empty());
        let Some(given) = given else { return command };
        command.mut_arg(id, |arg| {
            let is_list = matches!(arg.get_action(), ArgAction::Append);
            // The words live as long as the program, as those of the flags themselves do.
            let words: Vec<&'static str> = match is_list {
                true => given.lines().map(|line| &*line.to_owned().leak()).collect(),
                false => vec![given.clone().leak()],
            };
            // A value may be a secret, so help does not show it.
            let takes_value = arg.get_action().takes_values();
            arg.default_values(words).hide_default_value(takes_value)
        })
    })
}

/// The options of gitlab-ci-local's files, by the flags that they mean here.
fn of_files() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let home = std::env::home_dir().map(|home| home.join(".gitlab-ci-local/.env"));
    for path in home.into_iter().chain([Path::new(".gitlab-ci-local-env").to_owned()]) {
        let Ok(text) = whole_text(&path) else { continue };
        match parse_file(&path, &text) {
            Ok(options) => {
                for (name, value) in options {
                    let other =
                        OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, flag)| (*flag).to_owned());
                    found.insert(other.unwrap_or_else(|| name.to_lowercase().replace('_', "-")), value);
                }
            }
            Err(error) => ui::warning(&error.to_string()),
        }
    }
    found
}
