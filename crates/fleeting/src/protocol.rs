//! What stands on the wire: constants of the handshake (fleeting.md 1.1) and the generated messages.

/// Version of the handshake itself.
pub(crate) const CORE_VERSION: &str = "1";
/// The one version of the application's protocol.
pub(crate) const APP_VERSION: &str = "0";
/// Variable by which a plugin knows that a host started it.
pub(crate) const COOKIE_KEY: &str = "FLEETING_INSTANCE_GROUP_PLUGIN";
/// Its value.
pub(crate) const COOKIE_VALUE: &str = "4c6410b1-cb78-4962-8c76-ab936d0ea908";
/// Variable with the application versions that the host accepts.
#[cfg(unix)]
pub(crate) const VERSIONS_KEY: &str = "PLUGIN_PROTOCOL_VERSIONS";
/// Variable with the directory for the plugin's socket.
#[cfg(unix)]
pub(crate) const SOCKET_DIR_KEY: &str = "PLUGIN_UNIX_SOCKET_DIR";
/// The one capability that the protocol knows.
pub(crate) const SUSPEND_RESUME: &str = "suspend_resume";

/// `google.rpc.Status`, in which a plugin says what it did before it failed (fleeting.md 2.4).
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RichStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<prost_types::Any>,
}

/// `proto.InstanceGroup` and its messages.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(crate) mod group {
    tonic::include_proto!("proto");
}

/// go-plugin's own services.
#[expect(unreachable_pub, reason = "generated")]
pub(crate) mod plugin {
    tonic::include_proto!("plugin");
}

/// What is offered beside the protocol.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(crate) mod extension {
    tonic::include_proto!("muster.fleeting.v1");
}

/// The hypervisor daemon of nested machines.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(crate) mod nesting {
    tonic::include_proto!("nesting");
}

/// gRPC's health service.
#[expect(unreachable_pub, reason = "generated")]
pub(crate) mod health {
    tonic::include_proto!("grpc.health.v1");
}
