//! Tests the conformance kit.
//! Correct plugins pass, and each faulty one fails in the case about its fault.

mod faults;

use std::path::PathBuf;
use std::time::Duration;

use muster_fleeting::conformance::{self, CASES, Outcome, Plan, Report};
use serde_json::json;

use crate::ssh_server::{AcceptedCredentials, Server};

const TOY: &str = env!("CARGO_BIN_EXE_fleeting-plugin-toy");
const FAULTY: &str = env!("CARGO_BIN_EXE_fleeting-plugin-faulty");

/// Returns a plan with short timeouts.
/// A correct plugin meets them easily.
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

/// Returns all cases that did not pass.
fn others(report: &Report) -> Vec<(&'static str, &'static str, String)> {
    let told = |verdict: &conformance::Verdict| {
        let reason = verdict.outcome.reason()?;
        Some((verdict.case.id, verdict.outcome.label(), reason.to_owned()))
    };
    report.verdicts.iter().filter_map(told).collect()
}

/// Returns the ids of the cases with this outcome.
fn ids(report: &Report, word: &str) -> Vec<&'static str> {
    report.verdicts.iter().filter(|verdict| verdict.outcome.label() == word).map(|verdict| verdict.case.id).collect()
}

/// Muster's own plugin does everything that the cases require, including what Go plugins do differently: P7 an error for empty settings,
/// but not for `null` and `{}`; P8 default settings if a host sends none (Go crashes); P9 SIGINT ignored, SIGTERM exits; P14 deleting a
/// missing instance succeeds; P15 exits with its host (Go keeps running).
#[tokio::test]
async fn p2_p7_p8_p9_p14_p15_toy_plugin_passes() {
    let mut plan = plan(TOY);
    plan.config = json!({"name": "kit", "suspendable": true});
    let report = run(&plan).await;
    assert_eq!(report.verdicts.len(), CASES.len());
    assert!(ids(&report, "fail").is_empty(), "{:#?}", others(&report));
    assert!(ids(&report, "warn").is_empty(), "{:#?}", others(&report));
    assert_eq!(ids(&report, "skip"), ["C4", "C6", "L11"], "{:#?}", others(&report));
}

/// Runs the kit with Go's own plugin, which gets warnings where Go's library differs from Muster.
#[tokio::test]
async fn go_dummy_passes() {
    let dummy = muster_test_needs::variable("MUSTER_TEST_FLEETING_DUMMY", "fleeting-plugin-dummy");
    let Some(dummy) = dummy else { return };
    let mut plan = plan(dummy);
    plan.config = json!({"Suspendable": true, "ListenSSH": true});
    plan.exit_timeout = Duration::from_secs(3);
    let report = run(&plan).await;
    assert_eq!(ids(&report, "fail"), [""; 0], "{:#?}", others(&report));
    // P8: Go crashes without settings instead of using defaults. P12: Go's dummy returns an error instead of the instances that it deleted
    // before. P15: Go's plugin keeps running instead of exiting with its host.
    for id in ["P8", "P12", "P15"] {
        assert!(ids(&report, "warn").contains(&id), "{id}: {:#?}", others(&report));
    }
}

#[tokio::test]
async fn correct_plugin_passes() {
    let mut plan = plan(FAULTY);
    plan.config = json!({ "fault": "none" });
    let report = run(&plan).await;
    assert_eq!((ids(&report, "fail"), ids(&report, "warn")), (vec![], vec![]), "{:#?}", others(&report));
}

/// Runs the kit with a plugin that supplies the address of a machine in this test.
#[tokio::test]
async fn c4_c6_command_runs_if_there_are_credentials() {
    let server =
        Server::start(AcceptedCredentials { password: Some("hunter2".to_owned()), ..AcceptedCredentials::default() })
            .await;
    let mut plan = on_machine(&server, "hunter2");
    let report = run(&plan).await;
    assert!(report.outcome("C4").is_some_and(|outcome| *outcome == Outcome::Pass), "{:#?}", others(&report));
    // The shell of this machine repeats its command instead of running it.
    let said = report.outcome("C6").and_then(Outcome::reason).unwrap_or_default();
    assert!(said.contains("`echo muster` printed \"echo muster\""), "{said}");
    assert_eq!((ids(&report, "fail"), ids(&report, "warn")), (vec!["C6"], vec![]), "{:#?}", others(&report));

    plan.connector.password = "wrong".to_owned();
    let report = run(&plan).await;
    let said = report.outcome("C4").and_then(Outcome::reason).unwrap_or_default();
    assert!(said.contains("refused the password"), "{said}");
    assert_eq!(ids(&report, "fail"), ["C4"], "{:#?}", others(&report));
}

/// Returns the plan for instances that are all this one machine.
fn on_machine(server: &Server, password: &str) -> Plan {
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
