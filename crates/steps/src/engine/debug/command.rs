//! Commands that a debugger runs in the environment of a paused step.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_job::TerminationCause;
use muster_job::mask::{Masker, Secrets};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::engine::masked_log::MaskedLog;
use crate::log::{Log, Stream};
use crate::process::{Command, ProcessEnd, Processes};
use crate::stop::StopToken;

const MAX_OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// Event of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandEvent {
    /// Standard output and standard error.
    Output(Vec<u8>),
    /// The command exited with this code. -1 means that a signal ended it. This is the last event.
    Exited(i32),
    /// The command could not be run. This is the last event.
    Failed(String),
}

/// Events of a command. Dropping the receiver ends the command.
pub type CommandOutput = mpsc::UnboundedReceiver<CommandEvent>;

#[derive(Debug)]
pub(in crate::engine) struct DebugCommand {
    command: Vec<String>,
    events: mpsc::UnboundedSender<CommandEvent>,
    log: Arc<OutputLog>,
}

impl DebugCommand {
    pub(super) fn new(command: Vec<String>, secrets: &Secrets) -> (Self, CommandOutput) {
        // The channel needs no bound, because `MAX_OUTPUT_BYTES` limits the output.
        let (events, output) = mpsc::unbounded_channel();
        let state = OutputState { masker: Masker::new(secrets), bytes: 0 };
        let log = Arc::new(OutputLog { events: events.clone(), state: Mutex::new(state) });
        (Self { command, events, log }, output)
    }
}

pub(in crate::engine) struct CommandContext<'a> {
    pub(in crate::engine) processes: &'a Processes,
    pub(in crate::engine) env: Vec<(OsString, OsString)>,
    pub(in crate::engine) work_dir: PathBuf,
    pub(in crate::engine) grace: Duration,
}

/// Runs a command until it ends, its client disconnects, or `stop` is stopped. Then ends all processes of the command.
///
/// `sensitive` masks the sensitive values of the steps.
pub(in crate::engine) async fn run_command(
    command: DebugCommand,
    context: CommandContext<'_>,
    sensitive: Option<&MaskedLog>,
    stop: &StopToken,
) {
    let DebugCommand { command, events, log } = command;
    let inner: Arc<dyn Log> = Arc::<OutputLog>::clone(&log);
    let masked: Arc<dyn Log> = match sensitive {
        Some(sensitive) => Arc::new(sensitive.with_same_values(inner)),
        None => inner,
    };
    let event = run(command, context, &masked, &events, stop).await;
    masked.end_lines();
    drop(masked);
    log.finish();
    let _ = events.send(event);
}

async fn run(
    command: Vec<String>,
    context: CommandContext<'_>,
    log: &Arc<dyn Log>,
    events: &mpsc::UnboundedSender<CommandEvent>,
    stop: &StopToken,
) -> CommandEvent {
    let CommandContext { processes, env, work_dir, grace } = context;
    let mut words = command.into_iter();
    let Some(program) = words.next() else { return CommandEvent::Failed("the command is empty".to_owned()) };
    let processes = match processes.separate_set("debugger") {
        Ok(processes) => processes,
        Err(error) => return CommandEvent::Failed(format!("failed to prepare the command: {error}")),
    };
    let command = Command {
        program: program.into(),
        args: words.map(Into::into).collect(),
        env,
        work_dir: Some(work_dir),
        ..Command::default()
    };
    let stop = stop.child();
    let running = processes.run(command, log, &stop, grace);
    let ended = stop.stop_on(events.closed(), TerminationCause::CanceledByUser, running).await;
    processes.finish(grace).await;
    match ended {
        Ok(ProcessEnd::Exited(status)) if status.signal().is_none() => {
            CommandEvent::Exited(status.code().unwrap_or_default())
        }
        Ok(ProcessEnd::Exited(_) | ProcessEnd::Stopped(_)) => CommandEvent::Exited(-1),
        Err(error) => CommandEvent::Failed(muster_job::error_chain(&error)),
    }
}

/// Log that sends the output of a command to its client, without the secrets of the job.
#[derive(Debug)]
struct OutputLog {
    events: mpsc::UnboundedSender<CommandEvent>,
    state: Mutex<OutputState>,
}

#[derive(Debug)]
struct OutputState {
    masker: Masker,
    bytes: usize,
}

impl OutputLog {
    /// Sends the output that the masker held back as a possible start of a secret.
    fn finish(&self) {
        let mut state = self.state.lock();
        let mut out = Vec::new();
        state.masker.finish(&mut out);
        self.send(&mut state, out);
    }

    fn send(&self, state: &mut OutputState, out: Vec<u8>) {
        if out.is_empty() || state.bytes > MAX_OUTPUT_BYTES {
            return;
        }
        state.bytes += out.len();
        let _ = self.events.send(CommandEvent::Output(out));
        if state.bytes > MAX_OUTPUT_BYTES {
            let _ = self.events.send(CommandEvent::Output(b"\n[further output is dropped]\n".to_vec()));
        }
    }
}

impl Log for OutputLog {
    fn write(&self, _: Stream, bytes: &[u8]) {
        let mut state = self.state.lock();
        let mut out = Vec::new();
        state.masker.push(bytes, &mut out);
        self.send(&mut state, out);
    }
}
