//! Runs the conformance kit with faulty plugins. Each case except C6 detects at least one of them.

use std::time::Duration;

use futures::StreamExt;
use muster_fleeting::conformance::{CASES, Connect, Outcome, Plan};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{FAULTY, TOY, ids, not_passed, plan, run};

struct Fault {
    plugin: Plugin,
    /// Cases that detect the fault. The first one reports `reason`.
    cases: &'static [&'static str],
    reason: &'static str,
    effect: Effect,
}

enum Plugin {
    /// The plugin [`FAULTY`] with this fault.
    Faulty(&'static str),
    /// A shell script that starts the toy plugin, whose path is in `$toy`.
    Script(&'static str),
}

#[derive(PartialEq)]
enum Effect {
    /// These cases fail. Others may fail, too.
    Fail,
    /// These cases fail, and no other case fails or warns.
    FailOnly,
    /// These cases warn, and no other case fails or warns.
    WarnOnly,
}

const fn faulty(name: &'static str, cases: &'static [&'static str], reason: &'static str, effect: Effect) -> Fault {
    Fault { plugin: Plugin::Faulty(name), cases, reason, effect }
}

const fn script(text: &'static str, cases: &'static [&'static str], reason: &'static str, effect: Effect) -> Fault {
    Fault { plugin: Plugin::Script(text), cases, reason, effect }
}

use Effect::{Fail, FailOnly, WarnOnly};

const FAULTS: &[Fault] = &[
    script("echo Welcome; exec $toy \"$@\"", &["H1"], "unrecognized plugin message", Fail),
    script("echo '2|0|unix|/x|grpc|'; exec sleep 60", &["H1"], "incompatible core API version", Fail),
    script("echo '1|0|unix|/nowhere|grpc|'; exec sleep 60", &["H1"], "failed to connect to /nowhere", Fail),
    script("echo '1|0|tcp|127.0.0.1:1'; exec sleep 60", &["H1"], "unsupported plugin protocol \"netrpc\"", Fail),
    script("exec sleep 60", &["H1"], "no handshake within 2.0 s", Fail),
    script(
        "echo no credentials >&2; exit 3",
        &["H1"],
        "exited before the handshake (exit status: 3); stderr: no credentials",
        Fail,
    ),
    script("echo 1; exit 1", &["P1"], "prints to stdout", Fail),
    script("exit 1", &["P1"], "prints nothing to stderr", Fail),
    script(
        "[ \"$PLUGIN_PROTOCOL_VERSIONS\" = 0 ] || [ $# != 0 ] || [ ! \"$FLEETING_INSTANCE_GROUP_PLUGIN\" ] || exit 1\nexec $toy \"$@\"",
        &["P2"],
        "PLUGIN_PROTOCOL_VERSIONS=(unset)",
        FailOnly,
    ),
    script(
        "case $1 in *version) echo 1.0; exit;; esac; exec $toy \"$@\"",
        &["P3"],
        "-version does not print the lines Name:",
        WarnOnly,
    ),
    script("[ \"$1\" = version ] && exit 1; exec $toy \"$@\"", &["P3"], "version exits with 1;", WarnOnly),
    script("case $1 in -m*) exit 3;; esac; exec $toy \"$@\"", &["P4"], "exits with 3 for an unknown flag", WarnOnly),
    script(
        "case $1 in m*) exit 3;; esac; exec $toy \"$@\"",
        &["P4"],
        "does not start with an unknown argument",
        WarnOnly,
    ),
    script("[ \"$1\" = bootstrap ] && exit 0; exec $toy \"$@\"", &["P5"], "exits with 0", FailOnly),
    faulty(
        "case_sensitive_keys",
        &["P6"],
        "keys in another letter case: Init failed: Unknown: unknown key FAULT",
        FailOnly,
    ),
    faulty(
        "rejects_unknown_keys",
        &["P6"],
        "with an unknown key: Init failed: Unknown: unknown key muster_unknown_key",
        FailOnly,
    ),
    faulty("crash_without_settings", &["P8"], "the plugin exited", WarnOnly),
    faulty("hang_without_settings", &["P8"], "no response to Init within 2.0 s", FailOnly),
    faulty("empty_group_id", &["L1"], "the group has no ID", FailOnly),
    faulty("zero_max_size", &["L1"], "max_size is 0", Fail),
    faulty("empty_error", &["P10"], "an error without a message", FailOnly),
    faulty("creates_one", &["L3", "L6"], "Increase accepted 2 instances, but 1 appeared", Fail),
    faulty("creates_too_many", &["L3"], "Increase accepted 2 instances, but 3 appeared", FailOnly),
    faulty("creates_none", &["L3"], "Increase accepted 2 instances, but 0 appeared", Fail),
    faulty("failing_increase", &["L3"], "the provider is full", FailOnly),
    faulty("crash_in_increase", &["L3"], "the plugin exited", Fail),
    faulty("never_running", &["L6"], "0 of 2 instances were running", FailOnly),
    faulty("no_address", &["H15"], "has no address", FailOnly),
    faulty("expired_credentials", &["H15"], "the credentials of ConnectInfo expired", FailOnly),
    faulty("external_address_only", &["C1"], "set use_external_addr = true", FailOnly),
    faulty("overrides_username", &["L7"], "username", FailOnly),
    faulty("refused_connection", &["C4"], "no connection to 127.0.0.1:1", FailOnly),
    faulty("unhealthy", &["H12"], "the instance is not healthy", Fail),
    faulty("hanging_second_call", &["L8"], "no response to concurrent", FailOnly),
    faulty("suspend_ignored", &["H13"], "was not suspended", FailOnly),
    faulty("partial_suspend_unreported", &["P11"], "does not return i-", FailOnly),
    faulty("deletes_none", &["L9", "L10"], "still existed", Fail),
    faulty("never_deleted", &["L9", "L10"], "still existed", Fail),
    faulty("deletes_all", &["L9"], "also deleted i-", Fail),
    faulty("reports_other_ids", &["L9"], "Decrease accepted [\"i-99\"]", Fail),
    faulty("missing_instance_error", &["P14"], "instance i-0 does not exist; hosts repeat such requests", WarnOnly),
    faulty("missing_instance_hang", &["P14"], "no response to Decrease of a deleted instance within 2.0 s", FailOnly),
    faulty("unreported_deletion", &["P12"], "the host does not learn this from an error", WarnOnly),
    faulty("hanging_update", &["L2"], "no response to Update within 2.0 s", Fail),
    faulty("crash_in_update", &["L2"], "the plugin exited", Fail),
    faulty("failing_update", &["L2"], "the provider is not available", Fail),
    faulty("duplicate_ids", &["L2"], "is listed twice in one snapshot", FailOnly),
    faulty("unknown_state", &["L2"], "has the unknown state 42", Fail),
    faulty("state_goes_back", &["L4"], "changed from running to creating", Fail),
    faulty("missing_from_list", &["L5"], "is missing from the next snapshot, but its deletion was not requested", Fail),
    faulty("loses_instances", &["L5"], "was running and is timeout", Fail),
    faulty(
        "stale_lock",
        &["L11"],
        "after the process was killed: Init failed: Unknown: another process uses the group",
        FailOnly,
    ),
    faulty("failing_shutdown", &["H11"], "the key cannot be removed", FailOnly),
    script("trap '' INT; $toy \"$@\"; exit 3", &["H11"], "exited with 3 after Shutdown", Fail),
    script("$toy \"$@\"; [ $# = 0 ] && exec sleep 60", &["H11"], "still running 2.0 s after Shutdown", Fail),
    script("$toy \"$@\" & wait $!", &["P9"], "exits on SIGINT", FailOnly),
    script("trap '' TERM INT; $toy \"$@\"", &["P9"], "still running 2.0 s after SIGTERM", Fail),
    script(
        "trap '' INT; $toy \"$@\" 2>\"$0.log\"; status=$?; cat \"$0.log\" >&2\n\
         grep -q 'host lost' \"$0.log\" && exec sleep 60; exit $status",
        &["P15"],
        "keeps running after its host exited",
        WarnOnly,
    ),
    script(
        "echo '{\"@level\":3,\"@message\":\"m\"}' >&2; exec $toy \"$@\"",
        &["H16"],
        "Go hosts crash on it",
        FailOnly,
    ),
    script(
        "echo '{\"@level\":\"info\",\"@message\":\"m\",\"@timestamp\":\"2026-01-02T03:04:05.123Z\"}' >&2; exec $toy \"$@\"",
        &["H16"],
        "does not have six fractional digits",
        WarnOnly,
    ),
];

/// Returns the plan, and the directory that must exist during the run.
fn plan_for(fault: &Fault) -> (TempDir, Plan) {
    let directory = tempfile::tempdir().unwrap();
    let first = fault.cases[0];
    let mut plan = match fault.plugin {
        Plugin::Faulty(name) => {
            let mut plan = plan(FAULTY);
            plan.config = json!({ "fault": name, "lock": directory.path().join("lock") });
            plan.connector.username = "ci".to_owned();
            plan
        }
        Plugin::Script(text) => {
            let path = directory.path().join("plugin");
            muster_test_prerequisites::create_program(&path, format!("#!/bin/sh\ntoy={TOY}\n{text}\n"));
            plan(path)
        }
    };
    let short = Duration::from_millis(500);
    if ["H11", "P9"].contains(&first) && fault.effect != FailOnly || fault.reason.contains("2.0 s after SIGTERM") {
        plan.exit_timeout = Duration::from_secs(2);
    }
    if fault.reason.contains("no response") || fault.reason.contains("no handshake") {
        plan.call_timeout = Duration::from_secs(2);
    }
    if ["L3", "L4", "L5", "L6", "H13"].contains(&first) || fault.reason.contains("state 42") {
        plan.create_timeout = short;
    }
    if ["L9", "L2"].contains(&first) {
        plan.delete_timeout = short;
    }
    if first == "C4" {
        (plan.connector.username, plan.connector.password) = ("u".to_owned(), "p".to_owned());
        plan.connector.timeout = Duration::from_secs(1);
        plan.connector.protocol_port = 1;
        plan.connect = Connect::Yes;
    }
    (directory, plan)
}

async fn assert_detected(fault: &Fault) {
    let name = match fault.plugin {
        Plugin::Faulty(name) | Plugin::Script(name) => name,
    };
    let (_directory, plan) = plan_for(fault);
    let report = run(&plan).await;
    let (failed, warned) = (ids(&report, "fail"), ids(&report, "warn"));
    match fault.effect {
        Fail => assert!(fault.cases.iter().all(|id| failed.contains(id)), "{name}: {:#?}", not_passed(&report)),
        FailOnly => assert_eq!((failed, warned), (fault.cases.to_vec(), vec![]), "{name}: {:#?}", not_passed(&report)),
        WarnOnly => assert_eq!((failed, warned), (vec![], fault.cases.to_vec()), "{name}: {:#?}", not_passed(&report)),
    }
    assert_eq!(report.passed(), fault.effect == WarnOnly, "{name}");
    let reason = report.outcome(fault.cases[0]).and_then(Outcome::reason).unwrap_or_default();
    assert!(reason.contains(fault.reason), "{name}: {reason}");
}

/// Checks the faults whose first case is one of `cases`, a few at a time.
async fn assert_all_detected(cases: &[&str]) {
    let faults = FAULTS.iter().filter(|fault| cases.contains(&fault.cases[0]));
    futures::stream::iter(faults.map(assert_detected)).buffer_unordered(4).collect::<Vec<()>>().await;
}

#[tokio::test]
async fn faulty_starts_are_detected() {
    assert_all_detected(&["P1", "H1", "P2", "P3", "P4", "P5"]).await;
}

#[tokio::test]
async fn faulty_settings_are_detected() {
    assert_all_detected(&["P6", "P8", "L1"]).await;
    // A plugin with a missing required setting.
    let mut plan = plan(FAULTY);
    plan.config = Value::Null;
    let report = run(&plan).await;
    assert!(["P7", "L1"].iter().all(|id| ids(&report, "fail").contains(id)), "{:#?}", not_passed(&report));
}

#[tokio::test]
async fn faulty_creation_is_detected() {
    assert_all_detected(&["L3", "L6"]).await;
}

#[tokio::test]
async fn faulty_snapshots_are_detected() {
    assert_all_detected(&["L2", "L4", "L5"]).await;
}

#[tokio::test]
async fn faulty_connections_are_detected() {
    assert_all_detected(&["P10", "H15", "C1", "L7", "C4", "H12", "L8", "H13", "P11"]).await;
}

#[tokio::test]
async fn faulty_deletion_is_detected() {
    assert_all_detected(&["L9", "L10", "P14", "P12", "L11"]).await;
}

#[tokio::test]
async fn faulty_exits_are_detected() {
    assert_all_detected(&["H11", "P9", "P15", "H16"]).await;
}

#[test]
fn each_case_has_a_faulty_plugin() {
    // Other tests check the cases P7 and C6: P7 needs missing settings, and C6 needs a machine.
    let has_fault = |id: &str| ["P7", "C6"].contains(&id) || FAULTS.iter().any(|fault| fault.cases.contains(&id));
    let missing: Vec<&str> = CASES.iter().map(|case| case.id).filter(|id| !has_fault(id)).collect();
    assert_eq!(missing, [""; 0]);
}
