//! Tests that Muster has every command and flag of gitlab-runner, except for intended differences.

use std::collections::BTreeSet;

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

const UPSTREAM_COMMANDS: &str = include_str!("upstream_commands.txt");

/// Command, flag (empty for the whole command), and reason.
const INTENTIONAL_DIFFERENCES: [(&str, &str, &str); 7] = [
    ("exec", "", "removed in 17.0; `muster ci` runs pipelines"),
    ("verify", "url", "no environment variable since 17.0, so that a variable for another purpose selects nothing"),
    ("verify", "u", "same as --url"),
    ("verify", "token", "same as --url"),
    ("verify", "t", "same as --url"),
    ("verify", "tls-*", "same as --url"),
    (
        "proxy-exec",
        "",
        "a command for the helper image; with the key `proxy_exec`, the agent masks the values that jobs add",
    ),
];

fn difference_index(command: &str, flag: &str) -> Option<usize> {
    let matches =
        |pattern: &str| pattern == flag || pattern.strip_suffix('*').is_some_and(|start| flag.starts_with(start));
    INTENTIONAL_DIFFERENCES.iter().position(|(name, pattern, _)| *name == command && matches(pattern))
}

fn find<'a>(command: &'a Command, flag: &str) -> Option<&'a Arg> {
    let short = flag.chars().next().filter(|_| flag.len() == 1);
    command.get_arguments().find(|argument| match short {
        Some(short) => argument.get_short() == Some(short),
        None => argument.get_long_and_visible_aliases().is_some_and(|names| names.contains(&flag)),
    })
}

/// Returns how Muster's command line differs from a line of [`UPSTREAM_COMMANDS`], or `None` if it does not differ.
fn check(root: &Command, line: &str) -> Option<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let name = words.first().copied().unwrap_or_default();
    let command = if name == "-" { Some(root) } else { root.find_subcommand(name) };
    let Some(command) = command else { return Some(format!("{line}: Muster has no such command")) };
    let [_, flag, env, form] = words[..] else { return None };
    let Some(argument) = find(command, flag) else { return Some(format!("{line}: Muster has no such flag")) };
    let muster_env = argument.get_env().map_or("-".into(), |name| name.to_string_lossy().into_owned());
    let takes_value = argument.get_action().takes_values();
    let bare = !takes_value || argument.get_num_args().is_some_and(|range| range.min_values() == 0);
    let muster_form = if bare { "bare" } else { "value" };
    (muster_env != env || muster_form != form).then(|| format!("{line}: in Muster it is {muster_env} {muster_form}"))
}

#[test]
fn every_gitlab_runner_flag_exists_or_differs_intentionally() {
    let mut root = Cli::command();
    root.build();
    let (mut mismatches, mut used) = (Vec::new(), BTreeSet::new());
    for line in UPSTREAM_COMMANDS.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (command, flag) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match (check(&root, line), difference_index(command, flag)) {
            (Some(_), Some(index)) => drop(used.insert(index)),
            (Some(problem), None) => mismatches.push(problem),
            (None, Some(index)) => {
                mismatches
                    .push(format!("{line}: it exists, so remove the difference {:?}", INTENTIONAL_DIFFERENCES[index]));
            }
            (None, None) => {}
        }
    }
    let unused = INTENTIONAL_DIFFERENCES.iter().enumerate().filter(|(index, _)| !used.contains(index));
    mismatches
        .extend(unused.map(|(_, difference)| format!("the difference {difference:?} no longer exists, so remove it")));
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

#[test]
fn every_command_is_in_the_reference() {
    let reference = include_str!("../../../../docs/reference/runner-commands.md");
    let root = Cli::command();
    let missing: Vec<&str> = root
        .get_subcommands()
        .map(Command::get_name)
        .filter(|name| !reference.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "docs/reference/runner-commands.md does not name {missing:?}");
}
