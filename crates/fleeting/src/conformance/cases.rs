//! The cases, in the order in which they are run and reported.

/// One conformance case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Id of the case. P, H and C are cases of `docs/spec/fleeting.md`; L stands for the life cycle of instances.
    pub id: &'static str,
    /// What a plugin that passes does.
    pub title: &'static str,
}

const fn case(id: &'static str, title: &'static str) -> Case {
    Case { id, title }
}

/// All cases.
pub const CASES: [Case; 34] = [
    case("P1", "started by a person, it says what it is and ends with 1"),
    case("H1", "its first line is a handshake, and somebody answers there"),
    case("P2", "it answers whatever versions the host lists, also none"),
    case("P3", "-version, --version and version say what it is"),
    case("P4", "an unknown flag ends with 2, an unknown word serves"),
    case("P5", "bootstrap without a repository fails"),
    case("P6", "keys of its settings come in any letter case, unknown ones are ignored"),
    case("P7", "settings without content are an error, null and {} are none"),
    case("P8", "a host that sends no connector settings means empty ones"),
    case("L1", "Init names the group, and its largest size"),
    case("P10", "what goes wrong is said in words"),
    case("L3", "Increase makes as many as it says, and no more than were asked for"),
    case("L6", "instances that were made come up"),
    case("H15", "ConnectInfo says how to reach an instance"),
    case("L7", "what the user says about connections wins"),
    case("H12", "Heartbeat is fine for a running instance, or not there"),
    case("L8", "calls that hosts make at the same time are answered"),
    case("C1", "an instance has the address that is to be used"),
    case("C4", "an instance can be logged in to with what ConnectInfo says"),
    case("C6", "a command's output and exit code come back"),
    case("H13", "Suspend and Resume work where they are announced, and are refused where not"),
    case("P11", "Suspend says what it did before it failed"),
    case("L9", "Decrease removes those that it is asked for, and no others"),
    case("P14", "removing what is gone is a success"),
    case("P12", "what was removed before an error is told"),
    case("L10", "all that was made is gone in the end"),
    case("L2", "snapshots are whole and make sense"),
    case("L4", "states only move forward"),
    case("L5", "no instance is forgotten, or lost without being asked for"),
    case("L11", "after a crash, a new process knows the instances"),
    case("H11", "told to stop, it ends with 0"),
    case("P9", "SIGINT is no matter, SIGTERM ends it"),
    case("P15", "it ends with its host"),
    case("H16", "its log lines can be read"),
];
