//! Services that are processes on the job's machine.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use muster_agent_api::builtin::HostService;
use muster_agent_api::plan::{Call, Step};
use muster_agent_api::result::{Outcome, StepStatus};

use muster_steps::process::Containment;

use crate::harness::*;
use crate::killed_agent::spawn_agent_with;

const SERVER: &str = "import os,socket,sys
print('started in', os.getcwd(), os.listdir('.'), os.environ.get('DB'), os.environ.get('OF_JOB'), flush=True)
s=socket.create_server(('127.0.0.1', int(sys.argv[1])))
open('pid','w').write(str(os.getpid()))
while True:
    c,_=s.accept(); c.sendall(b'served\\n'); c.close()";

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn service(title: &str, port: u16, command: &[&str]) -> Step {
    let inputs = HostService {
        title: title.to_owned(),
        command: command.iter().map(ToString::to_string).collect(),
        env: [("DB".to_owned(), "test".to_owned())].into(),
        port,
        timeout_ms: 30_000,
        ..HostService::default()
    };
    let mut step = Step::new(&format!("service {title}"), "", Call::builtin(&inputs));
    step.policy.allow_failure = true;
    step
}

fn server(port: u16) -> Step {
    service("db:1", port, &["python3", "-c", SERVER, &port.to_string()])
}

fn client(port: u16) -> String {
    format!(
        "python3 -c \"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(99).decode(), end='')\""
    )
}

#[tokio::test]
async fn service_serves_the_job_and_ends_with_it() {
    if !muster_test_prerequisites::program("python3", "--version", "python3") {
        return;
    }
    let mut agent = Agent::start().await;
    let port = free_port();
    let copy = format!("cp {}.tmp/service-0/pid ..", agent.project().display());
    let plan = agent.plan(vec![server(port), script(&[&client(port), &copy])]);
    agent.run("1-1", &plan, &[variable("OF_JOB", "seen")]).await;
    let (log, result) = (agent.log("1-1").await, agent.wait("1-1").await);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("Starting service db:1...") && log.contains("\nserved\n"), "{log}");
    assert!(!log.contains("WARNING"), "{log}");
    assert_eq!(states(&result)[1], ("service db:1", StepStatus::Success));
    let pid = std::fs::read_to_string(agent.dir.path().join("builds/pid")).unwrap();
    assert!(!is_running(&pid), "the service must end with its job");
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
    assert_eq!(agent.temporary_files(), Vec::<String>::new());
}

#[tokio::test]
async fn service_that_fails_is_a_warning_with_its_output() {
    let mut agent = Agent::start().await;
    let failing = service("db:1", free_port(), &["sh", "-c", "echo no disk; exit 3"]);
    let (log, result) = agent.complete(&agent.plan(vec![failing, script(&["echo runs"])])).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(
        log.contains(
            "service db:1 failed, but the job continues: it exited with code 3; the end of its output:\nno disk"
        ),
        "{log}"
    );
    assert!(log.contains("\nruns\n"), "{log}");
    let node = &result.tree.steps[1];
    assert_eq!(node.status, StepStatus::Failure);
    assert!(node.message.contains("no disk"), "{node:?}");

    let ending = service("db:1", 0, &["sh", "-c", "echo crashed; exit 4"]);
    let (log, _) = agent.complete(&agent.plan(vec![ending, script(&["sleep 1"])])).await;
    assert!(
        log.contains("The service db:1 ended before the job: it exited with code 4; the end of its output:\ncrashed"),
        "{log}"
    );
}

#[tokio::test]
async fn port_of_another_program_is_refused() {
    let mut agent = Agent::start().await;
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = other.local_addr().unwrap().port();
    let (log, result) =
        agent.complete(&agent.plan(vec![service("db:1", port, &["sleep", "600"]), script(&["true"])])).await;
    assert!(log.contains(&format!("port {port} of the service db:1 is already in use")), "{log}");
    assert_eq!(states(&result)[1].1, StepStatus::Failure);
}

#[tokio::test]
async fn service_of_a_killed_agent_is_terminated_by_the_next_agent() {
    for containment in [Containment::ProcessTree, Containment::default()] {
        let dir = tempfile::tempdir().unwrap();
        let mut process = spawn_agent_with(dir.path(), containment);
        let mut agent = Agent::attach(dir).await;
        let pids = agent.dir.path().join("pids");
        let daemon =
            format!("echo $$ >> {0}; setsid sh -c 'echo $$ >> {0}; exec sleep 600' & exec sleep 600", pids.display());
        let wait = format!("until [ $(wc -l < {}) = 2 ]; do sleep 0.01; done; echo ready; sleep 600", pids.display());
        let plan = agent.plan(vec![service("db:1", 0, &["sh", "-c", &daemon]), script(&[&wait])]);
        agent.run("1-1", &plan, &[]).await;
        agent.log_until("1-1", "\nready\n").await;
        process.kill().unwrap();
        process.wait().unwrap();
        let mut agent = Agent::start_in(agent.dir).await;
        agent.run("1-1", &plan, &[]).await;
        assert_eq!(failure(&agent.wait("1-1").await).0, "runner_system_failure");
        let pids = std::fs::read_to_string(pids).unwrap();
        assert_eq!(pids.lines().count(), 2);
        for pid in pids.lines() {
            assert!(!is_running(pid), "process {pid} of the service must be terminated");
        }
        agent.stop().await;
    }
}
