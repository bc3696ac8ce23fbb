//! `gitlab-runner-helper steps`: the commands that the executors of gitlab-runner use.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::serve::Server;
use super::*;

impl Project {
    fn helper(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(&self.dir.path().join("bin/gitlab-runner-helper"), arguments);
        command.stdin(Stdio::piped());
        command
    }
}

/// Returns the exit code, standard output, and the rest of standard error.
fn wait_for_exit(mut server: Server) -> (Option<i32>, String, String) {
    let (mut stdout, mut stderr) = (String::new(), String::new());
    server.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    server.stderr.read_to_string(&mut stderr).unwrap();
    (server.child.wait().unwrap().code(), stdout, stderr)
}

#[test]
fn c116_server_passes_on_standard_input_and_exits_with_the_code_of_the_command() {
    let project = Project::new();
    let socket = project.tmp().join("s.sock");
    let script = "cat; echo $STEP_RUNNER_SOCKET; exit 7";
    let arguments = ["steps", "serve", "--socket", socket.to_str().unwrap(), "sh", "-c", script];
    let mut server = Server::start(&mut project.helper(&arguments));
    assert_eq!(server.socket, socket);
    let mut stdin = server.child.stdin.take().unwrap();
    stdin.write_all(b"some input\n").unwrap();
    drop(stdin);
    // The socket is announced once, and nothing else is printed.
    let expected = format!("some input\n{}\n", socket.display());
    assert_eq!(wait_for_exit(server), (Some(7), expected, String::new()));
    assert!(!socket.exists());
}

#[test]
fn c116_command_does_not_run_without_input() {
    let project = Project::new();
    let mut server = Server::start(&mut project.helper(&["steps", "serve", "sh", "-c", "echo ran"]));
    drop(server.child.stdin.take());
    assert_eq!(wait_for_exit(server), (Some(0), String::new(), String::new()));
}

#[test]
fn c116_command_that_cannot_start_is_reported() {
    let project = Project::new();
    let mut server = Server::start(&mut project.helper(&["steps", "serve", "no-such-program"]));
    server.child.stdin.take().unwrap().write_all(b"x").unwrap();
    let (code, _, stderr) = wait_for_exit(server);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("Error: failed to run no-such-program: No such file"), "{stderr}");
}

#[test]
fn c115_helper_proxy_reports_a_socket_without_a_server() {
    let project = Project::new();
    let result = CommandResult::of(project.helper(&["steps", "proxy", "--socket", "/none.sock"]).output().unwrap());
    assert_eq!(result.check(1, &["Error: dialing: dial unix /none.sock"]).stdout, "");
}

#[test]
fn c122_helper_bootstrap_copies_to_a_file() {
    let project = Project::new();
    let copy = project.dir.path().join("new/helper");
    let arguments = ["steps", "bootstrap", copy.to_str().unwrap()];
    for _ in 0..2 {
        CommandResult::of(project.helper(&arguments).output().unwrap()).check(0, &[]);
    }
    assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(env!("CARGO_BIN_EXE_muster")).unwrap());
}

#[test]
fn c123_arguments_that_an_entrypoint_dropped_are_recovered() {
    let project = Project::new();
    let run_helper = |arguments: &[&str], payload: &str| {
        let mut command = project.helper(arguments);
        CommandResult::of(command.env("_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV", payload).output().unwrap())
    };
    let encode = |json: &str| STANDARD.encode(json);
    let proxy = encode(r#"["steps", "proxy", "--socket", "/recovered.sock"]"#);
    run_helper(&[], &proxy).check(1, &["dial unix /recovered.sock"]);
    run_helper(&["steps", "proxy", "--socket", "/given.sock"], &proxy).check(1, &["dial unix /given.sock"]);
    for ignored in ["", "no Base64!", &encode("no JSON"), &encode("{}"), &encode("[1]")] {
        run_helper(&[], ignored).check(1, &["Usage: gitlab-runner"]);
    }
    // The command of a server does not inherit the variable with the arguments.
    let serve = r#"["steps", "serve", "sh", "-c", "echo [$_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV]"]"#;
    let mut command = project.helper(&[]);
    let mut server = Server::start(command.env("_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV", encode(serve)));
    server.child.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(wait_for_exit(server).1, "[]\n");
}
