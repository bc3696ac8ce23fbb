//! The password of WinRM is sent only to the machine, not in clear text and not to a proxy.

use std::time::Duration;

use muster_remote::{Exit, KnownHosts, RemoteCommand, dial};

use crate::behind_proxies;
use crate::winrm::{machine, routes, winrm_target};
use crate::winrm_tls;

#[tokio::test]
async fn plain_http_is_rejected_before_anything_is_sent() {
    let shared = crate::winrm::SharedMachine::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = winrm_target(listener.local_addr().unwrap(), "winrm");
    let requests = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counter = std::sync::Arc::clone(&requests);
    let count_requests =
        axum::middleware::from_fn(move |request: axum::extract::Request, next: axum::middleware::Next| {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            next.run(request)
        });
    let app = routes(&shared).layer(count_requests);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let dialed = dial(&target, &KnownHosts::default()).await;
    assert_eq!(requests.load(std::sync::atomic::Ordering::Relaxed), 0, "the password must not be sent in clear text");
    let error = dialed.err().unwrap().to_string();
    assert!(error.contains("winrm+https") && error.contains("allow_unencrypted = true"), "{error}");
}

#[tokio::test]
async fn proxies_in_the_environment_are_ignored() {
    if behind_proxies::is_child() {
        let (_machine, plain) = machine().await;
        let secure = winrm_tls::target().await;
        for mut target in [plain, secure] {
            target.timeout = Duration::from_secs(10);
            let session = dial(&target, &KnownHosts::default()).await.unwrap();
            assert_eq!(session.run(RemoteCommand::new("both & <more>")).await.unwrap().exit, Exit::Code(3));
        }
        return;
    }
    behind_proxies::assert_proxy_is_not_used("winrm_private::proxies_in_the_environment_are_ignored").await;
}
