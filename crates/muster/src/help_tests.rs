//! Snapshots of every `--help` text.

use clap::{Command, CommandFactory as _};

use super::Cli;

fn append_help(command: &mut Command, path: &str, text: &mut String) {
    if ["register", "run-single"].contains(&command.get_name()) {
        // Hides the flags for keys of the configuration. Their help comes from its schema, which has a reference page.
        let is_key = |arg: &clap::Arg| crate::runner::is_entry_flag(arg.get_id().as_str());
        *command = std::mem::take(command).mut_args(|arg| if is_key(&arg) { arg.hide(true) } else { arg });
    }
    let path = format!("{path} {}", command.get_name());
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("======== {} --help\n{}\n\n", path.trim(), help.join("\n").trim_end()));
    for subcommand in command.get_subcommands_mut().filter(|subcommand| subcommand.get_name() != "help") {
        append_help(subcommand, &path, text);
    }
}

#[test]
fn help_of_every_command_matches_its_snapshot() {
    let mut root = Cli::command().term_width(100);
    root.build();
    let overview = root.render_long_help().to_string();
    // Removes the current values of environment variables, which the help shows.
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\[env: (\w+)=[^\]]*\]", "[env: $1]");
    settings.set_omit_expression(true);
    let _settings = settings.bind_to_scope();
    insta::assert_snapshot!("muster", overview);
    for command in root.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let (name, mut text) = (format!("muster-{}", command.get_name()), String::new());
        append_help(command, "muster", &mut text);
        insta::assert_snapshot!(name, text);
    }
}
