//! Checks that proxies in the environment are not used for plugins.

use std::time::Duration;

use muster_fleeting::host::{Group, PluginSpec};

/// Set in the child process, whose environment contains proxies.
const HAS_PROXIES: &str = "MUSTER_TEST_HAS_PROXIES";

/// Time after which the child process counts as hanging.
const HANGS: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_proxy_of_the_environment_sees_nothing_of_plugins() {
    if std::env::var_os(HAS_PROXIES).is_some() {
        Group::start(PluginSpec::new(env!("CARGO_BIN_EXE_fleeting-plugin-toy"))).await.unwrap().stop().await;
        return;
    }
    let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let mut again = tokio::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "proxies::a_proxy_of_the_environment_sees_nothing_of_plugins"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        again.env(name, &url);
    }
    again.env_remove("no_proxy").env_remove("NO_PROXY").env_remove("REQUEST_METHOD").env(HAS_PROXIES, "1");
    let output = tokio::select! {
        biased;
        // A request of the process would arrive before its end.
        _ = proxy.accept() => panic!("the proxy was asked"),
        output = tokio::time::timeout(HANGS, again.kill_on_drop(true).output()) => output.expect("it hangs").unwrap(),
    };
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}
