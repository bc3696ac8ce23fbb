//! The end of an idle agent, and what keeps it running.

use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use muster_agent::{Options, ServeError};
use muster_agent_api::agent::GetInfoRequest;
use muster_agent_api::agent::agent_client::AgentClient;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::Endpoint;

use crate::harness::{Agent, PATIENCE, options, script};

/// Less than [`PATIENCE`], which would otherwise be the first timer to fire on a paused clock.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts an agent that ends after it was idle for [`LIMIT`].
async fn agent() -> Agent {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { idle_timeout: Some(LIMIT), ..options(dir.path()) };
    Agent::start_with(options, dir).await
}

/// Advances the time, and lets the agent react.
async fn pass(time: Duration) {
    tokio::time::pause();
    // Advance in steps, so that each timer of the agent fires.
    for _ in 0..10 {
        tokio::time::advance(time / 10).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
}

async fn ended(task: JoinHandle<Result<(), ServeError>>) {
    tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn idle_agent_ends_and_a_new_one_can_start() {
    let mut agent = agent().await;
    let plan = agent.plan(vec![script(&["echo once"])]);
    agent.complete(&plan).await;
    let socket = options(agent.dir.path()).socket;
    pass(3 * LIMIT).await;
    assert!(agent.ids().await.is_empty(), "who is connected keeps it");
    let (task, dir) = agent.leave();
    // From now on the clock advances automatically whenever all tasks wait.
    tokio::time::pause();
    ended(task).await;
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
    let (task, dir) = agent.leave();
    pass(3 * LIMIT).await;
    let mut agent = Agent::attach(dir).await;
    assert_eq!(agent.ids().await, ["7-1"], "it runs");
    std::fs::write(go, "").unwrap();
    agent.wait("7-1").await;
    let (_, dir) = agent.leave();
    pass(3 * LIMIT).await;
    assert!(!task.is_finished());
    let mut agent = Agent::attach(dir).await;
    assert!(agent.log("7-1").await.contains("done"), "it can be fetched");
    agent.close("7-1").await;
    let (_, _dir) = agent.leave();
    tokio::time::pause();
    ended(task).await;
}

#[tokio::test]
async fn agent_without_its_directory_ends_despite_results() {
    let mut agent = agent().await;
    let plan = agent.plan(vec![script(&["echo lost"])]);
    agent.run("7-1", &plan, &[]).await;
    agent.wait("7-1").await;
    let (socket, path) = (options(agent.dir.path()).socket, agent.dir.path().to_owned());
    let (task, dir) = agent.leave();
    std::fs::remove_dir_all(&path).unwrap();
    // The next manager created the directory again, and its agent has the same socket, which must not be touched.
    std::fs::create_dir_all(&path).unwrap();
    let next = Agent::start_in(dir).await;
    tokio::time::pause();
    ended(task).await;
    tokio::time::resume();
    assert!(socket.exists());
    next.stop().await;
}

/// Returns whether an agent answers.
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
    tokio::time::timeout(PATIENCE, client.get_info(GetInfoRequest {}))
        .await
        .expect("an answer, of whatever kind")
        .is_ok()
}

async fn all_end(agents: &mut JoinSet<Result<(), ServeError>>) {
    while let Some(end) = tokio::time::timeout(PATIENCE, agents.join_next()).await.unwrap() {
        end.unwrap().unwrap();
    }
}

/// A client that connects while the agent ends is either served or refused immediately, and the agent that it then starts serves.
#[tokio::test]
async fn connection_during_shutdown_is_served_or_refused() {
    let seed = std::env::var("MUSTER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("MUSTER_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let (mut ends, mut served) = (JoinSet::new(), 0);
    for _ in 0..150 {
        let (ready, is_ready) = oneshot::channel();
        let idle_timeout = Some(Duration::from_micros(1500));
        let options = Options { idle_timeout, ready: Some(ready), ..options(dir.path()) };
        let socket = options.socket.clone();
        ends.spawn(muster_agent::serve(options));
        tokio::time::timeout(PATIENCE, is_ready)
            .await
            .unwrap()
            .expect("the next agent serves, though the last one still ends");
        // Not a synchronization: the test connects at a random time around the end of the agent.
        tokio::time::sleep(Duration::from_micros(random.random_range(0..5000))).await;
        if is_served(&socket).await {
            served += 1;
            // The client has disconnected, so that agent ends, too.
            all_end(&mut ends).await;
        }
    }
    all_end(&mut ends).await;
    println!("served {served} of 150");
    let mut agent = Agent::start_in(dir).await;
    let plan = agent.plan(vec![script(&["echo fine"])]);
    assert!(agent.complete(&plan).await.0.contains("fine"));
    agent.stop().await;
}
