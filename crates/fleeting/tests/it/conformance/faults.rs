//! Runs the conformance kit with faulty plugins: each case has one that it detects.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use futures::StreamExt;
use muster_fleeting::conformance::{CASES, Connect, Outcome, Plan};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{BROKEN, TOY, ids, others, plan, run};

/// A faulty plugin, and how the kit detects it.
struct Fault {
    plugin: Plugin,
    /// Cases that detect the fault. The first one reports `reason`.
    cases: &'static [&'static str],
    reason: &'static str,
    how: How,
}

enum Plugin {
    /// The plugin [`BROKEN`] with this fault.
    Manner(&'static str),
    /// A shell script that starts the toy plugin, whose path is in `$toy`.
    Script(&'static str),
}

#[derive(PartialEq)]
enum How {
    /// These cases fail. Others may fail, too.
    Fail,
    /// These cases fail, and all others pass.
    FailOnly,
    /// The case warns, and all others pass.
    WarnOnly,
}

const fn manner(manner: &'static str, cases: &'static [&'static str], reason: &'static str, how: How) -> Fault {
    Fault { plugin: Plugin::Manner(manner), cases, reason, how }
}

const fn script(text: &'static str, cases: &'static [&'static str], reason: &'static str, how: How) -> Fault {
    Fault { plugin: Plugin::Script(text), cases, reason, how }
}

use How::{Fail, FailOnly, WarnOnly};

const FAULTS: &[Fault] = &[
    script("echo Welcome; exec $toy \"$@\"", &["H1"], "unrecognized plugin message", Fail),
    script("echo '2|0|unix|/x|grpc|'; exec sleep 60", &["H1"], "incompatible core API version", Fail),
    script("echo '1|0|unix|/nowhere|grpc|'; exec sleep 60", &["H1"], "nobody answers at /nowhere", Fail),
    script("echo '1|0|tcp|127.0.0.1:1'; exec sleep 60", &["H1"], "unsupported plugin protocol \"netrpc\"", Fail),
    script("exec sleep 60", &["H1"], "no handshake within 2.0 s", Fail),
    script(
        "echo I give up >&2; exit 3",
        &["H1"],
        "it exited before the handshake (exit status: 3); it said: I give up",
        Fail,
    ),
    script("echo 1; exit 1", &["P1"], "it prints to stdout", Fail),
    script("exit 1", &["P1"], "says nothing on stderr", Fail),
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
    script("[ \"$1\" = version ] && exit 1; exec $toy \"$@\"", &["P3"], "version ends with exit status: 1", WarnOnly),
    script(
        "case $1 in -m*) exit 3;; esac; exec $toy \"$@\"",
        &["P4"],
        "an unknown flag ends with exit status: 3",
        WarnOnly,
    ),
    script(
        "case $1 in m*) exit 3;; esac; exec $toy \"$@\"",
        &["P4"],
        "with an unknown word it does not serve",
        WarnOnly,
    ),
    script("[ \"$1\" = bootstrap ] && exit 0; exec $toy \"$@\"", &["P5"], "it ends with 0", FailOnly),
    manner(
        "wants-its-case",
        &["P6"],
        "keys in another letter case: Init failed: Unknown: there is no key MANNER",
        FailOnly,
    ),
    manner(
        "knows-all-keys",
        &["P6"],
        "with an unknown key: Init failed: Unknown: there is no key muster_unknown_key",
        FailOnly,
    ),
    manner("dies-without-settings", &["P8"], "the plugin's process ended", WarnOnly),
    manner("waits-for-settings", &["P8"], "Init had no answer within 2.0 s", FailOnly),
    manner("nameless", &["L1"], "the group has no id", FailOnly),
    manner("sizeless", &["L1"], "max_size is 0", Fail),
    manner("wordless", &["P10"], "an error without words", FailOnly),
    manner("makes-one", &["L3", "L6"], "Increase accepted 2, and 1 instances appeared", Fail),
    manner("makes-more", &["L3"], "Increase accepted 2, and 3 instances appeared", FailOnly),
    manner("makes-none", &["L3"], "Increase accepted 2, and 0 instances appeared", Fail),
    manner("refuses", &["L3"], "the cloud is full", FailOnly),
    manner("crashes-in-increase", &["L3"], "the plugin's process ended", Fail),
    manner("never-up", &["L6"], "0 of 2 instances were running", FailOnly),
    manner("homeless", &["H15"], "has no address", FailOnly),
    manner("expired", &["H15"], "has expired already", FailOnly),
    manner("outside", &["C1"], "set use_external_addr = true", FailOnly),
    manner("knows-better", &["L7"], "username", FailOnly),
    manner("closed", &["C4"], "no connection to 127.0.0.1:1", FailOnly),
    manner("ill", &["H12"], "it does not feel well", Fail),
    manner("one-at-a-time", &["L8"], "had no answer", FailOnly),
    manner("sleepless", &["H13"], "was not suspended", FailOnly),
    manner("forgets-sleep", &["P11"], "does not say that it accepted", FailOnly),
    manner("removes-none", &["L9", "L10"], "was still there", Fail),
    manner("never-gone", &["L9", "L10"], "was still there", Fail),
    manner("removes-all", &["L9"], "removed i-", Fail),
    manner("removes-others", &["L9"], "says that it accepted [\"i-99\"]", Fail),
    manner("mourns", &["P14"], "there is no instance i-0; hosts ask again and again", WarnOnly),
    manner("waits-for-the-dead", &["P14"], "Decrease of an instance that is gone had no answer within 2.0 s", FailOnly),
    manner("removes-silently", &["P12"], "which the host does not hear", WarnOnly),
    manner("hangs", &["L2"], "Update had no answer within 2.0 s", Fail),
    manner("crashes", &["L2"], "the plugin's process ended", Fail),
    manner("fails", &["L2"], "the cloud is closed", Fail),
    manner("twice", &["L2"], "stands twice in one snapshot", FailOnly),
    manner("odd-state", &["L2"], "has the state 42", Fail),
    manner("backwards", &["L4"], "moved from running to creating", Fail),
    manner("forgets", &["L5"], "is missing from the next snapshot, though nobody asked to remove it", Fail),
    manner("loses", &["L5"], "was running and is timeout", Fail),
    manner(
        "keeps-its-lock",
        &["L11"],
        "after it was killed: Init failed: Unknown: another process has the group",
        FailOnly,
    ),
    manner("clings", &["H11"], "the key cannot be removed", FailOnly),
    script("trap '' INT; $toy \"$@\"; exit 3", &["H11"], "it ended with exit status: 3", Fail),
    script("$toy \"$@\"; [ $# = 0 ] && exec sleep 60", &["H11"], "it still ran after 2.0 s", Fail),
    script("$toy \"$@\" & wait $!", &["P9"], "SIGINT ends it", FailOnly),
    script("trap '' TERM INT; $toy \"$@\"", &["P9"], "it still ran 2.0 s after SIGTERM", Fail),
    script(
        "trap '' INT; $toy \"$@\" 2>\"$0.log\"; ended=$?; cat \"$0.log\" >&2\n\
         grep -q 'the host is gone' \"$0.log\" && exec sleep 60; exit $ended",
        &["P15"],
        "it stays behind when its host is gone",
        WarnOnly,
    ),
    script(
        "echo '{\"@level\":3,\"@message\":\"m\"}' >&2; exec $toy \"$@\"",
        &["H16"],
        "the Go host dies of it",
        FailOnly,
    ),
    script(
        "echo '{\"@level\":\"info\",\"@message\":\"m\",\"@timestamp\":\"2026-01-02T03:04:05.123Z\"}' >&2; exec $toy \"$@\"",
        &["H16"],
        "has not six digits",
        WarnOnly,
    ),
];

/// Returns the plan, and the directory that must exist while it runs.
fn planned(fault: &Fault) -> (TempDir, Plan) {
    let folder = tempfile::tempdir().unwrap();
    let first = fault.cases[0];
    let mut plan = match fault.plugin {
        Plugin::Manner(manner) => {
            let mut plan = plan(BROKEN);
            plan.config = json!({ "manner": manner, "lock": folder.path().join("lock") });
            plan.connector.username = "somebody".to_owned();
            plan
        }
        Plugin::Script(text) => {
            let path = folder.path().join("plugin");
            std::fs::write(&path, format!("#!/bin/sh\ntoy={TOY}\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            plan(path)
        }
    };
    let short = Duration::from_millis(500);
    if ["H11", "P9"].contains(&first) && fault.how != FailOnly || fault.reason.contains("2.0 s after SIGTERM") {
        plan.exit_limit = Duration::from_secs(2);
    }
    if fault.reason.contains("no answer") || fault.reason.contains("no handshake") {
        plan.call_limit = Duration::from_secs(2);
    }
    if ["L3", "L4", "L5", "L6", "H13"].contains(&first) || fault.reason.contains("state 42") {
        plan.create_limit = short;
    }
    if ["L9", "L2"].contains(&first) {
        plan.delete_limit = short;
    }
    if first == "C4" {
        (plan.connector.username, plan.connector.password) = ("u".to_owned(), "p".to_owned());
        plan.connector.timeout = Duration::from_secs(1);
        plan.connector.protocol_port = 1;
        plan.connect = Connect::Yes;
    }
    (folder, plan)
}

async fn is_found(fault: &Fault) {
    let name = match fault.plugin {
        Plugin::Manner(name) | Plugin::Script(name) => name,
    };
    let (_folder, plan) = planned(fault);
    let report = run(&plan).await;
    let (failed, warned) = (ids(&report, "fail"), ids(&report, "warn"));
    match fault.how {
        Fail => assert!(fault.cases.iter().all(|id| failed.contains(id)), "{name}: {:#?}", others(&report)),
        FailOnly => assert_eq!((failed, warned), (fault.cases.to_vec(), vec![]), "{name}: {:#?}", others(&report)),
        WarnOnly => assert_eq!((failed, warned), (vec![], fault.cases.to_vec()), "{name}: {:#?}", others(&report)),
    }
    assert_eq!(report.passed(), fault.how == WarnOnly, "{name}");
    let said = report.outcome(fault.cases[0]).and_then(Outcome::reason).unwrap_or_default();
    assert!(said.contains(fault.reason), "{name}: {said}");
}

/// Checks the faults of these cases, a few at a time.
async fn are_found(cases: &[&str]) {
    let faults = FAULTS.iter().filter(|fault| cases.contains(&fault.cases[0]));
    futures::stream::iter(faults.map(is_found)).buffer_unordered(4).collect::<Vec<()>>().await;
}

#[tokio::test]
async fn broken_starts_are_found() {
    are_found(&["P1", "H1", "P2", "P3", "P4", "P5"]).await;
}

#[tokio::test]
async fn broken_settings_are_found() {
    are_found(&["P6", "P8", "L1"]).await;
    // A plugin with a missing required setting.
    let mut plan = plan(BROKEN);
    plan.config = Value::Null;
    let report = run(&plan).await;
    assert!(["P7", "L1"].iter().all(|id| ids(&report, "fail").contains(id)), "{:#?}", others(&report));
}

#[tokio::test]
async fn broken_making_is_found() {
    are_found(&["L3", "L6"]).await;
}

#[tokio::test]
async fn broken_snapshots_are_found() {
    are_found(&["L2", "L4", "L5"]).await;
}

#[tokio::test]
async fn broken_reaching_is_found() {
    are_found(&["P10", "H15", "C1", "L7", "C4", "H12", "L8", "H13", "P11"]).await;
}

#[tokio::test]
async fn broken_removing_is_found() {
    are_found(&["L9", "L10", "P14", "P12", "L11"]).await;
}

#[tokio::test]
async fn broken_ends_are_found() {
    are_found(&["H11", "P9", "P15", "H16"]).await;
}

#[test]
fn each_case_has_a_broken_plugin() {
    // The faults of P7 and C6 need more than a plugin: missing settings, and a machine.
    let found = |id: &str| ["P7", "C6"].contains(&id) || FAULTS.iter().any(|fault| fault.cases.contains(&id));
    let missing: Vec<&str> = CASES.iter().map(|case| case.id).filter(|id| !found(id)).collect();
    assert_eq!(missing, [""; 0]);
}
