//! Tests the conformance kit.
//! Correct plugins pass. Each fault of a plugin makes the case that checks for it fail or warn.

mod faults;

use std::path::PathBuf;
use std::time::Duration;

use muster_fleeting::conformance::{self, CASES, Outcome, Plan, Report};
use serde_json::json;

use crate::ssh_server::{AcceptedCredentials, Server};

const TOY: &str = env!("CARGO_BIN_EXE_fleeting-plugin-toy");
const FAULTY: &str = env!("CARGO_BIN_EXE_fleeting-plugin-faulty");

/// Returns a plan with short timeouts, which a correct plugin easily meets.
fn plan(executable: impl Into<PathBuf>) -> Plan {
    let mut plan = Plan::new(executable);
    plan.call_timeout = Duration::from_secs(20);
    plan.create_timeout = Duration::from_secs(20);
    plan.delete_timeout = Duration::from_secs(20);
    plan.poll = Duration::from_millis(2);
    plan
}

async fn run(plan: &Plan) -> Report {
    conformance::run(plan, &mut |_| {}).await
}

fn not_passed(report: &Report) -> Vec<(&'static str, &'static str, String)> {
    let reason = |verdict: &conformance::Verdict| {
        let text = verdict.outcome.reason()?;
        Some((verdict.case.id, verdict.outcome.label(), text.to_owned()))
    };
    report.verdicts.iter().filter_map(reason).collect()
}

/// Returns the IDs of the cases with this outcome.
fn ids(report: &Report, label: &str) -> Vec<&'static str> {
    report.verdicts.iter().filter(|verdict| verdict.outcome.label() == label).map(|verdict| verdict.case.id).collect()
}

/// Muster's own plugin passes all cases except the skipped ones.
#[tokio::test]
async fn p2_p7_p8_p9_p14_p15_toy_plugin_passes() {
    let mut plan = plan(TOY);
    plan.config = json!({"name": "kit", "suspendable": true});
    let report = run(&plan).await;
    assert_eq!(report.verdicts.len(), CASES.len());
    assert!(ids(&report, "fail").is_empty(), "{:#?}", not_passed(&report));
    assert!(ids(&report, "warn").is_empty(), "{:#?}", not_passed(&report));
    // C4 and C6 need credentials. L11 needs instances that outlive the plugin's process.
    assert_eq!(ids(&report, "skip"), ["C4", "C6", "L11"], "{:#?}", not_passed(&report));
}

/// Runs the kit with GitLab's dummy plugin in Go.
/// The kit warns about the cases in which GitLab's library differs from Muster.
#[tokio::test]
async fn go_dummy_passes() {
    let dummy = muster_test_prerequisites::variable("MUSTER_TEST_FLEETING_DUMMY", "fleeting-plugin-dummy");
    let Some(dummy) = dummy else { return };
    let mut plan = plan(dummy);
    plan.config = json!({"Suspendable": true, "ListenSSH": true});
    plan.exit_timeout = Duration::from_secs(3);
    let report = run(&plan).await;
    assert_eq!(ids(&report, "fail"), [""; 0], "{:#?}", not_passed(&report));
    // P8: without settings, the plugin crashes instead of using defaults. P12: after an error, it does not return the instances that it has
    // already deleted. P15: it keeps running when its host exits.
    for id in ["P8", "P12", "P15"] {
        assert!(ids(&report, "warn").contains(&id), "{id}: {:#?}", not_passed(&report));
    }
}

#[tokio::test]
async fn correct_plugin_passes() {
    let mut plan = plan(FAULTY);
    plan.config = json!({ "fault": "none" });
    let report = run(&plan).await;
    assert_eq!((ids(&report, "fail"), ids(&report, "warn")), (vec![], vec![]), "{:#?}", not_passed(&report));
}

/// Runs the kit with a plugin whose instances are an SSH server in this test.
#[tokio::test]
async fn c4_c6_kit_logs_in_and_runs_a_command_with_credentials() {
    let server =
        Server::start(AcceptedCredentials { password: Some("hunter2".to_owned()), ..AcceptedCredentials::default() })
            .await;
    let mut plan = plan_with_server(&server, "hunter2");
    let report = run(&plan).await;
    assert!(report.outcome("C4").is_some_and(|outcome| *outcome == Outcome::Pass), "{:#?}", not_passed(&report));
    // The SSH server of this test prints the command instead of running it.
    let reason = report.outcome("C6").and_then(Outcome::reason).unwrap_or_default();
    assert!(reason.contains("`echo muster` printed \"echo muster\""), "{reason}");
    assert_eq!((ids(&report, "fail"), ids(&report, "warn")), (vec!["C6"], vec![]), "{:#?}", not_passed(&report));

    plan.connector.password = "wrong".to_owned();
    let report = run(&plan).await;
    let reason = report.outcome("C4").and_then(Outcome::reason).unwrap_or_default();
    assert!(reason.contains("rejected the password"), "{reason}");
    assert_eq!(ids(&report, "fail"), ["C4"], "{:#?}", not_passed(&report));
}

/// Returns the plan for a plugin whose instances are all this server.
fn plan_with_server(server: &Server, password: &str) -> Plan {
    let mut plan = plan(FAULTY);
    plan.config = json!({ "fault": "none" });
    plan.connector.protocol_port = server.address.port();
    (plan.connector.username, plan.connector.password) = ("ci".to_owned(), password.to_owned());
    plan
}

#[test]
fn reference_lists_every_case() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/plugin-commands.md");
    let page = std::fs::read_to_string(page).unwrap();
    for case in CASES {
        let line = format!("| {} | {} |", case.id, case.title);
        assert!(page.contains(&line), "{line}");
    }
}
