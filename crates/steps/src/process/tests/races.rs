//! Races between the processes of a job, and with the threads of the agent.

use super::*;

#[tokio::test]
async fn file_that_is_still_being_written_is_executed_afterwards() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("program");
    std::fs::copy("/bin/true", &program).unwrap();
    let command = || Command { program: program.clone(), stdin: Some(b"input".to_vec()), ..Command::default() };
    for manager in managers() {
        let (processes, _) = job(&manager, "busy");
        let (_, log) = recorded_log();
        let stop = StopToken::new();
        let writer = std::fs::OpenOptions::new().append(true).open(&program).unwrap();
        let error = processes.run(command(), &log, &stop, GRACE).await.unwrap_err();
        assert!(
            matches!(&error, RunError::Start { source, .. } if source.kind() == io::ErrorKind::ExecutableFileBusy),
            "{error:?}"
        );
        let (ended, ()) = tokio::join!(processes.run(command(), &log, &stop, GRACE), async { drop(writer) });
        assert_eq!(ended.unwrap(), ProcessEnd::Exited(std::process::ExitStatus::from_raw(0)));
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn background_shells_do_not_report_that_their_children_were_terminated() {
    for manager in managers() {
        let (processes, _) = job(&manager, "background");
        let (memory, log) = recorded_log();
        let script = "for i in 1 2 3 4 5 6 7 8 9; do (sleep 600; echo late) & done; echo early";
        processes.run(shell(script), &log, &StopToken::new(), GRACE).await.unwrap();
        processes.finish(GRACE).await;
        assert_eq!(memory.text(), "early\n");
    }
}
