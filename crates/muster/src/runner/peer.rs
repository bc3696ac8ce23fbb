//! Each command and flag of gitlab-runner is one of ours, or the reason why it is not stands here.

use std::collections::BTreeSet;

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

const PEER: &str = include_str!("peer_commands.txt");

/// What differs on purpose: command, flag (empty for all of it), and why.
const REASONS: [(&str, &str, &str); 8] = [
    ("exec", "", "removed in 17.0; `muster ci` runs pipelines"),
    ("verify", "url", "no variables since 17.0: one that is set for something else selects nothing"),
    ("verify", "u", "as --url"),
    ("verify", "token", "as --url"),
    ("verify", "t", "as --url"),
    ("verify", "tls-*", "as --url"),
    ("steps", "", "the agent serves steps by itself: `muster agent serve`"),
    ("proxy-exec", "", "the key `proxy_exec` is not supported"),
];

fn reason(command: &str, flag: &str) -> Option<&'static str> {
    let fits = |own: &str| own == flag || own.strip_suffix('*').is_some_and(|start| flag.starts_with(start));
    let mut reasons = REASONS.iter().filter(|(name, own, _)| *name == command && fits(own));
    reasons.next().map(|(_, _, reason)| *reason)
}

fn find<'a>(command: &'a Command, flag: &str) -> Option<&'a Arg> {
    let short = flag.chars().next().filter(|_| flag.len() == 1);
    command.get_arguments().find(|argument| match short {
        Some(short) => argument.get_short() == Some(short),
        None => argument.get_long_and_visible_aliases().is_some_and(|names| names.contains(&flag)),
    })
}

/// What is wrong with one line of the list.
fn check(root: &Command, line: &str) -> Option<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let name = words.first().copied().unwrap_or_default();
    let command = if name == "-" { Some(root) } else { root.find_subcommand(name) };
    let Some(command) = command else { return Some(format!("{line}: there is no such command")) };
    let [_, flag, env, form] = words[..] else { return None };
    let Some(argument) = find(command, flag) else { return Some(format!("{line}: there is no such flag")) };
    let own = argument.get_env().map_or("-".into(), |name| name.to_string_lossy().into_owned());
    let takes = argument.get_action().takes_values();
    let bare = !takes || argument.get_num_args().is_some_and(|range| range.min_values() == 0);
    let own_form = if bare { "bare" } else { "value" };
    (own != env || own_form != form).then(|| format!("{line}: here it is {own} {own_form}"))
}

#[test]
fn every_command_and_flag_of_gitlab_runner_is_there_or_has_a_reason() {
    let mut root = Cli::command();
    root.build();
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for line in PEER.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (command, flag) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match (check(&root, line), reason(command, flag)) {
            (Some(_), Some(reason)) => drop(used.insert(reason)),
            (Some(problem), None) => wrong.push(problem),
            (None, Some(reason)) => wrong.push(format!("{line}: it is there; `{reason}` is none any more")),
            (None, None) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!used.is_empty());
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
