//! Tests the two kinds of sockets that a plugin can choose.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, UnixStream};

use super::*;

async fn assert_calls_succeed(plugin: &TestPlugin) {
    let group = plugin.start().await;
    let states = group.update().await.unwrap().instances;
    assert_eq!(states.len(), 2, "{states:?}");
    group.connect_info(&id("i1")).await.unwrap();
    group.heartbeat(&id("i1")).await.unwrap();
    group.increase(1).await.unwrap();
    group.decrease(&[id("i1")]).await.unwrap();
    group.stop().await;
    plugin.wait_dead().await;
}

/// Requirement R053: the plugin chooses the socket in its handshake.
#[tokio::test]
async fn h8_host_connects_over_unix_socket_or_tcp() {
    assert_calls_succeed(&TestPlugin::new(Behavior::Normal)).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let plugin =
        TestPlugin::with_script(always(Behavior::Normal), &format!("echo '1|0|tcp|{address}|grpc|'"), IDLE_BODY);
    let socket = plugin.directory.path().join("socket");
    // The service listens on a Unix socket; the host connects to this relay.
    let relay = tokio::spawn(async move {
        let (mut host, _) = listener.accept().await.unwrap();
        let mut service = UnixStream::connect(&socket).await.unwrap();
        let _ = copy_bidirectional(&mut host, &mut service).await;
    });
    assert_calls_succeed(&plugin).await;
    relay.await.unwrap();
}
