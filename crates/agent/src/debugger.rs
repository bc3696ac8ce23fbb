//! gRPC service of the debugger (`debugger.proto`).

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use muster_agent_api::agent as api;
use muster_agent_api::development::Breakpoint;
use muster_steps::engine::{CommandEvent, DebugError, Debugger, PauseInfo, Resume, Snapshot};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status};

use crate::job::Job;
use crate::service::Service;

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    fn debugged_job(&self, id: &str) -> Result<(Arc<Job>, Arc<Debugger>), Status> {
        let job = self.0.job(id)?;
        let debugger = job.debugger.clone();
        let debugger = debugger.ok_or_else(|| {
            Status::failed_precondition("the job was started without a debugger; start it with `muster step debug`")
        })?;
        Ok((job, debugger))
    }
}

fn to_status(error: DebugError) -> Status {
    match error {
        DebugError::NoBreakpoint => Status::not_found(error.to_string()),
        DebugError::NotPaused | DebugError::Busy => Status::failed_precondition(error.to_string()),
    }
}

fn parse(breakpoint: &str) -> Result<Breakpoint, Status> {
    breakpoint
        .parse()
        .map_err(|error: muster_agent_api::development::BreakpointError| Status::invalid_argument(error.to_string()))
}

fn to_api_state(snapshot: Snapshot) -> api::DebugState {
    let step = |(path, state): (String, &'static str)| api::DebugStep { path, state: state.to_owned() };
    let pause = |PauseInfo { number, path, is_after, failure }| api::Pause { number, path, is_after, failure };
    api::DebugState {
        steps: snapshot.steps.into_iter().map(step).collect(),
        breakpoints: snapshot.breakpoints.iter().map(ToString::to_string).collect(),
        pause: snapshot.pause.map(pause),
    }
}

#[tonic::async_trait]
impl api::debugger_server::Debugger for Service {
    type AttachStream = Events<api::DebugState>;

    async fn attach(&self, request: Request<api::AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        let (job, debugger) = self.debugged_job(&request.into_inner().id)?;
        // A slow client skips states, but then gets the latest state.
        let (states, receiver) = mpsc::channel(1);
        let mut attached = debugger.attach();
        tokio::spawn(async move {
            loop {
                if states.send(Ok(to_api_state(attached.snapshot()))).await.is_err() {
                    return;
                }
                tokio::select! {
                    biased;
                    () = states.closed() => return,
                    _ = job.wait() => break,
                    () = attached.changed() => {}
                }
            }
            let _ = states.send(Ok(to_api_state(attached.snapshot()))).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn set_breakpoint(
        &self,
        request: Request<api::BreakpointRequest>,
    ) -> Result<Response<api::BreakpointResponse>, Status> {
        let request = request.into_inner();
        self.debugged_job(&request.id)?.1.set_breakpoint(parse(&request.breakpoint)?);
        Ok(Response::new(api::BreakpointResponse {}))
    }

    async fn clear_breakpoint(
        &self,
        request: Request<api::BreakpointRequest>,
    ) -> Result<Response<api::BreakpointResponse>, Status> {
        let request = request.into_inner();
        let breakpoint = parse(&request.breakpoint)?;
        self.debugged_job(&request.id)?.1.clear_breakpoint(&breakpoint).map_err(to_status)?;
        Ok(Response::new(api::BreakpointResponse {}))
    }

    async fn inspect(&self, request: Request<api::InspectRequest>) -> Result<Response<api::InspectResponse>, Status> {
        let request = request.into_inner();
        let call = self.debugged_job(&request.id)?.1.inspect(request.pause).map_err(to_status)?;
        let call = serde_json::to_string(&call).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(api::InspectResponse { call }))
    }

    type ExecuteStream = Events<api::ExecuteResponse>;

    async fn execute(&self, request: Request<api::ExecuteRequest>) -> Result<Response<Self::ExecuteStream>, Status> {
        let request = request.into_inner();
        let (_, debugger) = self.debugged_job(&request.id)?;
        let events = debugger.execute(request.pause, request.command).map_err(to_status)?;
        let events = UnboundedReceiverStream::new(events).map(|event| {
            use api::execute_response::Event;
            let event = match event {
                CommandEvent::Output(bytes) => Event::Output(bytes),
                CommandEvent::Exited(code) => Event::ExitCode(code),
                CommandEvent::Failed(message) => Event::Error(message),
            };
            Ok(api::ExecuteResponse { event: Some(event) })
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn resume(&self, request: Request<api::ResumeRequest>) -> Result<Response<api::ResumeResponse>, Status> {
        let request = request.into_inner();
        let action = match request.action() {
            api::ResumeAction::ResumeContinue => Resume::Continue,
            api::ResumeAction::ResumeNext => Resume::Next,
            api::ResumeAction::ResumeSkip => Resume::Skip,
            api::ResumeAction::ResumeFail => Resume::Fail,
        };
        self.debugged_job(&request.id)?.1.resume(request.pause, action).map_err(to_status)?;
        Ok(Response::new(api::ResumeResponse {}))
    }
}
