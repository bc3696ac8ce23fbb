//! How gitlab-runner reads its command line, where that differs from what is usual in Rust (runner-config 2.1).

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Command;
use clap::builder::{OsStringValueParser, TypedValueParser};
use muster_job::GoDuration;

/// The arguments from `first` on, as clap reads them: `-name` is `--name` (a single dash never joins short flags), and
/// `--n` is `-n`. After a flag that is true or false, a word `true` or `false` is not its value: it is dropped with a
/// warning, and what follows is read on. The word after a flag that takes a value is its value, also with a dash.
pub(crate) fn as_gitlab_runner_reads(root: &Command, arguments: &[OsString], first: usize) -> Vec<OsString> {
    let mut read: Vec<OsString> = arguments.iter().take(first).cloned().collect();
    let mut rest = arguments.iter().skip(first);
    let mut command = root;
    let mut after_switch = None;
    while let Some(argument) = rest.next() {
        let Some(text) = argument.to_str() else {
            read.push(argument.clone());
            after_switch = None;
            continue;
        };
        if text == "--" {
            read.push(argument.clone());
            break;
        }
        if let Some(flag) = after_switch.take()
            && matches!(text.to_ascii_lowercase().as_str(), "true" | "false")
        {
            anstream::eprintln!(
                "WARNING: `{flag} {text}` does not say {text}: write `{flag}={text}`. The word `{text}` is ignored."
            );
            continue;
        }
        let word = respelled(text);
        match takes(root, command, &word) {
            Some(Takes::Value) => match rest.next() {
                Some(value) => read.extend(with_value(word.into(), value)),
                None => read.push(word.into()),
            },
            Some(Takes::Nothing) => {
                after_switch = Some(word.clone());
                read.push(word.into());
            }
            None => {
                command = command.find_subcommand(&word).unwrap_or(command);
                read.push(word.into());
            }
        }
    }
    read.extend(rest.cloned());
    read
}

/// How a flag has its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// None, or one after `=`.
    Nothing,
    /// One after `=`, or else the next word, whatever that is.
    Value,
}

/// What the flag `word` of `command`, or of all commands, takes; none where it is no flag without a value.
fn takes(root: &Command, command: &Command, word: &str) -> Option<Takes> {
    let dashes = word.len() - word.trim_start_matches('-').len();
    let name = &word[dashes..];
    let of_all = root.get_arguments().filter(|argument| argument.is_global_set());
    let argument = command.get_arguments().chain(of_all).find(|argument| match dashes {
        1 => argument.get_short().is_some_and(|short| name.chars().eq([short])),
        2 => argument.get_long_and_visible_aliases().is_some_and(|names| names.contains(&name)),
        _ => false,
    })?;
    let values = argument.get_num_args().map_or(argument.get_action().takes_values(), |range| range.min_values() > 0);
    Some(if values { Takes::Value } else { Takes::Nothing })
}

/// The flag with the word after it as its value; joined where clap would take the word for a flag.
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

/// A truth value as Go reads it; an empty variable of the environment is false.
pub(crate) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("neither true nor false; write --flag=true or --flag=false".to_owned()),
    }
}

/// A path; an empty variable of the environment is an empty path, which is none.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// A path that is one.
pub(crate) fn filled(path: &Option<PathBuf>) -> Option<PathBuf> {
    path.clone().filter(|path| !path.as_os_str().is_empty())
}

/// A whole number; an empty variable of the environment is 0.
pub(crate) fn go_int(text: &str) -> Result<i64, String> {
    if text.is_empty() { Ok(0) } else { text.trim().parse().map_err(|_| "this is no whole number".to_owned()) }
}

/// One of the words, by what it stands for; an empty text, as of an empty variable, is none.
pub(crate) fn optional<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<Option<T>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
    let names = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    found.map(|(_, meaning)| Some(*meaning)).ok_or_else(|| format!("not one of {}", names()))
}

/// A duration in Go's words, not negative.
pub(crate) fn go_duration(text: &str) -> Result<Duration, String> {
    match GoDuration::parse(text) {
        Some(GoDuration::Positive(duration)) => Ok(duration),
        _ => Err("no duration; write it like 300ms, 10s or 1h30m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Arg;

    #[test]
    fn single_dashes_and_short_names_are_read_as_go_does() {
        let command = Command::new("x").subcommand(
            Command::new("sub")
                .arg(Arg::new("on").long("on").short('o').num_args(0..=1).require_equals(true))
                .arg(Arg::new("name").long("name"))
                .arg(Arg::new("token").long("token").short('t')),
        );
        let read = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let read = as_gitlab_runner_reads(&command, &words, 1);
            read.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(read(&["x", "-url=http://a", "--n", "-n", "--t=1"]), "x --url=http://a -n -n -t=1");
        assert_eq!(read(&["x", "-limit", "-1", "-", "--", "-keep"]), "x --limit -1 - -- -keep");
        assert_eq!(read(&["x", "sub", "--on", "false", "-o", "TRUE", "--name", "true"]), "x sub --on -o --name true");
        assert_eq!(read(&["x", "sub", "-name", "-abc", "-o", "--name", "--"]), "x sub --name=-abc -o --name=--");
        assert_eq!(read(&["x", "sub", "-t", "--n", "-name", "sub", "-on"]), "x sub -t=--n --name sub --on");
        assert_eq!(read(&["x", "sub", "--name"]), "x sub --name");
    }
}
