//! Jobs that end early, and their processes.

use muster_agent_api::plan::{Call, When};
use muster_agent_api::result::StepStatus;
use muster_steps::process::Containment;

use crate::harness::*;
use crate::killed_agent::spawn_agent_with;

#[tokio::test]
async fn cancel_ends_the_script_and_after_script_still_runs() {
    let mut agent = Agent::start().await;
    let upload = step("upload_artifacts_on_failure", When::OnFailure, script(&["echo uploaded"]).call);
    let plan = agent.plan(vec![
        script(&["echo started; sleep 600", "echo never"]),
        after_script(&["echo \"it was $CI_JOB_STATUS\""]),
        upload,
    ]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nstarted\n").await;
    agent.cancel("1-1").await;
    let log = agent.log("1-1").await;
    let result = agent.wait("1-1").await;
    assert_eq!(failure(&result), ("job_canceled".to_owned(), None));
    let warning = "\x1b[0;33mWARNING: script canceled externally (UI, API)\x1b[0;m\n";
    assert!(log.contains(warning) && log.contains("\nit was canceled\n") && log.contains("\nuploaded\n"), "{log}");
    assert!(!log.contains("\nnever\n") && log.ends_with("\x1b[31;1mERROR: Job failed: canceled\x1b[0;m\n"), "{log}");
    assert!(!log.contains("errexit") && !log.contains("trap"), "the shell must not print internal commands: {log}");
    assert_eq!(states(&result)[1], ("step_script", StepStatus::Cancelled));
}

#[tokio::test]
async fn cancel_before_the_script_ends_the_job() {
    let mut agent = Agent::start().await;
    let gate = agent.dir.path().join("gate");
    let mut plan = agent.plan(vec![script(&["echo never"]), after_script(&["echo never"])]);
    let hook = format!("echo hook; until [ -e {} ]; do sleep 0.01; done", gate.display());
    let checkout = muster_agent_api::builtin::Checkout {
        strategy: "fetch".to_owned(),
        pre_script: vec![hook],
        ..Default::default()
    };
    plan.steps[0].call = Call::builtin(&checkout);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nhook\n").await;
    agent.cancel("1-1").await;
    let log = agent.log("1-1").await;
    assert_eq!(failure(&agent.wait("1-1").await).0, "job_canceled");
    assert!(!log.contains("never"), "{log}");
}

#[tokio::test]
async fn c197_after_a_job_timeout_no_step_runs_except_cleanup_steps() {
    let mut agent = Agent::start().await;
    let upload = step("upload", When::Always, script(&["echo never"]).call);
    let mut plan = agent.plan(vec![script(&["sleep 60"]), after_script(&["echo never"]), upload]);
    plan.timeout_ms = 300;
    plan.trace_sections = true;
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result), ("job_execution_timeout".to_owned(), None));
    assert!(!log.contains("never"), "{log}");
    let warning = "step_script could not run to completion because the timeout was exceeded. Raise the job's `timeout`, or \
                   RUNNER_SCRIPT_TIMEOUT.";
    assert!(log.contains(warning), "{log}");
    let last = "\x1b[31;1mERROR: Job failed: execution took longer than 300ms seconds\x1b[0;m\n";
    assert!(log.contains("section_end:") && log.ends_with(last), "{log}");
}

#[tokio::test]
async fn after_script_runs_after_a_script_timeout() {
    let mut agent = Agent::start().await;
    let mut slow = script(&["sleep 60"]);
    slow.policy.timeout_ms = 200;
    let plan = agent.plan(vec![slow, after_script(&["echo \"it was $CI_JOB_STATUS\""])]);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "job_execution_timeout");
    assert!(log.contains("\nit was timedout\n"), "{log}");
    assert!(log.contains("ERROR: Job failed: script timeout: context deadline exceeded"), "{log}");
}

#[tokio::test]
async fn after_script_has_a_separate_timeout() {
    let mut agent = Agent::start().await;
    let mut slow = after_script(&["sleep 60"]);
    slow.policy.timeout_ms = 200;
    let plan = agent.plan(vec![script(&["true"]), slow]);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, muster_agent_api::result::Outcome::Success, "{log}");
    assert!(
        log.contains("WARNING: after_script failed, but job will continue unaffected: after script timeout"),
        "{log}"
    );
}

#[tokio::test]
async fn close_ends_a_running_job_with_everything_it_started() {
    let mut agent = Agent::start().await;
    let pids = agent.dir.path().join("pids");
    let daemon = format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; sleep 600' & echo $$ >> {0}",
        pids.display()
    );
    let wait = format!(
        "until [ $(wc -l < {}) = 2 ]; do sleep 0.01; done; echo ready; while :; do sleep 1; done",
        pids.display()
    );
    let plan = agent.plan(vec![script(&[&daemon, &wait])]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nready\n").await;
    agent.close("1-1").await;
    for pid in std::fs::read_to_string(&pids).unwrap().lines() {
        assert!(!is_running(pid), "process {pid} must have ended");
    }
    assert!(agent.ids().await.is_empty());
}

#[tokio::test]
async fn background_process_ends_with_the_job_and_its_output_is_in_the_log() {
    let mut agent = Agent::start().await;
    let pid_file = agent.dir.path().join("pid");
    let start = format!("(echo from background; exec sleep 600) & echo $! > {}", pid_file.display());
    let plan = agent.plan(vec![script(&[&start, "exec >/dev/null 2>&1"]), after_script(&["echo after"])]);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, muster_agent_api::result::Outcome::Success);
    assert!(log.contains("from background\n") && log.contains("\nafter\n"), "{log}");
    assert!(!is_running(std::fs::read_to_string(pid_file).unwrap().trim()));
}

#[tokio::test]
async fn shutdown_ends_jobs_and_keeps_their_results() {
    let mut agent = Agent::start().await;
    let plan = agent.plan(vec![script(&["echo started; sleep 600"])]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nstarted\n").await;
    let dir = agent.stop().await;
    let mut agent = Agent::start_in(dir).await;
    assert_eq!(failure(&agent.wait("1-1").await).0, "runner_interrupted");
    assert!(agent.log("1-1").await.ends_with("ERROR: Job failed: aborted: the runner is shutting down\x1b[0;m\n"));
}

#[tokio::test]
async fn agent_exits_when_the_process_of_exit_with_pid_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let mut options = options(dir.path());
    options.exit_with_pid = Some(i32::try_from(parent.id()).unwrap());
    let agent = Agent::start_with(options, dir).await;
    parent.kill().unwrap();
    parent.wait().unwrap();
    agent.wait_exit().await;
}

/// Agent in a separate process, without jobs of other tests.
struct SeparateAgent {
    process: std::process::Child,
    agent: Agent,
}

impl SeparateAgent {
    async fn start(containment: Containment) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = spawn_agent_with(dir.path(), containment);
        Self { process, agent: Agent::attach(dir).await }
    }

    async fn start_waiting_job(&mut self, id: &str) {
        let gate = self.agent.dir.path().join(format!("gate-{id}"));
        let wait = format!("echo waiting; until [ -e {} ]; do sleep 0.01; done", gate.display());
        let mut plan = self.agent.plan(vec![script(&[&wait])]);
        plan.project_dir = self.agent.dir.path().join(format!("builds/{id}")).to_string_lossy().into_owned();
        self.agent.run(id, &plan, &[]).await;
        self.agent.log_until(id, "\nwaiting\n").await;
    }

    async fn release_job(&mut self, id: &str) {
        std::fs::write(self.agent.dir.path().join(format!("gate-{id}")), "").unwrap();
        self.agent.wait(id).await;
    }

    /// Runs a job that leaves an orphan with its own session and a false tag. Returns the orphan's process ID, and the
    /// job's log with its cgroups.
    async fn run_job_with_hidden_process(&mut self, id: &str) -> (String, String) {
        let pid = self.agent.dir.path().join("hidden");
        let hide = format!(
            "env -i MUSTER_JOB_TAG=made-up setsid sh -c 'echo $$ > {0}; exec sleep 600' >/dev/null 2>&1 </dev/null & \
             until [ -s {0} ]; do sleep 0.01; done; cat /proc/self/cgroup",
            pid.display()
        );
        let plan = self.agent.plan(vec![script(&[&hide])]);
        self.agent.run(id, &plan, &[]).await;
        self.agent.wait(id).await;
        (std::fs::read_to_string(pid).unwrap().trim().to_owned(), self.agent.log(id).await)
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn start_ticks(pid: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The start time is the 20th field after the name in parentheses.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

fn wait_for_next_tick(pid: &str) {
    let started = start_ticks(pid);
    let is_later = || {
        let mut process = std::process::Command::new("true").spawn().unwrap();
        let ticks = start_ticks(&process.id().to_string());
        process.wait().unwrap();
        ticks > started
    };
    while !is_later() {}
}

#[tokio::test]
async fn without_cgroups_a_hidden_process_ends_when_concurrent_jobs_have_ended() {
    let mut separate = SeparateAgent::start(Containment::ProcessTree).await;
    separate.start_waiting_job("before-1").await;
    let (hidden, _) = separate.run_job_with_hidden_process("2-1").await;
    // A job that starts in the same tick would count as older than the process.
    wait_for_next_tick(&hidden);
    separate.start_waiting_job("after-1").await;
    separate.release_job("before-1").await;
    assert!(!is_running(&hidden), "process {hidden} must have ended");
    separate.release_job("after-1").await;
    separate.kill();
}

#[tokio::test]
async fn in_a_cgroup_a_hidden_process_ends_with_its_job() {
    let mut separate = SeparateAgent::start(Containment::default()).await;
    separate.start_waiting_job("before-1").await;
    let (hidden, log) = separate.run_job_with_hidden_process("2-1").await;
    if muster_test_prerequisites::cgroups(log.contains("/muster-agent-")) {
        assert!(!is_running(&hidden), "process {hidden} must have ended");
    }
    separate.release_job("before-1").await;
    separate.kill();
}
