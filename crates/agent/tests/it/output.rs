//! Large output, invalid UTF-8, and secrets in pieces.

use muster_agent_api::client::{AgentError, follow_to_end};
use muster_agent_api::result::{MAX_RESULT_BYTES, Outcome};
use muster_agent_api::step_runner::Variable;

use crate::harness::*;

const TIMESTAMP_BYTES: usize = 28;

#[tokio::test]
async fn ten_megabytes_of_output_are_complete() {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(vec![script(&["seq 1000000 2249999"])]);
    plan.output_limit = 20_000_000;
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success);
    assert!(log.contains(&(1_000_000..2_250_000).map(|number| format!("{number}\n")).collect::<String>()));
}

#[tokio::test]
async fn shortened_log_is_an_error_that_is_not_retried() {
    let mut agent = Agent::start().await;
    agent.run("1-1", &agent.plan(vec![script(&["echo hello"])]), &[]).await;
    agent.wait("1-1").await;
    let log = std::fs::File::options().write(true).open(agent.dir.path().join("spool/1-1/log")).unwrap();
    log.set_len(5).unwrap();
    let socket = Socket(options(agent.dir.path()).socket);
    let followed = follow_to_end(&socket, "1-1", TIMEOUT, MAX_RESULT_BYTES, |_| {});
    let error = tokio::time::timeout(TIMEOUT, followed).await.expect("the client must not retry").unwrap_err();
    assert!(matches!(&error, AgentError::Refused(message) if message.contains("another process has shortened it")));
}

#[tokio::test]
async fn output_beyond_the_limit_is_dropped_and_the_job_continues() {
    let mut agent = Agent::start().await;
    let after_output = agent.dir.path().join("mark");
    let mut plan = agent.plan(vec![script(&["seq 100000", &format!("touch {}", after_output.display())])]);
    plan.output_limit = 5000;
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success);
    assert!(log.contains("\n\x1b[33;1mJob's log exceeded limit of 5000 bytes.\n") && log.len() < 5300);
    assert!(after_output.exists());
}

#[tokio::test]
async fn invalid_utf8_becomes_replacement_characters() {
    let mut agent = Agent::start().await;
    let plan = agent.plan(vec![script(&["printf 'a\\377\\000b\\303'; printf '\\251\\n'"])]);
    let (log, _) = agent.complete(&plan).await;
    assert!(log.contains("a\u{fffd}\0b\u{e9}\n"), "{log:?}");
}

#[tokio::test]
async fn secret_in_pieces_is_masked() {
    let mut agent = Agent::start().await;
    // The pauses separate the pieces.
    let plan = agent.plan(vec![script(&["printf hunt; sleep 0.05; printf er >&2; sleep 0.05; echo 22"])]);
    let secret = Variable { masked: true, ..variable("SECRET", "hunter22") };
    agent.run("1-1", &plan, &[secret]).await;
    let log = agent.log("1-1").await;
    assert!(log.contains("\n[MASKED]\n") && !log.contains("hunter22"), "{log}");
}

#[tokio::test]
async fn secret_with_colors_inside_is_masked() {
    let mut agent = Agent::start().await;
    let command = "printf '%s\\n' \"$SECRET\" | grep --color=always '^hunt'";
    let plan = agent.plan(vec![script(&[command])]);
    let secret = Variable { masked: true, ..variable("SECRET", "hunter22") };
    agent.run("1-1", &plan, &[secret]).await;
    let log = agent.log("1-1").await;
    assert!(log.contains("[MASKED]\x1b[0m\n") && !log.contains("er22"), "{log}");
}

#[tokio::test]
async fn lines_have_time_and_stream_if_timestamps_are_on() {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(vec![script(&["echo out; echo err >&2"])]);
    plan.timestamps = true;
    let (log, _) = agent.complete(&plan).await;
    let without_timestamp = |line: &str| line.get(TIMESTAMP_BYTES..).unwrap_or_default().to_owned();
    let lines: Vec<String> = log.lines().map(without_timestamp).collect();
    for expected in ["01O out", "01O err", "00O \x1b[32;1mJob succeeded\x1b[0;m"] {
        assert!(lines.iter().any(|line| line == expected), "{log}");
    }
}

#[tokio::test]
async fn lines_of_both_streams_are_in_write_order() {
    let mut agent = Agent::start().await;
    let command = "for n in $(seq 1000); do echo \"o $n\"; echo \"e $n\" >&2; done";
    let mut plan = agent.plan(vec![script(&[command, "echo end"])]);
    plan.timestamps = true;
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success);
    let lines: Vec<&str> = log.lines().filter_map(|line| line.get(TIMESTAMP_BYTES..)).collect();
    let expected = (1..=1000).flat_map(|n| ["o", "e"].map(|letter| format!("01O {letter} {n}")));
    let expected: Vec<String> = expected.chain(["01O \x1b[32;1m$ echo end\x1b[0;m".to_owned()]).collect();
    let first = lines.iter().position(|line| *line == "01O o 1").unwrap();
    assert_eq!(lines[first..][..expected.len()], expected);
}

#[tokio::test]
async fn unterminated_last_line_precedes_the_next_message() {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(vec![script(&["echo out; printf err >&2"]), after_script(&["printf after"])]);
    plan.timestamps = true;
    plan.trace_sections = true;
    let (log, _) = agent.complete(&plan).await;
    let lines: Vec<&str> = log.lines().collect();
    let at = |texts: &[&str]| {
        let found = lines.iter().position(|line| texts.iter().all(|text| line.contains(text)));
        found.unwrap_or_else(|| panic!("{texts:?} in {log}"))
    };
    let end = at(&["section_end:", ":step_script\r"]);
    assert!(at(&["01O out"]) < end && at(&["01O err"]) < end, "{log}");
    assert!(end < at(&["section_start:", ":after_script\r"]), "{log}");
    assert!(at(&["01O after"]) < at(&["section_end:", ":after_script\r"]), "{log}");
}

/// Runs itself again in a process with a small tmpfs.
#[tokio::test]
async fn full_disk_fails_the_job_and_keeps_its_log() {
    if let Some(disk) = std::env::var_os("SMALL_DISK") {
        return run_on_small_disk(std::path::Path::new(&disk)).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let child = std::process::Command::new("unshare")
        .args(["-rm", "sh", "-c", "mount -t tmpfs -o size=1m none \"$1\" && exec \"$2\" output::full_disk_fails_the_job_and_keeps_its_log --exact --nocapture", "sh"])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .env("SMALL_DISK", dir.path())
        .output();
    let output = match child {
        Ok(output) => output,
        Err(error) => {
            return muster_test_prerequisites::missing(format_args!(
                "`unshare` is not available (Debian: util-linux): {error}"
            ));
        }
    };
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if text.contains("unshare:") || text.contains("mount:") {
        return muster_test_prerequisites::missing(format_args!("failed to create a mount namespace: {text}"));
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn run_on_small_disk(disk: &std::path::Path) {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.spool = disk.join("spool");
    let mut agent = Agent::start_with(options, dir).await;
    let mut plan = agent.plan(vec![script(&["seq 1000000 1999999; sleep 600"])]);
    plan.output_limit = 20_000_000;
    agent.run("1-1", &plan, &[]).await;
    let seen = agent.log_until("1-1", "1000000\n").await;
    let result = agent.wait("1-1").await;
    let Outcome::Failed { reason, cause, .. } = &result.outcome else { panic!("{result:?}") };
    assert_eq!(
        (reason.as_str(), *cause),
        ("runner_system_failure", Some(muster_job::TerminationCause::ResourceExhausted))
    );
    let log = agent.log("1-1").await;
    assert!(log.starts_with(&seen), "the final log must have the bytes that were read before the failure");
    assert_eq!(log.len() as u64, result.log_bytes);
    let last_line = "ERROR: Job failed (system failure): no space left for the job's log\x1b[0;m\n";
    assert!(log.ends_with(last_line), "{}", &log[log.len() - 200..]);
}

/// The clients, the agent and the task that reads the output share one thread.
#[tokio::test]
async fn endless_output_does_not_block_other_jobs() {
    let mut agent = Agent::start().await;
    let secrets: Vec<Variable> = (0..50)
        .map(|number| Variable { masked: true, ..variable(&format!("S{number}"), &format!("{number:02}-hunter22")) })
        .collect();
    let mut endless = agent.plan(vec![script(&["exec yes \"$S7 and 49-hunter2 and $S31\""])]);
    endless.output_limit = 64 << 20;
    agent.run("1-1", &endless, &secrets).await;
    agent.log_until("1-1", "\n[MASKED] and 49-hunter2 and [MASKED]\n").await;
    let mut other = agent.plan(vec![script(&["echo other job done"])]);
    other.project_dir = agent.dir.path().join("builds/q").to_string_lossy().into_owned();
    agent.run("2-1", &other, &[]).await;
    assert!(agent.log("2-1").await.contains("\nother job done\n"));
    assert_eq!(agent.wait("2-1").await.outcome, Outcome::Success);
    assert_eq!(agent.ids().await, ["1-1", "2-1"]);
    agent.cancel("1-1").await;
    assert_eq!(failure(&agent.wait("1-1").await).0, "job_canceled");
}
