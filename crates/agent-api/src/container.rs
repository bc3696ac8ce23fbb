//! Paths, variables and messages that the creator of a job's container and the agent in the container agree on.
//!
//! ```text
//! agent on the host                                   container
//!   creates, attaches to and starts the container --> the entrypoint of the image starts the agent (EXECUTABLE)
//!   treats all output before it as the entrypoint's <-- the agent prints STARTED on stdout and stderr
//!   connects to SOCKET, or runs DIAL by an exec     <-- the agent prints READY on stdout: it listens on SOCKET
//! ```

/// Directory with the executable of the agent. Read-only.
pub const AGENT_DIR: &str = "/.muster";
/// Executable of the agent.
pub const EXECUTABLE: &str = "/.muster/muster-agent";
/// Directory for the files of the agent. Every user can write to it.
pub const RUN_DIR: &str = "/.muster-run";
/// Socket on which the agent listens.
pub const SOCKET: &str = "/.muster-run/agent.sock";
/// Name of [`SOCKET`] in [`RUN_DIR`].
pub const SOCKET_NAME: &str = "agent.sock";
/// Spool of the agent.
pub const SPOOL: &str = "/.muster-run/spool";

/// Directory with the job's view of the machine's mirror of its repository. Read-only.
pub const MIRROR_DIR: &str = "/.muster-git-mirror";

/// Arguments with which the executable runs as the agent of a container.
pub const SERVE: [&str; 2] = ["agent", "container"];
/// Arguments with which the executable connects its stdin and stdout to the agent of the container.
pub const DIAL: [&str; 2] = ["agent", "dial"];
/// Arguments with which the executable changes the owner of directories to the user of the container. The process must run as root.
pub const ADOPT: [&str; 2] = ["agent", "adopt"];
/// Arguments with which the executable waits until one of several addresses accepts a connection.
///
/// A timeout in milliseconds and the addresses follow.
pub const PROBE: [&str; 2] = ["agent", "probe"];

/// Arguments with which the executable waits until addresses are blocked, and then executes another program.
///
/// An option `--address=ADDRESS` for each address, `--`, and the command follow.
pub const GATE: [&str; 2] = ["agent", "gate"];
/// Arguments with which the executable blocks the addresses that follow. The process needs the capability `NET_ADMIN`.
pub const BLOCK: [&str; 2] = ["agent", "block"];

/// Variable that makes the executable the agent of a container if it is called without arguments.
///
/// The variable is needed because an entrypoint such as `sh -c` passes no arguments on.
pub const MODE: &str = "MUSTER_AGENT_MODE";
/// Value of [`MODE`].
pub const MODE_CONTAINER: &str = "container";

/// Variable with an address `host:port` on which the agent in the container listens. The agent forwards connections to this address to
/// the relay socket.
pub const RELAY: &str = "MUSTER_AGENT_RELAY";
/// Variable with the directories, one per line, that the agent in the container creates before it listens.
///
/// The agent makes them writable for every user, and must therefore run as root.
pub const DIRECTORIES: &str = "MUSTER_AGENT_DIRECTORIES";
/// Directory with the relay socket. Not below [`RUN_DIR`], because the engine mounts it from the machine of the agent on the host.
pub const RELAY_DIR: &str = "/.muster-relay";
/// Name of the relay socket in its directory.
pub const RELAY_SOCKET_NAME: &str = "relay.sock";

/// Line that the agent prints on stdout and stderr when it starts. The lines before it are from the entrypoint of the image.
pub const STARTED: &str = "muster-agent: started in the container";
/// Line that the agent prints on stdout when it accepts connections.
pub const READY: &str = "muster-agent: ready";
