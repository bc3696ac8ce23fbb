//! The conformance kit: it passes plugins that are in order, and fails broken ones in the case that is about it.

mod faults;

use std::path::PathBuf;
use std::time::Duration;

use muster_fleeting::conformance::{self, CASES, Outcome, Plan, Report};
use serde_json::json;

use crate::ssh_server::{AcceptedCredentials, Server};

const TOY: &str = env!("CARGO_BIN_EXE_fleeting-plugin-toy");
const BROKEN: &str = env!("CARGO_BIN_EXE_fleeting-plugin-broken");

/// Limits that a plugin in order meets easily, and that make a broken one no long wait.
fn plan(executable: impl Into<PathBuf>) -> Plan {
    let mut plan = Plan::new(executable);
    plan.call_limit = Duration::from_secs(20);
    plan.create_limit = Duration::from_secs(20);
    plan.delete_limit = Duration::from_secs(20);
    plan.poll = Duration::from_millis(2);
    plan
}

async fn run(plan: &Plan) -> Report {
    conformance::run(plan, &mut |_| {}).await
}

/// Everything that did not pass.
fn others(report: &Report) -> Vec<(&'static str, &'static str, String)> {
    let told = |verdict: &conformance::Verdict| {
        let reason = verdict.outcome.reason()?;
        Some((verdict.case.id, verdict.outcome.word(), reason.to_owned()))
    };
    report.verdicts.iter().filter_map(told).collect()
}

/// The ids of the cases with this outcome.
fn ids(report: &Report, word: &str) -> Vec<&'static str> {
    report.verdicts.iter().filter(|verdict| verdict.outcome.word() == word).map(|verdict| verdict.case.id).collect()
}

/// What Muster wants of plugins, its own have: P7 an error without a byte of settings, and none for `null` and `{}`; P8 a
/// host without settings means empty ones (Go: the process dies); P9 SIGINT stays, SIGTERM ends; P14 what is gone is gone;
/// P15 it ends with its host (Go: it stays behind).
#[tokio::test]
async fn p2_p7_p8_p9_p14_p15_the_toy_passes() {
    let mut plan = plan(TOY);
    plan.config = json!({"name": "kit", "suspendable": true});
    let report = run(&plan).await;
    assert_eq!(report.verdicts.len(), CASES.len());
    assert!(ids(&report, "fail").is_empty(), "{:#?}", others(&report));
    assert!(ids(&report, "warn").is_empty(), "{:#?}", others(&report));
    assert_eq!(ids(&report, "skip"), ["C4", "C6", "L11"], "{:#?}", others(&report));
}

/// What the kit says of Go's own plugin: where its library and Muster differ, both are told.
#[tokio::test]
async fn the_dummy_of_fleeting_passes() {
    let dummy = muster_test_needs::variable("MUSTER_TEST_FLEETING_DUMMY", "fleeting-plugin-dummy");
    let Some(dummy) = dummy else { return };
    let mut plan = plan(dummy);
    plan.config = json!({"Suspendable": true, "ListenSSH": true});
    plan.exit_limit = Duration::from_secs(3);
    let report = run(&plan).await;
    assert_eq!(ids(&report, "fail"), [""; 0], "{:#?}", others(&report));
    // P8: Go dies without settings, want: empty ones. P12: Go's dummy errs, and what it removed before is not heard of, want:
    // those that were removed. P15: Go's plugin stays behind, want: it ends with its host.
    for id in ["P8", "P12", "P15"] {
        assert!(ids(&report, "warn").contains(&id), "{id}: {:#?}", others(&report));
    }
}

#[tokio::test]
async fn a_plugin_that_is_not_broken_passes() {
    let mut plan = plan(BROKEN);
    plan.config = json!({ "manner": "not" });
    let report = run(&plan).await;
    assert_eq!((ids(&report, "fail"), ids(&report, "warn")), (vec![], vec![]), "{:#?}", others(&report));
}

/// A plugin that logs in to a machine which a test has.
#[tokio::test]
async fn c4_c6_a_command_is_run_where_there_are_credentials() {
    let server =
        Server::start(AcceptedCredentials { password: Some("hunter2".to_owned()), ..AcceptedCredentials::default() })
            .await;
    let mut plan = on_machine(&server, "hunter2");
    let report = run(&plan).await;
    assert!(report.outcome("C4").is_some_and(|outcome| *outcome == Outcome::Pass), "{:#?}", others(&report));
    // This machine's shell only repeats what it is told.
    let said = report.outcome("C6").and_then(Outcome::reason).unwrap_or_default();
    assert!(said.contains("`echo muster` printed \"echo muster\""), "{said}");
    assert_eq!((ids(&report, "fail"), ids(&report, "warn")), (vec!["C6"], vec![]), "{:#?}", others(&report));

    plan.connector.password = "wrong".to_owned();
    let report = run(&plan).await;
    let said = report.outcome("C4").and_then(Outcome::reason).unwrap_or_default();
    assert!(said.contains("refused the password"), "{said}");
    assert_eq!(ids(&report, "fail"), ["C4"], "{:#?}", others(&report));
}

/// Instances that are this one machine.
fn on_machine(server: &Server, password: &str) -> Plan {
    let mut plan = plan(BROKEN);
    plan.config = json!({ "manner": "not" });
    plan.connector.protocol_port = server.address.port();
    (plan.connector.username, plan.connector.password) = ("ci".to_owned(), password.to_owned());
    plan
}

#[test]
fn the_reference_lists_every_case() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/plugin-commands.md");
    let page = std::fs::read_to_string(page).unwrap();
    for case in CASES {
        let line = format!("| {} | {} |", case.id, case.title);
        assert!(page.contains(&line), "{line}");
    }
}
