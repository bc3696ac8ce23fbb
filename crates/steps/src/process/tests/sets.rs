//! Tests of parallel and nested steps, which have their own sets of processes, and of the cgroups for policy rules.

use muster_job::StepLimits;

use super::*;

const DAEMON: &str = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' & exit 0";

/// Runs [`DAEMON`] and then `script` in one new set. Returns how `script` ended, and the process ID of the daemon.
async fn run_step(processes: &Processes, stop: &StopToken, script: &str, log: &Arc<dyn Log>) -> (ProcessEnd, i32) {
    let work = async {
        let (daemon_output, daemon_log) = recorded_log();
        processes.run(shell(DAEMON), &daemon_log, stop, GRACE).await.unwrap();
        let daemon = printed_pid(&daemon_output).await;
        (processes.run(shell(script), log, stop, GRACE).await.unwrap(), daemon)
    };
    processes.in_own_set(stop, GRACE, work).await
}

#[tokio::test]
async fn stop_of_one_step_does_not_terminate_the_processes_of_others() {
    for manager in managers() {
        let (processes, _) = job(&manager, "sets");
        let (job_output, log) = recorded_log();
        processes.run(shell(DAEMON), &log, &StopToken::new(), GRACE).await.unwrap();
        let daemon_of_job = printed_pid(&job_output).await;
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let sibling_script = format!("mkfifo '{0}'; echo ready; read line <'{0}'; echo survived", fifo.display());
        let ((stopped_output, stopped_log), (sibling_output, sibling_log)) = (recorded_log(), recorded_log());
        let (stop, not_stopped) = (StopToken::new(), StopToken::new());
        let stopped = async {
            let ended =
                run_step(&processes, &stop, "trap '' TERM; echo ready; while :; do sleep 1; done", &stopped_log).await;
            let sibling = sibling_output.text();
            // This way to open the FIFO does not wait for its reader.
            let mut fifo = std::fs::File::options().read(true).write(true).open(&fifo).unwrap();
            std::io::Write::write_all(&mut fifo, b"\n").unwrap();
            (ended, sibling, fifo)
        };
        let stopper = async {
            let all_run = || stopped_output.text() == "ready\n" && sibling_output.text() == "ready\n";
            wait_for("both steps run", all_run).await;
            stop.stop(TerminationCause::TimedOut);
        };
        let sibling = run_step(&processes, &not_stopped, &sibling_script, &sibling_log);
        let (((ended, daemon), sibling_before, _fifo), (sibling, sibling_daemon), ()) =
            tokio::join!(stopped, sibling, stopper);
        assert_eq!(ended, ProcessEnd::Stopped(TerminationCause::TimedOut));
        assert_eq!(sibling_before, "ready\n", "the sibling must run until the other step has ended");
        assert_eq!(sibling, ProcessEnd::Exited(std::process::ExitStatus::default()));
        assert_eq!(sibling_output.text(), "ready\nsurvived\n");
        assert_eq!([daemon, sibling_daemon, daemon_of_job].map(is_alive), [false, true, true]);
        processes.finish(GRACE).await;
        assert_eq!([sibling_daemon, daemon_of_job].map(is_alive), [false, false]);
    }
}

#[tokio::test]
async fn stop_of_a_step_terminates_the_steps_inside_it() {
    for manager in managers() {
        let (processes, _) = job(&manager, "nested");
        let (output, log) = recorded_log();
        let (stop, inner) = (StopToken::new(), StopToken::new());
        let work = run_step(&processes, &inner, "echo inner", &log);
        let work = async {
            let (_, daemon) = work.await;
            stop.stop(TerminationCause::CanceledByUser);
            daemon
        };
        let daemon = processes.in_own_set(&stop, GRACE, work).await;
        assert_eq!((output.text().as_str(), is_alive(daemon)), ("inner\n", false));
        let ended = processes.run(shell("echo after"), &log, &StopToken::new(), GRACE).await.unwrap();
        assert_eq!(ended, ProcessEnd::Exited(std::process::ExitStatus::default()));
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn cgroup_for_a_called_step_is_inside_that_of_its_caller() {
    let manager = ProcessManager::new(Containment::Cgroups, None);
    if !muster_test_prerequisites::cgroups(manager.cgroups.is_some()) {
        return;
    }
    let (processes, _) = job(&manager, "rules");
    let (output, log) = recorded_log();
    let cpu = StepLimits { cpu_milli: Some(700), ..StepLimits::default() };
    let memory_limit = StepLimits { memory_bytes: Some(64 << 20), ..StepLimits::default() };
    let stop = StopToken::new();
    let run = processes.run(shell("grep ^0:: /proc/self/cgroup"), &log, &stop, GRACE);
    let called = processes.run_limited_by_rule(1, &memory_limit, run);
    match processes.run_limited_by_rule(0, &cpu, called).await {
        Ok(Ok(ended)) => assert!(matches!(ended, Ok(ProcessEnd::Exited(_)))),
        Ok(Err(error)) | Err(error) => return muster_test_prerequisites::missing(error),
    }
    let path = output.text();
    let rules: Vec<&str> = path.trim().split('/').filter(|part| part.starts_with("rule-")).collect();
    assert_eq!(rules.len(), 2, "the cgroup of the called step must be inside that of its caller: {path}");
    processes.finish(GRACE).await;
    let job = processes.cgroup.as_ref().unwrap().path().to_owned();
    assert!(!job.exists(), "the cgroups of the job must be removed");
}
