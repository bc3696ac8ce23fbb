//! `[runners.git_mirror]` with jobs in containers: from the configuration to the checkout in a container of a real Docker Engine.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use rustix::process::Signal;
use serde_json::json;

use super::containers::IMAGE;
use super::harness::Harness;

struct GitServer {
    url: String,
    sha: String,
    requests: Arc<AtomicUsize>,
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"];
    let output = Command::new("git").current_dir(directory).args(identity).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl GitServer {
    async fn start(root: &Path) -> Self {
        let work = root.join("work");
        std::fs::create_dir(&work).unwrap();
        git(&work, &["init", "--quiet", "--initial-branch=main"]);
        std::fs::write(work.join("file"), "content of the commit\n").unwrap();
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "--quiet", "-m", "first"]);
        git(root, &["clone", "--quiet", "--bare", "work", "project.git"]);
        // Without a pack, git would fetch single objects. A GitLab server always sends packs.
        git(&root.join("project.git"), &["repack", "--quiet", "-a", "-d"]);
        git(&root.join("project.git"), &["update-server-info"]);
        let requests = Arc::<AtomicUsize>::default();
        let app = Router::new().fallback(serve).with_state((root.to_owned(), Arc::clone(&requests)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/project.git", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, sha: git(&work, &["rev-parse", "HEAD"]), requests }
    }

    fn take_request_count(&self) -> usize {
        self.requests.swap(0, Ordering::Relaxed)
    }
}

async fn serve(
    State((root, requests)): State<(std::path::PathBuf, Arc<AtomicUsize>)>,
    request: Request,
) -> Result<Vec<u8>, StatusCode> {
    requests.fetch_add(1, Ordering::Relaxed);
    let path = root.join(request.uri().path().trim_start_matches('/'));
    std::fs::read(path).map_err(|_| StatusCode::NOT_FOUND)
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_get_the_sources_from_the_mirror_of_the_machine() {
    let harness = Harness::start(1).await;
    let mirror = "[runners.git_mirror]\nenabled = true\n";
    let Some(_) = harness.configure_docker(&format!("image = \"{IMAGE}\"\n{mirror}")) else { return };
    let server = GitServer::start(&harness.home.path("")).await;
    let run = harness.run();
    let lines = [
        "Updated the git mirror of this machine.",
        "The git mirror of this machine has the commit: nothing is fetched from the server.",
        "The git mirror of this machine has the commit: nothing is fetched from the server.",
    ];
    for (id, line) in (1..).zip(lines) {
        // The second job uses the volume of the first job. The third job gets a new volume, because a clone needs no earlier checkout.
        let strategy = if id == 3 { "clone" } else { "fetch" };
        let variables = [("GIT_STRATEGY", strategy), ("FF_TIMESTAMPS", "false")];
        let more = json!({
            "job_info": { "name": "test", "project_id": 7 },
            "variables": variables.map(|(key, value)| json!({ "key": key, "value": value })),
            "git_info": {
                "repo_url": server.url, "sha": server.sha, "ref": "main", "ref_type": "branch", "depth": 20,
                "refspecs": ["+refs/heads/main:refs/remotes/origin/main"]
            }
        });
        // The job reads the mirror through a read-only view. The image has no git.
        let commands = [
            "cat file",
            "! touch /.muster-git-mirror/x",
            "test -e /.muster-git-mirror/packed-refs",
            "! command -v git",
        ];
        harness.push_container_job(id, &commands, &more);
        let job = harness.wait_for_end(0, id).await;
        let trace = job.text();
        assert!(trace.contains(line) && trace.contains("\ncontent of the commit\n"), "{trace}\n{}", run.log());
        assert!(trace.contains("Job succeeded"), "{trace}");
        assert_eq!(server.take_request_count() > 0, id == 1, "{trace}");
    }
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
    let views: Vec<_> = views(&harness.home.path(""));
    assert!(views.is_empty(), "the views must be removed at the end of the jobs: {views:?}");
}

fn views(root: &Path) -> Vec<std::path::PathBuf> {
    let output = Command::new("find").arg(root).args(["-path", "*/git-mirrors/*/views/*"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect()
}
