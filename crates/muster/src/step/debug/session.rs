//! Session of the debugger: its connection and its prompt.

use std::time::Duration;

use muster_agent_api::agent::debugger_client::DebuggerClient;
use muster_agent_api::agent::execute_response::Event;
use muster_agent_api::agent::{
    AttachRequest, BreakpointRequest, DebugState, ExecuteRequest, InspectRequest, ListJobsRequest, Pause, ResumeAction,
    ResumeRequest,
};
use muster_agent_api::client::{AgentConnection, AgentError};
use muster_agent_api::development::Breakpoint;
use muster_agent_api::result::{CallRecord, JobResult};
use muster_agent_api::step_runner::RunRequest;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::super::local::{LocalAgent, LocalError, cancel_on_interrupt};
use super::super::{run::print_log, show};
use super::command::{HELP, PromptCommand};
use crate::ci::ui;

const PROMPT: &str = "(step) ";
/// Maximum time to wait for the log of the steps before the prompt is shown.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two attempts to attach to a job that the agent does not have yet.
const ATTACH_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct Session {
    connection: AgentConnection,
    debugger: DebuggerClient<Channel>,
    id: String,
    state: DebugState,
    /// Pause at which the prompt is shown. `None` while the job runs.
    pause: Option<Pause>,
    /// Number of the last pause that was resumed. States that still show it are outdated.
    resumed: u64,
    input: Lines<BufReader<Stdin>>,
    /// Number of bytes of the log that were printed.
    printed: watch::Sender<u64>,
}

impl Session {
    pub(super) fn new(connection: &AgentConnection, id: &str) -> Self {
        Self {
            connection: connection.clone(),
            debugger: connection.debugger(),
            id: id.to_owned(),
            state: DebugState::default(),
            pause: None,
            resumed: 0,
            input: BufReader::new(tokio::io::stdin()).lines(),
            printed: watch::Sender::new(0),
        }
    }

    pub(super) async fn run(mut self, agent: &LocalAgent, request: RunRequest) -> Result<JobResult, LocalError> {
        let (printed, id, connection) = (self.printed.clone(), self.id.clone(), self.connection.clone());
        let print = |bytes: &[u8]| {
            print_log(bytes);
            printed.send_modify(|printed| *printed += bytes.len() as u64);
        };
        // The job may reach its first breakpoint before the prompt is attached. It then waits there.
        let mut running = std::pin::pin!(agent.run(request, print));
        let prompt = async {
            self.prompt().await?;
            // The job has ended. Wait here, because `agent.run` returns its result.
            std::future::pending::<Result<JobResult, LocalError>>().await
        };
        tokio::select! {
            result = &mut running => result,
            error = prompt => error,
            error = cancel_on_interrupt(&connection, &id) => Err(error),
        }
    }

    async fn prompt(&mut self) -> Result<(), LocalError> {
        let mut states = loop {
            match self.debugger.attach(AttachRequest { id: self.id.clone() }).await {
                Ok(states) => break states.into_inner(),
                // The agent does not have the job yet.
                Err(status) if status.code() == Code::NotFound => tokio::time::sleep(ATTACH_INTERVAL).await,
                Err(status) => return Err(AgentError::from(status).into()),
            }
        };
        loop {
            tokio::select! {
                state = states.message() => match state.map_err(AgentError::from)? {
                    Some(state) => self.on_state(state).await,
                    None => return Ok(()),
                },
                line = self.input.next_line(), if self.pause.is_some() => match line {
                    Ok(Some(line)) => self.on_line(&line).await?,
                    Ok(None) | Err(_) => self.detach().await?,
                },
            }
        }
    }

    async fn on_state(&mut self, state: DebugState) {
        let pause = state.pause.clone().filter(|pause| pause.number > self.resumed);
        self.state = state;
        if pause.is_some() && pause != self.pause {
            self.wait_for_log().await;
        }
        if let Some(new) = pause.as_ref().filter(|pause| Some(*pause) != self.pause.as_ref()) {
            let position = if new.is_after { "after" } else { "before" };
            let failure =
                if new.failure.is_empty() { String::new() } else { format!(", which failed: {}", new.failure) };
            ui::out(&format!("Paused {position} {}{failure}\n{PROMPT}", ui::paint(ui::BOLD, &new.path)));
        }
        self.pause = pause;
    }

    /// Waits until everything that the steps have logged so far is printed, at most [`LOG_TIMEOUT`].
    async fn wait_for_log(&self) {
        let Ok(answer) = self.connection.agent().list_jobs(ListJobsRequest {}).await else { return };
        let job = answer.into_inner().jobs.into_iter().find(|job| job.id == self.id);
        let length = job.and_then(|job| u64::try_from(job.log_bytes).ok()).unwrap_or_default();
        let mut printed = self.printed.subscribe();
        // If the log takes longer, the prompt is printed before the last lines of the log, which is harmless.
        let _ = tokio::time::timeout(LOG_TIMEOUT, printed.wait_for(|printed| *printed >= length)).await;
    }

    /// Executes the command in `line`. Shows the prompt again if the job stays paused.
    async fn on_line(&mut self, line: &str) -> Result<(), LocalError> {
        let result = match PromptCommand::parse(line) {
            Ok(command) => self.execute(command).await,
            Err(error) => {
                ui::out(&format!("{error}\n"));
                Ok(())
            }
        };
        match result {
            // The job may have been canceled in the meantime.
            Err(status) if status.code() == Code::FailedPrecondition || status.code() == Code::NotFound => {
                ui::out(&format!("{}\n", status.message()));
            }
            Err(status) => return Err(AgentError::from(status).into()),
            Ok(()) => {}
        }
        if self.pause.is_some() {
            ui::out(PROMPT);
        }
        Ok(())
    }

    async fn execute(&mut self, command: PromptCommand) -> Result<(), Status> {
        match command {
            PromptCommand::Empty => {}
            PromptCommand::Help => ui::out(HELP),
            PromptCommand::Continue => self.resume(ResumeAction::ResumeContinue).await?,
            PromptCommand::Next => self.resume(ResumeAction::ResumeNext).await?,
            PromptCommand::Skip => self.resume(ResumeAction::ResumeSkip).await?,
            PromptCommand::Fail => self.resume(ResumeAction::ResumeFail).await?,
            PromptCommand::Info => ui::out(&show::call(&self.inspect().await?, "")),
            PromptCommand::Inputs => ui::out(&show::values(&self.inspect().await?.inputs, "")),
            PromptCommand::Outputs => ui::out(&show::values(&self.inspect().await?.outputs, "")),
            PromptCommand::Env(name) => {
                let mut env = self.inspect().await?.env;
                env.retain(|key, _| name.as_ref().is_none_or(|name| name == key));
                ui::out(&show::values(&env, ""));
            }
            PromptCommand::Execute(command) => self.shell(command).await?,
            PromptCommand::Steps => ui::out(&self.steps()),
            PromptCommand::Break(breakpoint) => {
                self.debugger.set_breakpoint(self.breakpoint_request(&breakpoint)).await?;
                let text = breakpoint.to_string();
                if !self.state.breakpoints.contains(&text) {
                    self.state.breakpoints.push(text);
                }
            }
            PromptCommand::Clear(breakpoint) => {
                self.debugger.clear_breakpoint(self.breakpoint_request(&breakpoint)).await?;
                self.state.breakpoints.retain(|known| *known != breakpoint.to_string());
            }
            PromptCommand::Breakpoints => {
                ui::out(&self.state.breakpoints.iter().map(|it| format!("{it}\n")).collect::<String>())
            }
            PromptCommand::Detach => self.detach().await.map_err(|error| Status::unavailable(error.to_string()))?,
            PromptCommand::Quit => {
                self.pause = None;
                self.connection.cancel(&self.id).await.map_err(|error| Status::unavailable(error.to_string()))?;
            }
        }
        Ok(())
    }

    fn breakpoint_request(&self, breakpoint: &Breakpoint) -> BreakpointRequest {
        BreakpointRequest { id: self.id.clone(), breakpoint: breakpoint.to_string() }
    }

    fn pause_number(&self) -> u64 {
        self.pause.as_ref().map(|pause| pause.number).unwrap_or_default()
    }

    async fn resume(&mut self, action: ResumeAction) -> Result<(), Status> {
        let number = self.pause_number();
        let request = ResumeRequest { id: self.id.clone(), pause: number, action: action.into() };
        self.debugger.resume(request).await?;
        self.resumed = number;
        self.pause = None;
        Ok(())
    }

    async fn inspect(&mut self) -> Result<CallRecord, Status> {
        let request = InspectRequest { id: self.id.clone(), pause: self.pause_number() };
        let answer = self.debugger.inspect(request).await?.into_inner();
        serde_json::from_str(&answer.call).map_err(|error| Status::internal(error.to_string()))
    }

    async fn shell(&mut self, command: String) -> Result<(), Status> {
        let command = vec!["sh".to_owned(), "-c".to_owned(), command];
        let request = ExecuteRequest { id: self.id.clone(), pause: self.pause_number(), command };
        let mut events = self.debugger.execute(request).await?.into_inner();
        while let Some(message) = events.message().await? {
            match message.event {
                Some(Event::Output(bytes)) => print_log(&bytes),
                Some(Event::ExitCode(0)) | None => {}
                Some(Event::ExitCode(code)) => ui::out(&format!("exit code {code}\n")),
                Some(Event::Error(error)) => ui::out(&format!("{error}\n")),
            }
        }
        Ok(())
    }

    fn steps(&self) -> String {
        let line = |path: &str, state: &str| {
            let depth = path.matches('/').count();
            let name = path.rsplit('/').next().unwrap_or(path);
            let is_paused = self.pause.as_ref().is_some_and(|pause| pause.path == path);
            format!("{} {state:8} {}{name}\n", if is_paused { ">" } else { " " }, "  ".repeat(depth))
        };
        self.state.steps.iter().map(|step| line(&step.path, &step.state)).collect()
    }

    /// Clears all breakpoints, and lets the job run to its end.
    async fn detach(&mut self) -> Result<(), LocalError> {
        for breakpoint in std::mem::take(&mut self.state.breakpoints) {
            let request = BreakpointRequest { id: self.id.clone(), breakpoint };
            self.debugger.clear_breakpoint(request).await.map_err(AgentError::from)?;
        }
        self.resume(ResumeAction::ResumeContinue).await.map_err(AgentError::from)?;
        Ok(())
    }
}
