//! Runs a test again in a child process whose environment names a proxy.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::process::Command;

const HAS_PROXIES: &str = "MUSTER_TEST_HAS_PROXIES";
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn is_child() -> bool {
    std::env::var_os(HAS_PROXIES).is_some()
}

/// Runs the test with this full name in a child process. It must succeed without a request to the proxy.
pub(crate) async fn assert_proxy_is_not_used(test: &str) {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test]).kill_on_drop(true);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        child.env(name, &url);
    }
    // With REQUEST_METHOD set, HTTP clients ignore HTTP_PROXY (as in CGI), and the test would prove nothing.
    child.env_remove("no_proxy").env_remove("NO_PROXY").env_remove("REQUEST_METHOD").env(HAS_PROXIES, "1");
    let output = tokio::select! {
        biased;
        // With `biased`, a request is noticed even if the process has already exited.
        _ = proxy.accept() => panic!("the proxy received a request"),
        output = tokio::time::timeout(TIMEOUT, child.output()) => output.expect("the child process hangs").unwrap(),
    };
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}
