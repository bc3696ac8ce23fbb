//! Tests killed installs, concurrent installs, installs whose files were changed, and version ranges at a registry without a list of tags.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_fleeting::install::{InstallOptions, InstallOutcome};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::install::{Fixture, reference, response, text, token_registry};
use crate::registry::archive;

const ACCEPT: InstallOptions = InstallOptions { upgrade: false, accept_new_digest: true };

#[tokio::test]
async fn next_install_removes_leftovers_of_killed_install() {
    let Some(fixture) = Fixture::new() else { return };
    for version in ["1.0.0", "1.1.0"] {
        fixture.registry.push("g/p", version, &[version], &archive(version.as_bytes())).await;
    }
    let installed = fixture.install("g/p:1.0.0").await.unwrap().installed;
    let parent = installed.executable.parent().unwrap().parent().unwrap();
    let create_leftovers = || {
        for name in [".new-a1b2c3", ".old-a1b2c3/old"] {
            std::fs::create_dir_all(parent.join(name)).unwrap();
            std::fs::write(parent.join(name).join("plugin"), "partial").unwrap();
        }
    };
    create_leftovers();
    fixture.install("g/p:1.1.0").await.unwrap();
    assert_eq!(fixture.names("g/p"), ["1.0.0", "1.1.0"]);
    create_leftovers();
    fixture.store.remove(&fixture.registry.reference("g/p:1.1.0"), false).await.unwrap();
    assert_eq!(fixture.names("g/p"), ["1.0.0"]);
}

#[tokio::test]
async fn damaged_version_is_repaired_in_place() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    let installed = fixture.install("g/p").await.unwrap().installed;
    assert_eq!(
        fixture.store.lock_file().metadata().unwrap().permissions().mode() & 0o777,
        0o644,
        "other users must be able to verify the plugins"
    );
    // Publish a newer version, to show that a repair installs the old version again.
    fixture.registry.push("g/p", "1.1.0", &["1.1.0"], &archive(b"newer")).await;
    std::fs::write(&installed.executable, b"two").unwrap();
    // The directory is large, so that removing it before the rename would leave a noticeable gap.
    for name in 0..3000 {
        std::fs::write(installed.executable.with_file_name(name.to_string()), b"").unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (path, is_stopped) = (installed.executable.clone(), Arc::clone(&stop));
    let watch = std::thread::spawn(move || {
        let mut missing = 0;
        while !is_stopped.load(Ordering::Relaxed) {
            missing += u32::from(!path.is_file());
        }
        missing
    });
    let result = fixture.install("g/p").await.unwrap();
    stop.store(true, Ordering::Relaxed);
    assert_eq!(
        (result.outcome, &result.installed),
        (InstallOutcome::Repaired, &installed),
        "the damaged version must be installed again"
    );
    assert_eq!(std::fs::read(&installed.executable).unwrap(), b"one");
    assert_eq!(watch.join().unwrap(), 0, "the executable must exist at every moment");
    assert_eq!(fixture.names("g/p"), ["1.0.0"]);
}

#[tokio::test]
async fn new_digest_is_accepted_for_installed_version() {
    let Some(fixture) = Fixture::new() else { return };
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    fixture.install("g/p").await.unwrap();
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"other")).await;
    fixture.registry.push("g/p", "1.1.0", &["1.1.0"], &archive(b"newer")).await;
    let result = fixture.install_with("g/p", ACCEPT).await.unwrap();
    assert_eq!((result.installed.version.to_string().as_str(), result.outcome), ("1.0.0", InstallOutcome::Repaired));
    assert_eq!(std::fs::read(&result.installed.executable).unwrap(), b"other");
    let both = InstallOptions { upgrade: true, accept_new_digest: true };
    assert_eq!(fixture.install_with("g/p", both).await.unwrap().installed.version.to_string(), "1.1.0");
}

/// Forwards connections, but stops each response after `bytes` until `proceed` is notified.
/// Notifies `stalled` when it stops.
async fn stalling_proxy(upstream: String, bytes: u64, stalled: Arc<Notify>, proceed: Arc<Notify>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&upstream).await.unwrap();
            let (stalled, proceed) = (Arc::clone(&stalled), Arc::clone(&proceed));
            tokio::spawn(async move {
                let ((mut client_read, mut client_write), (mut upstream_read, mut upstream_write)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut client_read, &mut upstream_write).await });
                if tokio::io::copy(&mut (&mut upstream_read).take(bytes), &mut client_write)
                    .await
                    .is_ok_and(|sent| sent == bytes)
                {
                    stalled.notify_one();
                }
                proceed.notified().await;
                proceed.notify_one();
                let _ = tokio::io::copy(&mut upstream_read, &mut client_write).await;
            });
        }
    });
    host
}

#[tokio::test]
async fn slow_download_does_not_block_other_installs() {
    let Some(fixture) = Fixture::new() else { return };
    // Pseudo-random content cannot be compressed, so the download is longer than the 100,000 bytes after which the proxy stalls.
    let next =
        |number: &u64| Some(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    let content: Vec<u8> =
        std::iter::successors(Some(1), next).map(|number: u64| number.to_be_bytes()[0]).take(400_000).collect();
    fixture.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(&content)).await;
    fixture.registry.push("g/q", "1.0.0", &["1.0.0"], &archive(b"small")).await;
    let (stalled, proceed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let host = stalling_proxy(fixture.registry.host.clone(), 100_000, Arc::clone(&stalled), Arc::clone(&proceed)).await;
    let (store, reference) = (fixture.store.clone(), reference(&format!("{host}/g/p")));
    let slow = tokio::spawn(async move { store.install(&reference, InstallOptions::default(), None).await });
    tokio::time::timeout(Duration::from_secs(60), stalled.notified()).await.expect("the download did not start");
    let other = tokio::time::timeout(Duration::from_secs(60), fixture.install("g/q")).await;
    assert_eq!(other.expect("the other install waits for the download").unwrap().outcome, InstallOutcome::Installed);
    proceed.notify_one();
    assert_eq!(slow.await.unwrap().unwrap().outcome, InstallOutcome::Installed);
}

#[tokio::test]
async fn range_requires_the_list_of_versions() {
    let host = token_registry(|_, line, _| {
        assert!(line.contains("/tags/list"), "a range is not a tag: {line}");
        response("405 Method Not Allowed", "", "")
    })
    .await;
    let store = muster_fleeting::install::Store::new(tempfile::tempdir().unwrap().path());
    let reference = reference(&format!("{host}/g/p:^1.2"));
    let error = text(&store.install(&reference, InstallOptions::default(), None).await.unwrap_err());
    assert!(error.contains("does not list its versions, which a range requires"), "{error}");
}
