//! Checks that proxies in the environment are not used for plugins.

use muster_fleeting::host::{Group, PluginSpec};

use crate::behind_proxies;

#[tokio::test]
async fn plugins_are_reached_without_proxies() {
    if behind_proxies::is_child() {
        Group::start(PluginSpec::new(env!("CARGO_BIN_EXE_fleeting-plugin-toy"))).await.unwrap().stop().await;
        return;
    }
    behind_proxies::assert_proxy_is_not_used("proxies::plugins_are_reached_without_proxies").await;
}
