//! Tests the two kinds of sockets that a plugin can choose.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, UnixStream};

use super::*;

/// Makes the calls of a complete life cycle.
async fn is_called(fake: &Fake) {
    let group = fake.start().await;
    let states = group.update().await.unwrap().instances;
    assert_eq!(states.len(), 2, "{states:?}");
    group.connect_info(&id("i1")).await.unwrap();
    group.heartbeat(&id("i1")).await.unwrap();
    group.increase(1).await.unwrap();
    group.decrease(&[id("i1")]).await.unwrap();
    group.stop().await;
    fake.ended().await;
}

/// R053: the plugin chooses the socket in its handshake.
#[tokio::test]
async fn h8_a_plugin_is_called_over_a_local_socket_or_over_tcp() {
    is_called(&Fake::new(Manner::Well)).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let fake = Fake::with(always(Manner::Well), &format!("echo '1|0|tcp|{address}|grpc|'"), SLEEP);
    let socket = fake.directory.path().join("socket");
    // The service listens on a Unix socket; the host connects to this relay.
    let relay = tokio::spawn(async move {
        let (mut outside, _) = listener.accept().await.unwrap();
        let mut inside = UnixStream::connect(&socket).await.unwrap();
        let _ = copy_bidirectional(&mut outside, &mut inside).await;
    });
    is_called(&fake).await;
    relay.await.unwrap();
}
