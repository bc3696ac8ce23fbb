//! Exit of an idle agent.

use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use muster_agent::{Options, ServeError, TcpOptions};
use muster_agent_api::agent::GetInfoRequest;
use muster_agent_api::agent::agent_client::AgentClient;
use muster_agent_api::tls::TlsFiles;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::Endpoint;

use crate::harness::{Agent, TIMEOUT, is_running, options, script};

/// This timeout is shorter than [`TIMEOUT`], so that it expires first on a paused clock.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

async fn agent() -> Agent {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { idle_timeout: Some(IDLE_TIMEOUT), ..options(dir.path()) };
    Agent::start_with(options, dir).await
}

async fn advance_time(time: Duration) {
    tokio::time::pause();
    // Time advances in steps, so that each timer of the agent fires.
    for _ in 0..10 {
        tokio::time::advance(time / 10).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
}

async fn wait_exit(task: JoinHandle<Result<(), ServeError>>) {
    tokio::time::timeout(TIMEOUT, task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn unattended_agent_ends_its_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { unattended_timeout: Some(IDLE_TIMEOUT), ..options(dir.path()) };
    let mut agent = Agent::start_with(options, dir).await;
    let plan = agent.plan(vec![script(&["echo $$", "exec sleep 1000"])]);
    agent.run("1-1", &plan, &[]).await;
    let log = agent.log_until("1-1", "exec sleep").await;
    let pid = log.lines().find(|line| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())).unwrap();
    advance_time(3 * IDLE_TIMEOUT).await;
    assert!(is_running(pid), "a connection must keep the job running");
    let (task, _dir) = agent.disconnect();
    tokio::time::pause();
    wait_exit(task).await;
    tokio::time::resume();
    assert!(!is_running(pid), "the job must end with its agent");
}

#[tokio::test]
async fn idle_agent_ends_and_a_new_one_can_start() {
    let mut agent = agent().await;
    let plan = agent.plan(vec![script(&["echo once"])]);
    agent.complete(&plan).await;
    let socket = options(agent.dir.path()).socket;
    advance_time(3 * IDLE_TIMEOUT).await;
    assert!(agent.ids().await.is_empty(), "a connection must keep the agent running");
    let (task, dir) = agent.disconnect();
    // The paused clock advances whenever all tasks wait.
    tokio::time::pause();
    wait_exit(task).await;
    tokio::time::resume();
    assert!(!socket.exists());
    Agent::start_in(dir).await.stop().await;
}

#[tokio::test]
async fn agent_with_a_job_runs_until_the_job_is_closed() {
    let mut agent = agent().await;
    let go = agent.dir.path().join("go");
    let plan = agent.plan(vec![script(&[&format!("until [ -e {} ]; do sleep 0.02; done", go.display()), "echo done"])]);
    agent.run("7-1", &plan, &[]).await;
    let (task, dir) = agent.disconnect();
    advance_time(3 * IDLE_TIMEOUT).await;
    let mut agent = Agent::attach(dir).await;
    assert_eq!(agent.ids().await, ["7-1"]);
    std::fs::write(go, "").unwrap();
    agent.wait("7-1").await;
    let (_, dir) = agent.disconnect();
    advance_time(3 * IDLE_TIMEOUT).await;
    assert!(!task.is_finished());
    let mut agent = Agent::attach(dir).await;
    assert!(agent.log("7-1").await.contains("done"));
    agent.close("7-1").await;
    let (_, _dir) = agent.disconnect();
    tokio::time::pause();
    wait_exit(task).await;
}

#[tokio::test]
async fn agent_without_its_directory_ends_despite_results() {
    let mut agent = agent().await;
    let plan = agent.plan(vec![script(&["echo lost"])]);
    agent.run("7-1", &plan, &[]).await;
    agent.wait("7-1").await;
    let (socket, path) = (options(agent.dir.path()).socket, agent.dir.path().to_owned());
    let (task, dir) = agent.disconnect();
    std::fs::remove_dir_all(&path).unwrap();
    // The next agent has a new socket at this path, which the first agent must not delete.
    std::fs::create_dir_all(&path).unwrap();
    let next = Agent::start_in(dir).await;
    tokio::time::pause();
    wait_exit(task).await;
    tokio::time::resume();
    assert!(socket.exists());
    next.stop().await;
}

#[tokio::test]
async fn agent_with_a_tcp_address_keeps_results_without_its_socket_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), own.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), own.signing_key.serialize_pem()).unwrap();
    let tls = TlsFiles { certificate: path("cert.pem"), key: path("key.pem"), authority: path("cert.pem") };
    let tcp = Some(TcpOptions { address: "127.0.0.1:0".to_owned(), tls });
    let options = Options { idle_timeout: Some(IDLE_TIMEOUT), tcp, ..options(dir.path()) };
    let (shutdown, socket) = (options.shutdown.clone(), options.socket.clone());
    let mut agent = Agent::start_with(options, dir).await;
    let plan = agent.plan(vec![script(&["echo kept"])]);
    agent.run("7-1", &plan, &[]).await;
    agent.wait("7-1").await;
    let (task, _dir) = agent.disconnect();
    std::fs::remove_file(socket).unwrap();
    advance_time(3 * IDLE_TIMEOUT).await;
    assert!(!task.is_finished());
    shutdown.cancel();
    wait_exit(task).await;
}

async fn is_served(socket: &Path) -> bool {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let Ok(channel) = Endpoint::from_static("http://agent").connect_with_connector(connector).await else {
        return false;
    };
    let mut client = AgentClient::new(channel);
    tokio::time::timeout(TIMEOUT, client.get_info(GetInfoRequest {}))
        .await
        .expect("the agent must answer or refuse the call in time")
        .is_ok()
}

async fn wait_all_exit(agents: &mut JoinSet<Result<(), ServeError>>) {
    while let Some(result) = tokio::time::timeout(TIMEOUT, agents.join_next()).await.unwrap() {
        result.unwrap().unwrap();
    }
}

/// A client that connects while the agent exits is served or refused immediately. The next agent then accepts calls.
#[tokio::test]
async fn connection_during_shutdown_is_served_or_refused() {
    let seed = std::env::var("MUSTER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("MUSTER_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let (mut agents, mut served) = (JoinSet::new(), 0);
    for _ in 0..150 {
        let (ready_sender, ready_receiver) = oneshot::channel();
        let idle_timeout = Some(Duration::from_micros(1500));
        let options = Options { idle_timeout, ready: Some(ready_sender), ..options(dir.path()) };
        let socket = options.socket.clone();
        agents.spawn(muster_agent::serve(options));
        tokio::time::timeout(TIMEOUT, ready_receiver)
            .await
            .unwrap()
            .expect("the next agent must become ready while the previous one shuts down");
        // The client connects at a random moment around the agent's exit.
        tokio::time::sleep(Duration::from_micros(random.random_range(0..5000))).await;
        if is_served(&socket).await {
            served += 1;
            // The client has disconnected, so the agent exits.
            wait_all_exit(&mut agents).await;
        }
    }
    wait_all_exit(&mut agents).await;
    println!("served {served} of 150");
    let mut agent = Agent::start_in(dir).await;
    let plan = agent.plan(vec![script(&["echo fine"])]);
    assert!(agent.complete(&plan).await.0.contains("fine"));
    agent.stop().await;
}
