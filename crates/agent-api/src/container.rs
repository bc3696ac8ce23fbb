//! Paths, variables and messages for a container's creator and the agent in it.
//!
//! ```text
//! agent on the host                                   container
//!   creates, attaches to and starts the container --> the entrypoint of the image starts the agent (EXECUTABLE)
//!   treats earlier output as the entrypoint's       <-- the agent prints STARTED on stdout and stderr
//!   connects to SOCKET, or runs DIAL by an exec     <-- the agent prints READY on stdout: it listens on SOCKET
//! ```

/// Directory with the executable of the agent. Read-only.
pub const AGENT_DIR: &str = "/.muster";
/// Executable of the agent.
pub const EXECUTABLE: &str = "/.muster/muster-agent";
/// Directory for files of the agent, writable for every user.
pub const RUN_DIR: &str = "/.muster-run";
/// Socket on which the agent listens.
pub const SOCKET: &str = "/.muster-run/agent.sock";
/// Name of [`SOCKET`] in [`RUN_DIR`].
pub const SOCKET_NAME: &str = "agent.sock";
/// Spool of the agent.
pub const SPOOL: &str = "/.muster-run/spool";

/// Directory with the job's view of the machine's mirror of its repository. Read-only.
pub const MIRROR_DIR: &str = "/.muster-git-mirror";

/// Arguments to run as the agent of a container.
pub const SERVE: [&str; 2] = ["agent", "container"];
/// Arguments to connect stdin and stdout to the agent of the container.
pub const DIAL: [&str; 2] = ["agent", "dial"];
/// Arguments to change the owner of directories to the user of the container. Requires root.
pub const ADOPT: [&str; 2] = ["agent", "adopt"];
/// Arguments to wait until one of several addresses accepts a connection. Followed by a timeout in milliseconds and the
/// addresses.
pub const PROBE: [&str; 2] = ["agent", "probe"];

/// Arguments to execute a command once addresses are blocked. Followed by `--address=ADDRESS` for each address, `--`,
/// and the command.
pub const GATE: [&str; 2] = ["agent", "gate"];
/// Arguments to block the addresses that follow. Requires the capability `NET_ADMIN`.
pub const BLOCK: [&str; 2] = ["agent", "block"];

/// Variable that replaces the arguments [`SERVE`], which an entrypoint such as `sh -c` does not pass on.
pub const MODE: &str = "MUSTER_AGENT_MODE";
/// Value of [`MODE`].
pub const MODE_CONTAINER: &str = "container";

/// Variable with the address `host:port` on which the agent in the container listens. The agent forwards each
/// connection that it accepts there to the relay socket.
pub const RELAY: &str = "MUSTER_AGENT_RELAY";
/// Variable with directories, one per line, that the agent in the container creates first, writable for every user.
/// Requires root.
pub const DIRECTORIES: &str = "MUSTER_AGENT_DIRECTORIES";
/// Directory with the relay socket, mounted from the machine of the agent on the host.
pub const RELAY_DIR: &str = "/.muster-relay";
/// Name of the relay socket in its directory.
pub const RELAY_SOCKET_NAME: &str = "relay.sock";

/// First line of the agent on stdout and stderr. Earlier lines are from the image's entrypoint.
pub const STARTED: &str = "muster-agent: started in the container";
/// Line of the agent on stdout when it accepts connections.
pub const READY: &str = "muster-agent: ready";
