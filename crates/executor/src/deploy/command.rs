//! Commands on a machine.

use muster_remote::{Exit, RemoteCommand};

use super::error::DeployError;
use super::machine::Dial;

/// Runs a command on a machine in a new session, and waits until it ends.
///
/// # Errors
/// [`DeployError`] if there is no session, or if the command cannot be run or fails.
pub async fn run_command(dial: &dyn Dial, command: &str) -> Result<(), DeployError> {
    let session = dial.dial().await?.session;
    let outcome = session.run(RemoteCommand::new(command)).await;
    session.close().await;
    let outcome = outcome?;
    let status = match outcome.exit {
        Exit::Code(0) => return Ok(()),
        Exit::Code(code) => format!("status {code}"),
        Exit::Signal(signal) => format!("SIG{signal}"),
    };
    // The message must be one line.
    let stderr = outcome.stderr.to_string().trim().lines().map(str::trim).collect::<Vec<_>>().join(" | ");
    Err(DeployError::Command { status, stderr })
}
