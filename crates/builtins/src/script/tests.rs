//! The frame, run by the shells of this machine.

use std::io::Write;
use std::process::{Output, Stdio};

use super::*;

fn run(bash: bool, commands: &[&str]) -> Output {
    let commands: Vec<String> = commands.iter().map(ToString::to_string).collect();
    let exports = [("BIG".to_owned(), "it's\n$HOME `x` \\n".to_owned())];
    let frame = Frame { bash, trace: false, directory: Path::new("/"), exports: &exports, commands: &commands };
    let shell = find_program(if bash { "bash" } else { "sh" }).unwrap();
    let mut child = std::process::Command::new(shell)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(frame.text().as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn commands_are_echoed_in_bold_green_and_run_in_order() {
    for bash in [true, false] {
        let output = run(bash, &["  echo 'a'  ", "pwd", "", "for i in 1 2; do\n  echo $i\ndone"]);
        assert_eq!(
            text(&output),
            "\x1b[32;1m$ echo 'a'\x1b[0;m\na\n\x1b[32;1m$ pwd\x1b[0;m\n/\n\n\
             \x1b[32;1m$ for i in 1 2; do # collapsed multi-line command\x1b[0;m\n1\n2\n"
        );
        assert!(output.status.success());
    }
}

#[test]
fn the_first_failing_command_ends_the_script_with_its_status() {
    for bash in [true, false] {
        let output = run(bash, &["sh -c 'exit 7'", "echo never"]);
        assert_eq!(output.status.code(), Some(7));
        assert!(!text(&output).contains("\nnever"));
    }
    assert_eq!(run(true, &["false | true", "echo never"]).status.code(), Some(1));
    assert_eq!(run(true, &["exit 42"]).status.code(), Some(42));
}

#[test]
fn a_command_cannot_eat_the_script() {
    for bash in [true, false] {
        let output = run(bash, &["cat", "echo after"]);
        assert!(text(&output).ends_with("\nafter\n"), "{output:?}");
    }
}

#[test]
fn quoting_keeps_every_character() {
    for bash in [true, false] {
        let output = run(bash, &["printf '%s' \"$BIG\"", "echo \"it's \\\\ 'q' %s\""]);
        assert!(text(&output).contains("it's\n$HOME `x` \\n"), "{output:?}");
        assert!(output.status.success());
    }
}

#[test]
fn an_unknown_shell_is_a_configuration_error() {
    assert!(matches!(find_shell("fish"), Err(Failure::Configuration(_))));
}
