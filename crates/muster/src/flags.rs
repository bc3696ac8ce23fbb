//! Command-line parsing as gitlab-runner does it, where Go's flags differ from clap's.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Command;
use clap::builder::{OsStringValueParser, TypedValueParser};
use muster_job::GoDuration;

/// Rewrites the arguments from index `first` on, so that clap parses them as gitlab-runner does.
///
/// `-name` becomes `--name`, and `--n` becomes `-n`. After a boolean flag, the word `true` or `false` is dropped with a
/// warning. After a flag that takes a value, the next word is the value, even if it begins with a dash.
pub(crate) fn rewrite_go_flags(root: &Command, arguments: &[OsString], first: usize) -> Vec<OsString> {
    let mut rewritten: Vec<OsString> = arguments.iter().take(first).cloned().collect();
    let mut rest = arguments.iter().skip(first);
    let mut command = root;
    let mut after_switch = None;
    while let Some(argument) = rest.next() {
        let Some(text) = argument.to_str() else {
            rewritten.push(argument.clone());
            after_switch = None;
            continue;
        };
        if text == "--" {
            rewritten.push(argument.clone());
            break;
        }
        if let Some(flag) = after_switch.take()
            && matches!(text.to_ascii_lowercase().as_str(), "true" | "false")
        {
            anstream::eprintln!(
                "WARNING: `{flag} {text}` does not set the flag to {text}; write `{flag}={text}`. The word `{text}` is ignored."
            );
            continue;
        }
        let word = respelled(text);
        match flag_value(root, command, &word) {
            Some(FlagValue::NextWord) => match rest.next() {
                Some(value) => rewritten.extend(with_value(word.into(), value)),
                None => rewritten.push(word.into()),
            },
            Some(FlagValue::InFlag) => {
                after_switch = Some(word.clone());
                rewritten.push(word.into());
            }
            None => {
                let subcommand = command.find_subcommand(&word);
                rewritten.push(word.into());
                if subcommand.is_none() && !text.starts_with('-') && takes_command(command) {
                    break;
                }
                command = subcommand.unwrap_or(command);
            }
        }
    }
    rewritten.extend(rest.cloned());
    rewritten
}

/// Returns whether the positional arguments of `command` are the command line of another program, whose flags must not
/// be rewritten.
fn takes_command(command: &Command) -> bool {
    command.get_positionals().any(clap::Arg::is_trailing_var_arg_set)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlagValue {
    /// The flag has no value unless it is written `--flag=VALUE`.
    InFlag,
    /// The next word is the value.
    NextWord,
}

/// Returns where the flag `word` has its value, or `None` for an unknown flag or a flag with `=`.
fn flag_value(root: &Command, command: &Command, word: &str) -> Option<FlagValue> {
    let dashes = word.len() - word.trim_start_matches('-').len();
    let name = &word[dashes..];
    let global_flags = root.get_arguments().filter(|argument| argument.is_global_set());
    let argument = command.get_arguments().chain(global_flags).find(|argument| match dashes {
        1 => argument.get_short().is_some_and(|short| name.chars().eq([short])),
        2 => argument.get_long_and_visible_aliases().is_some_and(|names| names.contains(&name)),
        _ => false,
    })?;
    let values = argument.get_num_args().map_or(argument.get_action().takes_values(), |range| range.min_values() > 0);
    Some(if values { FlagValue::NextWord } else { FlagValue::InFlag })
}

/// Joins the flag and its value with `=` if clap would take the value for a flag.
fn with_value(flag: OsString, value: &OsString) -> Vec<OsString> {
    if !value.as_encoded_bytes().starts_with(b"-") {
        return vec![flag, value.clone()];
    }
    let mut joined = flag;
    joined.push("=");
    joined.push(value);
    vec![joined]
}

fn respelled(argument: &str) -> String {
    let dashes = argument.len() - argument.trim_start_matches('-').len();
    let name = argument[dashes..].split('=').next().unwrap_or_default();
    let starts_as_a_name = name.starts_with(|first: char| first.is_ascii_alphabetic());
    match (dashes, name.len()) {
        (1, 2..) if starts_as_a_name => format!("-{argument}"),
        (2, 1) if starts_as_a_name => argument[1..].to_owned(),
        _ => argument.to_owned(),
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FlagError {
    #[error("not a valid boolean; write --flag=true or --flag=false")]
    Bool,
    #[error("not an integer")]
    Int,
    #[error("expected one of {0}")]
    Choice(String),
    #[error("not a valid duration; write it as 300ms, 10s or 1h30m")]
    Duration,
}

/// Parses a boolean as Go does. The empty text, as from an empty environment variable, is false.
pub(crate) fn go_bool(text: &str) -> Result<bool, FlagError> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(FlagError::Bool),
    }
}

/// Parses a path, which may be empty. Use [`non_empty`] on the result.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

pub(crate) fn non_empty(path: &Option<PathBuf>) -> Option<PathBuf> {
    path.clone().filter(|path| !path.as_os_str().is_empty())
}

/// Parses an integer. The empty text, as from an empty environment variable, is 0.
pub(crate) fn go_int(text: &str) -> Result<i64, FlagError> {
    if text.is_empty() { Ok(0) } else { text.trim().parse().map_err(|_| FlagError::Int) }
}

/// Returns the choice that matches the text, ignoring case. Returns `None` for the empty text, as from an empty
/// environment variable.
pub(crate) fn optional_choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<Option<T>, FlagError> {
    if text.is_empty() {
        return Ok(None);
    }
    let found = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    let names = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.map(|(_, value)| Some(*value)).ok_or_else(|| FlagError::Choice(names()))
}

pub(crate) fn go_duration(text: &str) -> Result<Duration, FlagError> {
    match GoDuration::parse(text) {
        Some(GoDuration::NonNegative(duration)) => Ok(duration),
        _ => Err(FlagError::Duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Arg;

    #[test]
    fn go_flags_are_rewritten_for_clap() {
        let command = Command::new("x").subcommand(
            Command::new("sub")
                .arg(Arg::new("on").long("on").short('o').num_args(0..=1).require_equals(true))
                .arg(Arg::new("name").long("name"))
                .arg(Arg::new("token").long("token").short('t')),
        );
        let rewrite = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let rewritten = rewrite_go_flags(&command, &words, 1);
            rewritten.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(rewrite(&["x", "-url=http://a", "--n", "-n", "--t=1"]), "x --url=http://a -n -n -t=1");
        assert_eq!(rewrite(&["x", "-limit", "-1", "-", "--", "-keep"]), "x --limit -1 - -- -keep");
        assert_eq!(
            rewrite(&["x", "sub", "--on", "false", "-o", "TRUE", "--name", "true"]),
            "x sub --on -o --name true"
        );
        assert_eq!(rewrite(&["x", "sub", "-name", "-abc", "-o", "--name", "--"]), "x sub --name=-abc -o --name=--");
        assert_eq!(rewrite(&["x", "sub", "-t", "--n", "-name", "sub", "-on"]), "x sub -t=--n --name sub --on");
        assert_eq!(rewrite(&["x", "sub", "--name"]), "x sub --name");
    }
}
