//! Small commands that the containers of jobs use.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use super::support::Home;
use crate::process::CommandResult;

#[test]
fn health_check_waits_for_all_ports_of_flags_or_any_port_of_variables() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap().port().to_string();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    home.run(&["health-check", "-p", &open]).check(0, &[]);
    home.run(&["health-check", "--port", &open, "--port", &closed, "--timeout", "0"])
        .check(1, &["failed to connect to"]);
    home.run(&["health-check"]).check(1, &["no host or port found"]);
    let mut with_variables = home.command(&["health-check"]);
    with_variables
        .env("DB_PORT_1_TCP_ADDR", "127.0.0.1")
        .env("DB_PORT_1_TCP_PORT", &closed)
        .env("DB_PORT_2_TCP_PORT", &open);
    CommandResult::of(with_variables.output().unwrap()).check(0, &[]);
}

#[test]
fn unused_agent_exits_after_its_idle_timeout() {
    let home = Home::new();
    let (socket, spool) = (home.path("agent.sock").display().to_string(), home.path("spool").display().to_string());
    let agent = ["agent", "serve", "--socket", &socket, "--spool", &spool, "--idle-timeout", "1"];
    let result = std::process::Command::new(env!("CARGO_BIN_EXE_muster")).args(agent).output().unwrap();
    CommandResult::of(result).check(0, &["agent is idle, shutting down"]);
    assert!(!home.path("agent.sock").exists());
}

#[test]
fn cache_init_makes_directories_writable() {
    let home = Home::new();
    let directory = home.path("cache directory");
    std::fs::create_dir(&directory).unwrap();
    home.run(&["cache-init", directory.to_str().unwrap(), "absent"]).check(0, &["absent"]);
    assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o7777, 0o777);
    home.run(&["cache-init"]).check(1, &["Usage: gitlab-runner cache-init"]);
}

#[test]
fn read_logs_prints_offsets_and_exits_with_100_on_deletion() {
    let home = Home::new();
    let path = home.path("output.log");
    std::fs::write(&path, "one\ntwo\n").unwrap();
    let mut command = home.command(&["read-logs", "--offset", "4", "--path", path.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "8 two");
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"three\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "14 three");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(100));
    let result = home.run(&["read-logs", "--path", path.to_str().unwrap(), "--wait-file-timeout", "10ms"]);
    assert!(result.code == 1 && result.stdout.contains("timeout waiting for file"), "{result:?}");
}

#[test]
fn read_logs_splits_only_lines_that_are_longer_than_16_kib() {
    let home = Home::new();
    let path = home.path("output.log");
    let (short, long) = ("a".repeat(10_000), "b".repeat(16 * 1024 + 1));
    std::fs::write(&path, format!("{short}\n{short}\n{long}\nend\nincomplete")).unwrap();
    let mut command = home.command(&["read-logs", "--path", path.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for expected in [
        format!("10001 {short}"),
        format!("20002 {short}"),
        format!("36386 {}", &long[1..]),
        "36388 b".to_owned(),
        "36392 end".to_owned(),
        "36402 incomplete".to_owned(),
    ] {
        let line = lines.next().unwrap();
        assert!(line == expected, "{:?} instead of {:?}", line.get(..20), expected.get(..20));
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(100));
}
