//! Checks which data crosses the boundary between the manager and a plugin.

use std::collections::{BTreeMap, BTreeSet};

const PROTOCOLS: [&str; 2] =
    [include_str!("../../proto/instance_group.proto"), include_str!("../../proto/extension.proto")];

/// The fields that each request may have. Idle times, use counts and other policies are internal to the scaler.
const REQUESTS: [(&str, &[&str]); 15] = [
    ("Init", &["config", "settings"]),
    ("Update", &[]),
    ("Increase", &["n"]),
    ("Decrease", &["instances"]),
    ("ConnectInfo", &["instance"]),
    ("Heartbeat", &["instance"]),
    ("Suspend", &["instances"]),
    ("Resume", &["instances"]),
    ("Shutdown", &[]),
    ("GetFeatures", &[]),
    ("ListOffers", &[]),
    ("WatchNotices", &[]),
    ("GetResourceUsage", &["instances"]),
    ("HostKeys", &["instance"]),
    ("Prepare", &["instance", "job"]),
];

/// Fields of `ConnectorConfig`. `Init` has no other settings of the host.
const CONNECTOR_FIELDS: [&str; 10] = [
    "os",
    "arch",
    "protocol",
    "username",
    "password",
    "key",
    "useStaticCredentials",
    "keepalive",
    "timeout",
    "protocol_port",
];

/// Returns the fields of each message by the message's name.
fn messages(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut messages = BTreeMap::new();
    let mut current: Option<&str> = None;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if let Some(rest) = line.strip_prefix("message ") {
            let name = rest.split_whitespace().next().unwrap();
            messages.insert(name, Vec::new());
            current = (!line.ends_with("{}")).then_some(name);
        } else if let (Some(name), Some((field, _))) = (current, line.split_once(" = ")) {
            messages.get_mut(name).unwrap().push(field.split_whitespace().next_back().unwrap());
        }
    }
    messages
}

/// Returns the calls of all services with the names of their requests.
fn calls(text: &str) -> Vec<(&str, &str)> {
    text.lines()
        .filter_map(|line| {
            let (name, rest) = line.trim().strip_prefix("rpc ")?.split_once('(')?;
            Some((name, rest.split_once(')')?.0))
        })
        .collect()
}

/// Requirement R050: the autoscaler is not part of the plugin, so no call passes a policy to a plugin.
#[test]
fn plugin_calls_have_no_policy_parameters() {
    let allowed: BTreeMap<_, _> = REQUESTS.into_iter().collect();
    let mut seen = BTreeSet::new();
    for text in PROTOCOLS {
        let messages = messages(text);
        for (call, request) in calls(text) {
            // Cleanup has the same request as Prepare.
            let name = if call == "Cleanup" { "Prepare" } else { call };
            let fields = &messages[request];
            let expected = allowed
                .get(name)
                .unwrap_or_else(|| panic!("{call} is a new call: check which data it passes to a plugin"));
            assert_eq!(fields, expected, "{call}");
            seen.insert(name);
        }
    }
    assert_eq!(seen.len(), REQUESTS.len(), "{seen:?}");
    let messages = messages(PROTOCOLS[0]);
    assert_eq!(messages["Settings"], ["connector_config"]);
    assert_eq!(messages["ConnectorConfig"], CONNECTOR_FIELDS);
}
