//! `list`, `verify`, `unregister` and `reset-token`: which runners they select, what they change, and their results.

use std::io::{Read, Write};
use std::net::TcpListener;

use muster_runner_api::test_support::{Call, Fault, PERSONAL_TOKEN, RUNNER_TOKEN};

use super::server::{Harness, without_dates};
use super::support::Home;
use super::transfer::store::Store;
use crate::process::CommandResult;

const TWO_RUNNERS: &str = r#"# the team's
concurrent = 2 # as many as there are cores

# created at the server
[[runners]]
  name = "one"
  url = "URL"
  id = 1
  token = "glrt-memory-coordinator"
  executor = "shell"

# from the old days
[[runners]]
  name = "two"
  url = "URL/"
  token = "old-two"
  executor = "shell"
"#;

fn without_first_runner(text: &str) -> String {
    let (head, rest) = text.split_at(text.find("\n# created").unwrap());
    head.to_owned() + &rest[rest.find("\n# from").unwrap()..]
}

fn check_unwritable_file(harness: &Harness, command: &str, message: &str) {
    // The file name is short enough for the lock file next to it, but too long for the temporary file.
    let path = harness.home.path("c".repeat(249));
    std::fs::write(&path, harness.config().replace("URL", &harness.url())).unwrap();
    let path = path.display().to_string();
    for selector in [&["-n", "two"][..], &["--all-runners"]] {
        harness
            .home
            .run(&[&[command, "--config", &path], selector].concat())
            .check(1, &[message, "write a file beside"]);
    }
}

async fn harness_with_two_runners() -> Harness {
    let harness = Harness::start().await;
    harness.configure(TWO_RUNNERS);
    harness.coordinator.add_runner("old-two", None);
    harness
}

#[tokio::test(flavor = "multi_thread")]
async fn command_list_logs_every_runner_and_never_fails() {
    let harness = harness_with_two_runners().await;
    let url = harness.url();
    harness.run("list", &[]).check(0, &["Listing configured runners", "one", "Executor", RUNNER_TOKEN, &url, "two"]);
    harness.configure("[[runners]\n");
    harness.run("list", &[]).check(0, &["config.toml", "valid TOML"]);
    std::fs::remove_file(harness.home.path("config.toml")).unwrap();
    harness.run("list", &[]).check(0, &["does not exist"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_fails_or_deletes_a_runner_only_if_its_token_is_rejected() {
    let harness = harness_with_two_runners().await;
    harness.run("verify", &[]).check(0, &["Verifying runner... is valid", "Verifying runner... is alive"]);
    assert_eq!(harness.coordinator.runner(RUNNER_TOKEN).unwrap().managers, [harness.system_id()].into());
    harness.coordinator.fail(Call::Verify, [Fault::FailBefore]);
    harness.run("verify", &["--name", "two", "--delete"]).check(0, &["Verifying runner... failed"]);
    harness.coordinator.delete_runner(RUNNER_TOKEN);
    harness.run("verify", &[]).check(1, &["is not valid", "failed to verify `one`", "--delete"]);
    assert_eq!(harness.config(), TWO_RUNNERS);
    harness.run("verify", &["--delete"]).check(0, &["Updated"]);
    assert_eq!(harness.config(), without_first_runner(TWO_RUNNERS), "comments and the other runner must remain");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_selects_by_name_or_token_and_never_by_url_alone() {
    let harness = harness_with_two_runners().await;
    let mut with_variable = harness.home.command(&harness.arguments("verify", &["-n", "two"]));
    with_variable.env("CI_SERVER_TOKEN", RUNNER_TOKEN).env("CI_SERVER_URL", harness.url());
    let result = CommandResult::of(with_variable.output().unwrap()).check(0, &["is alive"]);
    assert!(!result.stderr.contains("is valid"), "variables must not select runners: {}", result.stderr);
    harness.run("verify", &["-t", RUNNER_TOKEN, "-u", "*"]).check(0, &["is valid"]);
    harness.run("verify", &["-t", RUNNER_TOKEN, "-u", "http://other"]).check(1, &["no runner matches"]);
    harness.run("verify", &["-u", "URL"]).check(1, &["--url selects a runner only together with --token; add --token"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unregister_keeps_the_rest_of_the_file() {
    let harness = harness_with_two_runners().await;
    harness.run("verify", &["-n", "one"]).check(0, &[]);
    harness.run("unregister", &["-n", "one"]).check(0, &["Unregistering runner from GitLab succeeded", "Updated"]);
    assert_eq!(harness.config(), without_first_runner(TWO_RUNNERS));
    assert!(
        harness.coordinator.runner(RUNNER_TOKEN).unwrap().managers.is_empty(),
        "only the manager must be unregistered"
    );
    harness.run("unregister", &["-t", "old-two", "-u", "URL"]).check(0, &[]);
    assert!(harness.coordinator.runner("old-two").is_none());
    assert!(!harness.config().contains("[[runners]]") && harness.config().starts_with("# the team's"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unregister_keeps_runners_that_are_not_selected_or_that_the_server_refuses() {
    let harness = harness_with_two_runners().await;
    harness.run("unregister", &["-u", "URL"]).check(1, &["FATAL: no runner selected; set --name, --token"]);
    harness.run("unregister", &["-n", "three"]).check(1, &["could not find a runner with the name 'three'"]);
    harness.coordinator.delete_runner("old-two");
    harness.run("unregister", &["-n", "two"]).check(1, &["failed to unregister runner `two`", "403"]);
    assert_eq!(harness.config(), TWO_RUNNERS);
    harness.run("verify", &["-n", "one"]).check(0, &[]);
    harness.run("unregister", &["--all-runners"]).check(0, &["Failed to unregister runner two", "Updated"]);
    assert_eq!(
        harness.config(),
        without_first_runner(TWO_RUNNERS),
        "a runner that the server does not delete must remain"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_token_writes_the_new_token_in_place() {
    let harness = harness_with_two_runners().await;
    harness.coordinator.add_runner("glrt-ends", Some("2030-01-02T03:04:05.678Z"));
    harness.configure(&TWO_RUNNERS.replace("old-two", "glrt-ends"));
    harness.run("reset-token", &["-n", "two"]).check(0, &["Resetting runner authentication token... succeeded"]);
    let config = harness.config();
    assert!(config.contains("token = \"glrt-ends-reset-1\"\n"), "{config}");
    assert!(config.contains("token_expires_at = 2030-01-02T03:04:05Z"), "{config}");
    let personal = ["-u", "URL", "-i", "1", "--pat", PERSONAL_TOKEN];
    harness.run("reset-token", &personal).check(0, &[]);
    let config = without_dates(&harness.config());
    let one = "  token = \"glrt-memory-coordinator-reset-1\"\n  executor = \"shell\"\ntoken_obtained_at = DATE\n";
    assert!(config.replace("  token_", "token_").contains(one), "{config}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_token_of_all_runners_continues_after_errors() {
    let harness = harness_with_two_runners().await;
    harness.run("reset-token", &[]).check(1, &["--name, --url with --id, or --all-runners"]);
    harness.run("reset-token", &["-u", "URL", "-i", "9"]).check(1, &["could not find a runner with the URL"]);
    harness.run("reset-token", &["-n", "two", "--pat", "x"]).check(1, &["requires the runner's ID"]);
    harness.coordinator.delete_runner(RUNNER_TOKEN);
    harness.run("reset-token", &["-n", "one"]).check(1, &["failed to reset the authentication token of runner `one`"]);
    assert_eq!(harness.config(), TWO_RUNNERS);
    harness.run("reset-token", &["--all-runners"]).check(0, &["runner `one`", "403", "succeeded"]);
    let config = harness.config();
    assert!(config.contains("\"glrt-memory-coordinator\"") && config.contains("\"old-two-reset-1\""), "{config}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_token_sends_nothing_if_the_file_is_not_writable() {
    let harness = harness_with_two_runners().await;
    check_unwritable_file(&harness, "reset-token", "the token was not reset");
    assert!(harness.coordinator.runner("old-two").is_some(), "the old token must remain valid");
    assert!(harness.coordinator.runner(RUNNER_TOKEN).is_some(), "the old token must remain valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn unregister_sends_nothing_if_the_file_is_not_writable() {
    let harness = harness_with_two_runners().await;
    check_unwritable_file(&harness, "unregister", "no runner was unregistered");
    assert!(harness.coordinator.runner("old-two").is_some() && harness.coordinator.runner(RUNNER_TOKEN).is_some());
}

#[test]
fn reset_token_reports_a_lost_token() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = TWO_RUNNERS.replace("URL", &format!("http://{}", listener.local_addr().unwrap()));
    let path = home.path("config.toml");
    std::fs::write(&path, &text).unwrap();
    let edited = format!("{text}# edited during the request\n");
    let server = std::thread::spawn({
        let (path, edited) = (path.clone(), edited.clone());
        move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            while !String::from_utf8_lossy(&request).contains("old-two") {
                let read = stream.read(&mut part).unwrap();
                assert!(read > 0, "the request ends without the token");
                request.extend_from_slice(&part[..read]);
            }
            std::fs::write(path, edited).unwrap();
            let body = "{\"id\": 2, \"token\": \"new-two\", \"token_expires_at\": null}";
            let head = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nconnection: close";
            write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        }
    });
    let config = path.display().to_string();
    let messages = ["runner `two`", "the old one is invalid", "again with --pat"];
    home.run(&["reset-token", "--config", &config, "-n", "two"]).check(1, &messages);
    server.join().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);
}

#[tokio::test(flavor = "multi_thread")]
async fn register_and_verify_send_version_info_and_system_id() {
    let (store, home) = (Store::start().await, Home::new());
    let answer = "{\"id\": 7, \"token\": \"glrt-x\", \"token_expires_at\": null}";
    let config = home.path("config.toml").display().to_string();
    let common = ["--config", &config];
    let json = [("content-type", "application/json".to_owned())];
    store.respond_with(200, &json, answer);
    let entry = ["--url", &store.url, "--token", "glrt-x", "--executor", "shell", "--shell", "sh", "--name", "n", "-n"];
    home.run(&[&["register"][..], &common, &entry].concat()).check(0, &["Runner registered successfully"]);
    store.respond_with(200, &json, answer);
    home.run(&[&["verify"][..], &common].concat()).check(0, &["is valid"]);
    let requests = store.take_requests();
    assert_eq!(requests.len(), 2);
    for call in requests {
        let body: serde_json::Value = serde_json::from_slice(&call.body).unwrap();
        let info = &body["info"];
        assert_eq!((&info["executor"], &info["shell"]), (&"shell".into(), &"sh".into()), "{body}");
        assert_eq!(info["features"]["two_phase_job_commit"], true, "{body}");
        assert_eq!(body["system_id"], std::fs::read_to_string(home.path(".runner_system_id")).unwrap().trim());
    }
}
