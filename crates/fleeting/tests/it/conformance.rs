//! The conformance kit: it passes plugins that are in order, and fails broken ones in the case that is about it.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use muster_fleeting::conformance::{self, CASES, Connect, Outcome, Plan, Report};
use serde_json::json;
use tempfile::TempDir;

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
    // On a loaded machine the end of its host is seen later than P15 waits.
    assert!(ids(&report, "warn").iter().all(|id| *id == "P15"), "{:#?}", others(&report));
    assert_eq!(ids(&report, "skip"), ["C4", "C6", "L11"], "{:#?}", others(&report));
}

/// What the kit says of Go's own plugin: where its library and Muster differ, both are told.
#[tokio::test]
async fn the_dummy_of_fleeting_passes() {
    let Some(dummy) = std::env::var_os("MUSTER_TEST_FLEETING_DUMMY") else {
        eprintln!("skipped: MUSTER_TEST_FLEETING_DUMMY does not name the executable of fleeting-plugin-dummy");
        return;
    };
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

/// A plugin that is broken in a manner fails in these cases, the first of them for this reason.
async fn broken(manner: &str, failing: &[&str], reason: &str) {
    let mut plan = plan(BROKEN);
    plan.config = json!({ "manner": manner });
    plan.connector.username = "somebody".to_owned();
    // How it ends is no matter here.
    plan.exit_limit = Duration::from_secs(2);
    if ["hangs", "one-at-a-time"].contains(&manner) {
        plan.call_limit = Duration::from_secs(2);
    }
    if ["never-up", "sleepless", "makes-one", "makes-none", "backwards", "loses", "odd-state"].contains(&manner) {
        plan.create_limit = Duration::from_millis(500);
    }
    if ["never-gone", "removes-none", "removes-others", "hangs"].contains(&manner) {
        plan.delete_limit = Duration::from_millis(500);
    }
    if manner == "closed" {
        plan.connector.timeout = Duration::from_secs(1);
        plan.connect = Connect::Yes;
    }
    let report = run(&plan).await;
    let failed = ids(&report, "fail");
    assert!(failing.iter().all(|id| failed.contains(id)), "{manner}: {:#?}", others(&report));
    assert!(!report.passed());
    let said = report.outcome(failing[0]).and_then(Outcome::reason).unwrap_or_default();
    assert!(said.contains(reason), "{manner}: {said}");
}

#[tokio::test]
async fn a_plugin_that_is_not_broken_passes() {
    let mut plan = plan(BROKEN);
    plan.config = json!({ "manner": "not" });
    let report = run(&plan).await;
    assert!(ids(&report, "fail").is_empty(), "{:#?}", others(&report));
    // On a loaded machine the end of its host is seen later than P15 waits.
    assert!(ids(&report, "warn").iter().all(|id| *id == "P15"), "{:#?}", others(&report));
}

#[tokio::test]
async fn broken_making_is_found() {
    broken("makes-one", &["L3", "L6"], "Increase accepted 2, and 1 instances appeared").await;
    broken("makes-more", &["L3"], "Increase accepted 2, and 3 instances appeared").await;
    broken("makes-none", &["L3"], "Increase accepted 2, and 0 instances appeared").await;
    broken("refuses", &["L3"], "the cloud is full").await;
    broken("crashes-in-increase", &["L3"], "the plugin's process ended").await;
    broken("never-up", &["L6"], "0 of 2 instances were running").await;
}

#[tokio::test]
async fn broken_snapshots_are_found() {
    broken("hangs", &["L2"], "Update had no answer within 2.0 s").await;
    broken("crashes", &["L2"], "the plugin's process ended").await;
    broken("fails", &["L2"], "the cloud is closed").await;
    broken("twice", &["L2"], "stands twice in one snapshot").await;
    broken("odd-state", &["L2"], "has the state 42").await;
    broken("backwards", &["L4"], "moved from running to creating").await;
    broken("forgets", &["L5"], "is missing from the next snapshot, though nobody asked to remove it").await;
    broken("loses", &["L5"], "was running and is timeout").await;
}

#[tokio::test]
async fn broken_reaching_is_found() {
    broken("wordless", &["P10"], "an error without words").await;
    broken("homeless", &["H15"], "has no address").await;
    broken("expired", &["H15"], "has expired already").await;
    broken("outside", &["C1"], "set use_external_addr = true").await;
    broken("knows-better", &["L7"], "username").await;
    broken("closed", &["C4"], "no connection to 127.0.0.1:1").await;
    broken("ill", &["H12"], "it does not feel well").await;
    broken("one-at-a-time", &["L8"], "had no answer").await;
    broken("sleepless", &["H13"], "was not suspended").await;
    broken("forgets-sleep", &["P11"], "does not say that it accepted").await;
}

#[tokio::test]
async fn broken_removing_is_found() {
    broken("removes-none", &["L9", "L10"], "was still there").await;
    broken("never-gone", &["L9", "L10"], "was still there").await;
    broken("removes-all", &["L9"], "removed i-").await;
    broken("removes-others", &["L9"], "says that it accepted [\"i-99\"]").await;
    broken("nameless", &["L1"], "the group has no id").await;
    broken("sizeless", &["L1"], "max_size is 0").await;
    broken("clings", &["H11"], "the key cannot be removed").await;

    let mut plan = plan(BROKEN);
    plan.config = json!({ "manner": "removes-silently" });
    let report = run(&plan).await;
    assert_eq!(ids(&report, "warn"), ["P12"], "{:#?}", others(&report));
    // Settings that it needs are not there.
    plan.config = serde_json::Value::Null;
    let report = run(&plan).await;
    assert!(["P7", "L1"].iter().all(|id| ids(&report, "fail").contains(id)), "{:#?}", others(&report));
}

/// A plugin around the toy: `$toy` is its executable.
fn script(text: &str) -> (TempDir, Plan) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plugin");
    std::fs::write(&path, format!("#!/bin/sh\ntoy={TOY}\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut plan = plan(path);
    plan.exit_limit = Duration::from_secs(2);
    (folder, plan)
}

async fn fails(text: &str, id: &str, reason: &str) {
    let (_folder, mut plan) = script(text);
    if id == "H1" {
        plan.call_limit = Duration::from_secs(2);
    }
    let report = run(&plan).await;
    let said = report.outcome(id).and_then(Outcome::reason).unwrap_or_default();
    assert!(ids(&report, "fail").contains(&id) && said.contains(reason), "{text}: {:#?}", others(&report));
}

#[tokio::test]
async fn broken_starts_are_found() {
    fails("echo Welcome; exec $toy \"$@\"", "H1", "unrecognized plugin message").await;
    fails("echo '2|0|unix|/x|grpc|'; exec sleep 60", "H1", "incompatible core API version").await;
    fails("echo '1|0|unix|/nowhere|grpc|'; exec sleep 60", "H1", "nobody answers at /nowhere").await;
    fails("echo '1|0|tcp|127.0.0.1:1'; exec sleep 60", "H1", "unsupported plugin protocol \"netrpc\"").await;
    fails("exec sleep 60", "H1", "no handshake within 2.0 s").await;
    fails("echo I give up >&2; exit 3", "H1", "it exited before the handshake (exit status: 3); it said: I give up")
        .await;
    fails("echo 1; exit 1", "P1", "it prints to stdout").await;
    fails("exit 1", "P1", "says nothing on stderr").await;
    fails(
        "[ \"$PLUGIN_PROTOCOL_VERSIONS\" = 0 ] || exit 1; exec $toy \"$@\"",
        "P2",
        "PLUGIN_PROTOCOL_VERSIONS=(unset)",
    )
    .await;
    fails("[ \"$1\" = bootstrap ] && exit 0; exec $toy \"$@\"", "P5", "it ends with 0").await;
}

#[tokio::test]
async fn broken_ends_are_found() {
    fails("$toy \"$@\"; exit 3", "H11", "it ended with exit status: 3").await;
    fails("$toy \"$@\"; [ $# = 0 ] && exec sleep 60", "H11", "it still ran after 2.0 s").await;
    // In a shell's background job SIGINT is ignored: here it counts.
    let interrupted = "exec env --default-signal=INT sh -c '\"$0\" \"$@\" & wait $!' $toy \"$@\"";
    fails(interrupted, "P9", "SIGINT ends it").await;
    fails("trap '' TERM INT; $toy \"$@\"", "P9", "it still ran 2.0 s after SIGTERM").await;
    fails("echo '{\"@level\":3,\"@message\":\"m\"}' >&2; exec $toy \"$@\"", "H16", "the Go host dies of it").await;
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
