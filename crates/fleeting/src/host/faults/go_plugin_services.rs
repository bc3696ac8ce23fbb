//! Tests of go-plugin's services: the order of the shutdown calls, and a large output of the plugin.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{Behavior, TestPlugin, VALID_HANDSHAKE, always};
use crate::faulty_plugin::CallHooks;
use crate::host::Group;
use crate::protocol::plugin::grpc_controller_server::GrpcController;
use crate::protocol::plugin::grpc_stdio_server::GrpcStdio;
use crate::protocol::plugin::{Empty, StdioData, stdio_data};

/// Size of the output, which is sent in pieces of 1 KiB as Go plugins do.
const OUTPUT_BYTES: usize = 10 * 1024 * 1024;

/// go-plugin's services, with a record of the calls.
#[derive(Clone, Default)]
pub(super) struct GoPluginServices {
    calls: Arc<Mutex<Vec<&'static str>>>,
    /// Canceled when the host has read all output.
    output_read: CancellationToken,
    /// Canceled when the host has asked the process to exit.
    exit_requested: CancellationToken,
}

impl GoPluginServices {
    fn record(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

#[tonic::async_trait]
impl CallHooks for GoPluginServices {
    async fn before_update(&self) {
        self.output_read.cancelled().await;
    }

    fn on_shutdown(&self) {
        self.record("InstanceGroup.Shutdown");
    }
}

#[tonic::async_trait]
impl GrpcController for GoPluginServices {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.record("GRPCController.Shutdown");
        self.exit_requested.cancel();
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl GrpcStdio for GoPluginServices {
    type StreamStdioStream = Pin<Box<dyn Stream<Item = Result<StdioData, Status>> + Send>>;

    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        let piece = || StdioData { channel: stdio_data::Channel::Stdout as i32, data: vec![b'x'; 1024] };
        let pieces = stream::iter(0..OUTPUT_BYTES / 1024).map(move |_| Ok(piece()));
        let output_read = self.output_read.clone();
        // A plugin blocks if its output is not read. This plugin responds to `Update` only after all of its output was
        // read.
        let mark_read = stream::once(async move { output_read.cancel() }).filter_map(|()| std::future::ready(None));
        Ok(Response::new(Box::pin(pieces.chain(mark_read).chain(stream::pending()))))
    }
}

#[tokio::test]
async fn h20_large_output_does_not_block_calls() {
    let services = GoPluginServices::default();
    let plugin =
        TestPlugin::with_services(always(Behavior::Normal), VALID_HANDSHAKE, super::IDLE_BODY, Some(services.clone()));
    let mut spec = plugin.spec();
    spec.timeouts.update = Duration::from_secs(60);
    let group = Group::start(spec).await.unwrap();
    assert_eq!(group.update().await.unwrap().instances.len(), 2);
    assert!(services.output_read.is_cancelled());
    group.stop().await;
    plugin.wait_dead().await;
}

#[tokio::test]
async fn h11_plugin_cleans_up_and_exits_without_being_killed() {
    let services = GoPluginServices::default();
    let directory = tempfile::tempdir().unwrap();
    let (exit_file, status) = (directory.path().join("exit"), directory.path().join("status"));
    // The process exits with 0 when the exit file exists. After SIGKILL there would be no status file.
    let body = format!(
        "sh -c 'while ! [ -e {} ]; do sleep 0.01; done; exit 0'\nstatus=$?; echo $status >{}; exit $status",
        exit_file.display(),
        status.display()
    );
    let plugin = TestPlugin::with_services(always(Behavior::Normal), VALID_HANDSHAKE, &body, Some(services.clone()));
    let mut spec = plugin.spec();
    (spec.timeouts.exit, spec.timeouts.shutdown) = (Duration::from_secs(60), Duration::from_secs(60));
    let group = Group::start(spec).await.unwrap();
    let exit_requested = services.exit_requested.clone();
    let exit = tokio::spawn(async move {
        exit_requested.cancelled().await;
        std::fs::write(exit_file, "").unwrap();
    });
    group.stop().await;
    exit.await.unwrap();
    assert_eq!(*services.calls.lock().unwrap(), ["InstanceGroup.Shutdown", "GRPCController.Shutdown"]);
    assert_eq!(std::fs::read_to_string(status).unwrap().trim(), "0");
    plugin.wait_dead().await;
}
