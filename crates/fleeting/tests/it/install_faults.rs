//! Tests installs that are killed, that wait for each other, and whose files were changed meanwhile.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_fleeting::install::{InstallOptions, InstallOutcome};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::install::{Here, body, reference, text, token_registry};
use crate::registry::archive;

const ACCEPT: InstallOptions = InstallOptions { upgrade: false, accept_new_digest: true };

#[tokio::test]
async fn next_install_removes_leftovers_of_killed_one() {
    let Some(here) = Here::new() else { return };
    for version in ["1.0.0", "1.1.0"] {
        here.registry.push("g/p", version, &[version], &archive(version.as_bytes())).await;
    }
    let installed = here.install("g/p:1.0.0").await.unwrap().installed;
    let beside = installed.executable.parent().unwrap().parent().unwrap();
    let leave = || {
        for name in [".new-a1b2c3", ".old-a1b2c3/old"] {
            std::fs::create_dir_all(beside.join(name)).unwrap();
            std::fs::write(beside.join(name).join("plugin"), "half").unwrap();
        }
    };
    leave();
    here.install("g/p:1.1.0").await.unwrap();
    assert_eq!(here.names("g/p"), ["1.0.0", "1.1.0"]);
    leave();
    here.store.remove(&here.registry.reference("g/p:1.1.0"), false).await.unwrap();
    assert_eq!(here.names("g/p"), ["1.0.0"]);
}

#[tokio::test]
async fn damaged_version_is_repaired_in_place() {
    let Some(here) = Here::new() else { return };
    here.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    let installed = here.install("g/p").await.unwrap().installed;
    assert_eq!(here.store.lock_file().metadata().unwrap().permissions().mode() & 0o777, 0o644, "others may verify");
    here.registry.push("g/p", "1.1.0", &["1.1.0"], &archive(b"newer")).await;
    std::fs::write(&installed.executable, b"two").unwrap();
    // The directory is large, so that removing it before the rename would leave a noticeable gap.
    for name in 0..3000 {
        std::fs::write(installed.executable.with_file_name(name.to_string()), b"").unwrap();
    }
    let over = Arc::new(AtomicBool::new(false));
    let (path, is_over) = (installed.executable.clone(), Arc::clone(&over));
    let watch = std::thread::spawn(move || {
        let mut missing = 0;
        while !is_over.load(Ordering::Relaxed) {
            missing += u32::from(!path.is_file());
        }
        missing
    });
    let done = here.install("g/p").await.unwrap();
    over.store(true, Ordering::Relaxed);
    assert_eq!(
        (done.outcome, &done.installed),
        (InstallOutcome::Repaired, &installed),
        "no newer one, and not `is here`"
    );
    assert_eq!(std::fs::read(&installed.executable).unwrap(), b"one");
    assert_eq!(watch.join().unwrap(), 0, "it was there all the time");
    assert_eq!(here.names("g/p"), ["1.0.0"]);
}

#[tokio::test]
async fn new_digest_is_accepted_for_installed_version() {
    let Some(here) = Here::new() else { return };
    here.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"one")).await;
    here.install("g/p").await.unwrap();
    here.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(b"other")).await;
    here.registry.push("g/p", "1.1.0", &["1.1.0"], &archive(b"newer")).await;
    let done = here.install_with("g/p", ACCEPT).await.unwrap();
    assert_eq!((done.installed.version.to_string().as_str(), done.outcome), ("1.0.0", InstallOutcome::Repaired));
    assert_eq!(std::fs::read(&done.installed.executable).unwrap(), b"other");
    let both = InstallOptions { upgrade: true, accept_new_digest: true };
    assert_eq!(here.install_with("g/p", both).await.unwrap().installed.version.to_string(), "1.1.0");
}

/// Forwards connections, but holds back everything of a response after `bytes` until `go` is notified.
/// Notifies `held` then.
async fn stalling_proxy(to: String, bytes: u64, held: Arc<Notify>, go: Arc<Notify>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&to).await.unwrap();
            let (held, go) = (Arc::clone(&held), Arc::clone(&go));
            tokio::spawn(async move {
                let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut near_in, &mut far_out).await });
                if tokio::io::copy(&mut (&mut far_in).take(bytes), &mut near_out).await.is_ok_and(|sent| sent == bytes)
                {
                    held.notify_one();
                }
                go.notified().await;
                go.notify_one();
                let _ = tokio::io::copy(&mut far_in, &mut near_out).await;
            });
        }
    });
    host
}

#[tokio::test]
async fn slow_download_does_not_block_other_installs() {
    let Some(here) = Here::new() else { return };
    // The content cannot be compressed.
    let next =
        |number: &u64| Some(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    let content: Vec<u8> =
        std::iter::successors(Some(1), next).map(|number: u64| number.to_be_bytes()[0]).take(400_000).collect();
    here.registry.push("g/p", "1.0.0", &["1.0.0"], &archive(&content)).await;
    here.registry.push("g/q", "1.0.0", &["1.0.0"], &archive(b"small")).await;
    let (held, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let host = stalling_proxy(here.registry.host.clone(), 100_000, Arc::clone(&held), Arc::clone(&go)).await;
    let (store, reference) = (here.store.clone(), reference(&format!("{host}/g/p")));
    let slow = tokio::spawn(async move { store.install(&reference, InstallOptions::default(), None).await });
    tokio::time::timeout(Duration::from_secs(60), held.notified()).await.expect("the download is under way");
    let other = tokio::time::timeout(Duration::from_secs(60), here.install("g/q")).await;
    assert_eq!(other.expect("it need not wait").unwrap().outcome, InstallOutcome::Installed);
    go.notify_one();
    assert_eq!(slow.await.unwrap().unwrap().outcome, InstallOutcome::Installed);
}

#[tokio::test]
async fn range_requires_the_list_of_versions() {
    let host = token_registry(|_, line, _| {
        assert!(line.contains("/tags/list"), "a range is no tag: {line}");
        body("405 Method Not Allowed", "", "")
    })
    .await;
    let store = muster_fleeting::install::Store::new(tempfile::tempdir().unwrap().path());
    let reference = reference(&format!("{host}/g/p:^1.2"));
    let error = text(&store.install(&reference, InstallOptions::default(), None).await.unwrap_err());
    assert!(error.contains("does not list its versions, which a range requires"), "{error}");
}
