//! Puts an agent on a machine that a session reaches, and connects to it.
//!
//! ```text
//! Dial --session (SSH, WinRM, through another machine)--> sh: muster agent connect --unix socket--> muster agent serve
//! ```
//!
//! The agent is this very executable, or the one for the machine's kind ([`Agents`]). It is sent to the machine if it is missing
//! there, by its hash, and kept. It is started apart from the session that started it, so a connection that breaks, or a manager that
//! dies, ends no job. The stream to it is the standard input and output of a relay, so an SSH server needs no forwarding.
//!
//! An executor that reaches machines by sessions implements [`Dial`] for each, and keeps one [`RemoteMachine`] per machine: its jobs
//! share one session and one agent, and a connection that breaks is replaced. Instances and their virtual machines do so.

mod agents;
mod command;
mod excerpt;
mod executable;
mod machine;
mod shell;
#[cfg(test)]
mod tests;
mod tunnel;

pub use agents::Agents;
pub use command::run_command;
pub use executable::Executable;
pub use machine::{Dial, Dialed, RemoteMachine, directories};
pub use shell::{CONNECTED, FAILED, MARK, OLDER};
