//! The cases, in the order in which they are run and reported.

/// One conformance case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// ID of the case.
    /// IDs with P, H and C are from `docs/spec/fleeting.md`. L stands for the lifecycle of instances.
    pub id: &'static str,
    /// Behavior of a plugin that passes the case, such as `exits with 0 after Shutdown`.
    pub title: &'static str,
}

const fn case(id: &'static str, title: &'static str) -> Case {
    Case { id, title }
}

/// All cases.
pub const CASES: [Case; 34] = [
    case("P1", "prints usage and exits with 1 if started manually"),
    case("H1", "prints a valid handshake and serves at its address"),
    case("P2", "serves regardless of the protocol versions that the host lists, even if it lists none"),
    case("P3", "prints its version for -version, --version and version"),
    case("P4", "exits with 2 for an unknown flag, serves for an unknown argument"),
    case("P5", "fails for bootstrap without a repository"),
    case("P6", "accepts config keys in any letter case and ignores unknown ones"),
    case("P7", "rejects an empty config; accepts null and {}"),
    case("P8", "uses default connector settings if the host sends none"),
    case("L1", "returns the group's ID and maximum size from Init"),
    case("P10", "returns readable error messages"),
    case("L3", "creates the instances that Increase accepts, at most the requested number"),
    case("L6", "created instances reach the running state"),
    case("H15", "returns usable connection details from ConnectInfo"),
    case("L7", "keeps the user's connector settings in ConnectInfo"),
    case("H12", "Heartbeat succeeds for a running instance or is not implemented"),
    case("L8", "answers concurrent calls"),
    case("C1", "returns the kind of address that the connector settings select"),
    case("C4", "instances accept the credentials of ConnectInfo"),
    case("C6", "instances return output and exit status of a command"),
    case("H13", "implements Suspend and Resume if announced, rejects them otherwise"),
    case("P11", "lists the instances that Suspend accepted before an error"),
    case("L9", "deletes exactly the instances in a Decrease request"),
    case("P14", "Decrease succeeds for a deleted instance"),
    case("P12", "reports the instances that Decrease accepted before an error"),
    case("L10", "deletes all created instances in the end"),
    case("L2", "returns complete and valid lists of instances"),
    case("L4", "moves instances only forward through the states"),
    case("L5", "does not lose or delete instances without a request"),
    case("L11", "lists existing instances after a crash and restart"),
    case("H11", "exits with 0 after Shutdown"),
    case("P9", "ignores SIGINT and exits on SIGTERM"),
    case("P15", "exits when its host exits"),
    case("H16", "writes log lines that hosts can parse"),
];
