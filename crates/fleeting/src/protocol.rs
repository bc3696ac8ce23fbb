//! Constants of the handshake (docs/spec/fleeting.md, section 1.1) and the generated messages.

/// Version of the handshake.
pub(crate) const CORE_VERSION: &str = "1";
/// The only version of the fleeting protocol.
pub(crate) const APP_VERSION: &str = "0";
/// Environment variable that a plugin checks to know that a host started it.
pub(crate) const COOKIE_KEY: &str = "FLEETING_INSTANCE_GROUP_PLUGIN";
/// Value of [`COOKIE_KEY`].
pub(crate) const COOKIE_VALUE: &str = "4c6410b1-cb78-4962-8c76-ab936d0ea908";
/// Environment variable with the protocol versions that the host accepts.
#[cfg(unix)]
pub(crate) const VERSIONS_KEY: &str = "PLUGIN_PROTOCOL_VERSIONS";
/// Environment variable with the directory for the plugin's socket.
#[cfg(unix)]
pub(crate) const SOCKET_DIR_KEY: &str = "PLUGIN_UNIX_SOCKET_DIR";
/// The only capability that the protocol defines.
pub(crate) const SUSPEND_RESUME: &str = "suspend_resume";

/// `google.rpc.Status`.
/// Its details list the instances for which `Suspend` or `Resume` succeeded before an error. See docs/spec/fleeting.md, section 2.4.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RichStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<prost_types::Any>,
}

#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(crate) mod group {
    tonic::include_proto!("proto");
}

#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(crate) mod plugin {
    tonic::include_proto!("plugin");
}

#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(crate) mod extension {
    tonic::include_proto!("muster.fleeting.v1");
}

#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(crate) mod nesting {
    tonic::include_proto!("nesting");
}

#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(crate) mod health {
    tonic::include_proto!("grpc.health.v1");
}
