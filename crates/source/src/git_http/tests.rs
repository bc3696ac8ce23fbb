use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::Snapshot;

fn git(directory: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new("git");
    command.current_dir(directory).env("GIT_TERMINAL_PROMPT", "0");
    command.args(["-c", "user.name=A", "-c", "user.email=a@b"]).args(arguments).status().unwrap().success()
}

/// Serves the snapshot to jobs with the token `right`, until the test ends.
async fn serve(snapshot: &Snapshot) -> String {
    let routes = git_routes(GitServer {
        repository: snapshot.repository.clone(),
        project_path: "group/app".to_owned(),
        check_token: Arc::new(|token| {
            let check = if token == "right" { TokenCheck::Current } else { TokenCheck::Unknown };
            Box::pin(async move { check })
        }),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address.to_string()
}

fn repository(home: &Path) -> PathBuf {
    let app = home.join("app");
    std::fs::create_dir(&app).unwrap();
    assert!(git(&app, &["init", "-q", "-b", "main"]));
    std::fs::write(app.join("a.yml"), "committed").unwrap();
    assert!(git(&app, &["add", "-A"]) && git(&app, &["commit", "-q", "-m", "x"]));
    app
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_over_http_only_with_the_token_of_a_job() {
    let home = tempfile::tempdir().unwrap();
    let app = repository(home.path());
    std::fs::write(app.join("a.yml"), "changed").unwrap();
    let snapshot = Snapshot::take(&app, &home.path().join("store")).unwrap();
    snapshot.pin(7000, Some("refs/heads/main")).unwrap();
    let address = serve(&snapshot).await;
    let fetch = |token: &str, path: &str, protocol: &str, target: &Path| {
        std::fs::create_dir(target).unwrap();
        assert!(git(target, &["init", "-q"]));
        let remote = format!("http://gitlab-ci-token:{token}@{address}/{path}");
        let protocol = format!("protocol.version={protocol}");
        let refspec = "+refs/pipelines/7000:refs/pipelines/7000";
        git(target, &["-c", &protocol, "fetch", "-q", "--depth=1", &remote, refspec])
    };
    for protocol in ["0", "2"] {
        let target = home.path().join(protocol);
        assert!(fetch("right", "group/app.git", protocol, &target));
        assert!(git(&target, &["checkout", "-q", &snapshot.sha]));
        assert_eq!(std::fs::read_to_string(target.join("a.yml")).unwrap(), "changed");
    }
    assert!(!fetch("wrong", "group/app.git", "2", &home.path().join("wrong-token")));
    assert!(!fetch("right", "group/other.git", "2", &home.path().join("wrong-project")));
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_is_too_large_after_decompression_is_rejected() {
    use std::io::Write as _;
    use tokio::io::AsyncReadExt as _;
    let home = tempfile::tempdir().unwrap();
    let app = repository(home.path());
    let address = serve(&Snapshot::take(&app, &home.path().join("store")).unwrap()).await;

    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"0009done\n").unwrap();
    packed.write_all(&vec![b'0'; MAX_REQUEST_BYTES]).unwrap();
    let packed = packed.finish().unwrap();
    let login = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:right"));
    let head = format!(
        "POST /group/app.git/git-upload-pack HTTP/1.1\r\nhost: {address}\r\nauthorization: Basic {login}\r\n\
         content-encoding: gzip\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        packed.len()
    );
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&packed).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

/// A client that uses version 0 of the protocol can send many commits that both sides have, and git answers each one at
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn long_negotiation_of_protocol_version_0_is_answered() {
    use tokio::io::AsyncReadExt as _;
    const COMMITS: usize = 5000;
    let home = tempfile::tempdir().unwrap();
    let app = repository(home.path());
    let snapshot = Snapshot::take(&app, &home.path().join("store")).unwrap();
    snapshot.pin(7000, Some("refs/heads/main")).unwrap();
    let address = serve(&snapshot).await;

    let sha = &snapshot.sha;
    let wants = format!("0045want {sha} multi_ack_detailed\n0000");
    let request = format!("{wants}{}0000", format!("0032have {sha}\n").repeat(COMMITS));
    let login = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:right"));
    let head = format!(
        "POST /group/app.git/git-upload-pack HTTP/1.0\r\nhost: {address}\r\nauthorization: Basic {login}\r\n\
         content-length: {}\r\n\r\n",
        request.len()
    );
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = tokio::time::timeout(std::time::Duration::from_secs(60), exchange).await.expect("no answer");
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    assert_eq!(answer.matches(&format!("ACK {sha} common\n")).count(), COMMITS);
}
