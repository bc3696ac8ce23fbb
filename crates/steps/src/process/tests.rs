//! Tests that start, read and terminate processes, with and without cgroups.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use muster_job::TerminationCause;

use super::*;
use crate::log::{Log, Stream};
use crate::stop::Stop;

const GRACE: Duration = Duration::from_millis(200);
/// Maximum time to wait. It is enough for a busy machine, and well below the run time of the background servers.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Memory(Mutex<Vec<u8>>);

impl Log for Memory {
    fn write(&self, _: Stream, bytes: &[u8]) {
        self.0.lock().extend_from_slice(bytes);
    }
}

impl Memory {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

/// Returns a log in memory, as itself and as the port.
fn memory() -> (Arc<Memory>, Arc<dyn Log>) {
    let memory = Arc::new(Memory::default());
    let log: Arc<dyn Log> = Arc::<Memory>::clone(&memory);
    (memory, log)
}

/// Returns one host without cgroups, and one with cgroups if the system permits them.
fn hosts() -> Vec<Arc<Host>> {
    let contained = Host::new(Containment::Cgroups, None);
    let contained = muster_test_needs::cgroups(contained.cgroups.is_some()).then_some(contained);
    contained.into_iter().chain([Host::new(Containment::Descent, None)]).collect()
}

fn job(host: &Arc<Host>, name: &str) -> (Processes, Arc<Mutex<Vec<Trail>>>) {
    let trail = Arc::new(Mutex::new(Vec::new()));
    let copy = Arc::clone(&trail);
    let nonce = format!("{}-{:p}", std::process::id(), host);
    let recorder: Recorder = Arc::new(move |item: &Trail| {
        copy.lock().push(item.clone());
        Ok(())
    });
    (host.job(name, &nonce, recorder).unwrap(), trail)
}

fn shell(script: &str) -> Command {
    Command {
        program: "/bin/sh".into(),
        env: std::env::vars_os().collect(),
        stdin: Some(script.as_bytes().to_vec()),
        ..Command::default()
    }
}

/// Waits until the condition holds. It polls, because the end of processes that are not children cannot be awaited.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn alive(pid: i32) -> bool {
    table::Process::read(pid).is_some_and(|process| !process.zombie)
}

#[tokio::test]
async fn output_of_both_streams_keeps_its_order_and_the_status_is_told() {
    for host in hosts() {
        let (processes, trail) = job(&host, "order");
        let (memory, log) = memory();
        let ended =
            processes.run(shell("echo a; echo b >&2; echo c; exit 3"), &log, &Stop::new(), GRACE).await.unwrap();
        assert_eq!(ended, Ended::Exited(std::process::ExitStatus::from_raw(3 << 8)));
        assert_eq!(memory.text(), "a\nb\nc\n");
        assert!(matches!(trail.lock().as_slice(), [Trail::Job { .. }, Trail::Leader { .. }]));
        processes.finish(GRACE).await;
    }
}

/// Script that uses CPU time. The amount does not depend on the load of the machine.
const BURN: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
const BURNT: Duration = Duration::from_millis(20);

#[tokio::test]
async fn what_processes_used_is_counted_with_what_they_waited_for() {
    for host in hosts() {
        let (processes, _) = job(&host, "usage");
        let (_, log) = memory();
        let before = processes.counted();
        assert_eq!((before.cpu, before.memory_bytes), (Some(Duration::ZERO), Some(0)));
        let script = format!("sh -c '{BURN}'; head -c 30000000 /dev/zero | tail -c 30000000 >/dev/null");
        processes.run(shell(&script), &log, &Stop::new(), GRACE).await.unwrap();
        let after = processes.counted();
        assert!(after.by_processes && after.cpu > Some(BURNT) && after.memory_bytes > Some(30_000_000), "{after:?}");
        // A second process adds its CPU time, but does not change the peak memory.
        processes.run(shell(BURN), &log, &Stop::new(), GRACE).await.unwrap();
        let both = processes.counted();
        assert!(both.cpu > after.cpu.map(|cpu| cpu + BURNT), "{both:?} after {after:?}");
        assert_eq!(both.memory_bytes, after.memory_bytes);
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn what_nobody_waited_for_is_counted_when_it_is_ended() {
    for host in hosts() {
        let (processes, _) = job(&host, "left");
        let (memory, log) = memory();
        let script = format!("sh -c '{BURN}; echo burnt; exec sleep 600 >/dev/null 2>&1' & exit 0");
        processes.run(shell(&script), &log, &Stop::new(), GRACE).await.unwrap();
        until("it has burnt", || memory.text().contains("burnt")).await;
        let before = processes.counted();
        processes.finish(GRACE).await;
        let after = processes.counted();
        assert!(after.cpu > before.cpu.map(|cpu| cpu + BURNT), "{after:?} after {before:?}");
    }
}

#[tokio::test]
async fn a_stubborn_tree_is_killed_after_the_grace_time() {
    for host in hosts() {
        let (processes, _) = job(&host, "stubborn");
        let (memory, log) = memory();
        let stop = Stop::new();
        let script = "trap '' TERM; (trap '' TERM; echo $$; while :; do sleep 1; done) & setsid sh -c 'trap \"\" TERM; \
                      echo ready; while :; do sleep 1; done' & wait; while :; do sleep 1; done";
        let run = processes.run(shell(script), &log, &stop, GRACE);
        let stopper = async {
            until("the tree runs", || memory.text().contains("ready")).await;
            stop.stop(TerminationCause::TimedOut);
        };
        let (ended, ()) = tokio::join!(run, stopper);
        assert_eq!(ended.unwrap(), Ended::Stopped(TerminationCause::TimedOut));
        assert_eq!(processes.members(), Vec::<i32>::new());
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn a_server_in_the_background_does_not_hold_up_the_end_and_one_that_still_prints_is_heard() {
    let host = Host::new(Containment::Descent, None);
    let (processes, _) = job(&host, "background");
    let (memory, log) = memory();
    let script = "sleep 600 & { for n in 1 2 3; do sleep 0.1; echo late $n; done; } &\necho script";
    let stop = Stop::new();
    let run = processes.run(shell(script), &log, &stop, GRACE);
    tokio::time::timeout(PATIENCE, run).await.expect("the server is not waited for").unwrap();
    until("what is printed later is heard", || memory.text().ends_with("late 3\n")).await;
    processes.finish(GRACE).await;
}

/// Log that counts the writes between two turns of another task on the same thread.
#[derive(Default)]
struct Turns {
    /// Writes since the last turn, and the maximum.
    writes: Mutex<(usize, usize)>,
    written: tokio::sync::Notify,
}

impl Log for Turns {
    fn write(&self, _: Stream, _: &[u8]) {
        let mut writes = self.writes.lock();
        writes.0 += 1;
        writes.1 = writes.1.max(writes.0);
        self.written.notify_one();
    }
}

#[tokio::test]
async fn a_process_that_prints_without_end_leaves_others_on_the_thread_their_turns() {
    let host = Host::new(Containment::Descent, None);
    let (processes, _) = job(&host, "flood");
    let turns = Arc::new(Turns::default());
    let log: Arc<dyn Log> = Arc::<Turns>::clone(&turns);
    let stop = Stop::new();
    let run = processes.run(shell("exec cat /dev/zero"), &log, &stop, GRACE);
    let other = async {
        turns.written.notified().await;
        *turns.writes.lock() = (0, 0);
        for _ in 0..1000 {
            turns.writes.lock().0 = 0;
            tokio::task::yield_now().await;
        }
        let most = turns.writes.lock().1;
        stop.stop(TerminationCause::CanceledByUser);
        most
    };
    let (ended, most) = tokio::join!(run, other);
    assert_eq!(ended.unwrap(), Ended::Stopped(TerminationCause::CanceledByUser));
    // The flooding task is woken by the pipe as well as by its own yield.
    assert!(most <= 4, "{most} pieces between two turns");
    processes.finish(GRACE).await;
}

#[tokio::test]
async fn a_process_has_the_limit_of_open_files_that_jobs_are_to_have() {
    let host = Host::new(Containment::Descent, Some(99));
    let (processes, _) = job(&host, "files");
    let (memory, log) = memory();
    // The process gets the limit shortly after its start, and passes it on to the processes that it starts then.
    let script = "n=0; while [ $(ulimit -Sn) != 99 ] && [ $n -lt 3000 ]; do n=$((n+1)); sleep 0.01; done; ulimit -Sn; ulimit -Hn";
    processes.run(shell(script), &log, &Stop::new(), GRACE).await.unwrap();
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let hard = own.map_or("unlimited".to_owned(), |files| files.to_string());
    assert_eq!(memory.text(), format!("99\n{hard}\n"));
    processes.finish(GRACE).await;
}

#[tokio::test]
async fn a_daemon_that_left_its_group_and_session_is_ended_with_the_job() {
    for host in hosts() {
        let (processes, _) = job(&host, "daemon");
        let (memory, log) = memory();
        let script = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &\nwait_for=$!; sleep 0.1; exit 0";
        processes.run(shell(script), &log, &Stop::new(), GRACE).await.unwrap();
        let pid: i32 = memory.text().trim().parse().unwrap();
        assert!(alive(pid));
        processes.finish(GRACE).await;
        assert!(!alive(pid));
    }
}

#[tokio::test]
async fn a_process_whose_name_is_not_utf_8_is_ended_with_the_job() {
    for host in hosts() {
        let (processes, _) = job(&host, "named");
        let (memory, log) = memory();
        let change = r"printf \\377\\376 >/proc/$$/comm; echo $$; exec >/dev/null 2>&1; while :; do sleep 600; done";
        let script = format!("setsid -f sh -c '{change}' | head -n 1");
        processes.run(shell(&script), &log, &Stop::new(), GRACE).await.unwrap();
        let pid: i32 = memory.text().trim().parse().unwrap();
        assert_eq!(std::fs::read(format!("/proc/{pid}/comm")).unwrap(), b"\xff\xfe\n");
        let watched = Watched::open(pid).unwrap();
        processes.finish(GRACE).await;
        assert!(watched.has_ended(), "it outlives its job");
        assert!(!PathBuf::from(format!("/proc/{pid}")).exists(), "it stays as a zombie");
    }
}

#[tokio::test]
async fn leftovers_are_found_by_the_trail_and_strangers_are_left_alone() {
    for host in hosts() {
        let (processes, trail) = job(&host, "leftover");
        let (memory, log) = memory();
        let script = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &\nsleep 0.1";
        processes.run(shell(script), &log, &Stop::new(), GRACE).await.unwrap();
        let pid: i32 = memory.text().trim().parse().unwrap();
        let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let id = i32::try_from(stranger.id()).unwrap();
        let mut trail = trail.lock().clone();
        trail.push(Trail::Leader { pid: id, start_ticks: 1 });
        end_leftovers(&trail, GRACE).await;
        assert!(!alive(pid));
        assert!(alive(id), "a process with the same id but another start time is not the job's");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}

#[tokio::test]
async fn a_missing_program_is_an_error_that_names_it() {
    for host in hosts() {
        let (processes, _) = job(&host, "missing");
        let (_, log) = memory();
        for program in ["/no/such/program", "no-such-program"] {
            let command = Command { program: program.into(), ..Command::default() };
            let error = processes.run(command, &log, &Stop::new(), GRACE).await.unwrap_err();
            assert_eq!(error.to_string(), format!("cannot start `{program}`"));
        }
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn a_process_without_mark_and_group_is_found_as_a_stranger() {
    let host = Host::new(Containment::Descent, None);
    let (processes, _) = job(&host, "stranger");
    let (memory, log) = memory();
    let script = "env -i setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &\nsleep 0.1";
    processes.run(shell(script), &log, &Stop::new(), GRACE).await.unwrap();
    let pid: i32 = memory.text().trim().parse().unwrap();
    until("the process is adopted", || processes.strangers(|_| true).contains(&pid)).await;
    end::end_all(|| processes.strangers(|process| process.pid == pid), GRACE, None).await;
    assert!(!alive(pid));
    processes.finish(GRACE).await;
}

#[tokio::test]
async fn after_its_processes_were_killed_a_job_can_start_others() {
    for host in hosts() {
        let (processes, _) = job(&host, "again");
        let (memory, log) = memory();
        for round in 1..=2 {
            let stop = Stop::new();
            let run = processes.run(shell("trap '' TERM; echo ready; while :; do sleep 1; done"), &log, &stop, GRACE);
            let stopper = async {
                until("it runs", || memory.text().matches("ready").count() == round).await;
                stop.stop(TerminationCause::CanceledByUser);
            };
            let (ended, ()) = tokio::join!(run, stopper);
            assert_eq!(ended.unwrap(), Ended::Stopped(TerminationCause::CanceledByUser));
            let ended = processes.run(shell("echo after"), &log, &Stop::new(), GRACE).await.unwrap();
            assert_eq!(ended, Ended::Exited(std::process::ExitStatus::default()));
        }
        processes.finish(GRACE).await;
        assert_eq!(memory.text().matches("after").count(), 2);
    }
}

/// Returns a script that leaves a process behind: in its own session, orphaned, and with only this environment.
fn hide(environment: &str) -> Command {
    shell(&format!("env -i {environment} setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &\nsleep 0.1"))
}

#[tokio::test]
async fn a_mark_of_no_running_job_protects_no_process() {
    let host = Host::new(Containment::Descent, None);
    let (ended, _) = job(&host, "ended");
    let mark = ended.mark.clone();
    ended.finish(GRACE).await;
    for mark in ["anything", "", &mark] {
        let (processes, _) = job(&host, "made-up");
        let (memory, log) = memory();
        processes.run(hide(&format!("{MARK}={mark}")), &log, &Stop::new(), GRACE).await.unwrap();
        let pid: i32 = memory.text().trim().parse().unwrap();
        until("the process is adopted and belongs to no job", || processes.strangers(|_| true).contains(&pid)).await;
        end::end_all(|| processes.strangers(|process| process.pid == pid), GRACE, None).await;
        assert!(!alive(pid), "{mark}");
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn a_process_with_the_mark_of_another_running_job_ends_with_that_job() {
    let host = Host::new(Containment::Descent, None);
    let (one, _) = job(&host, "one");
    let (two, _) = job(&host, "two");
    let (memory, log) = memory();
    one.run(hide(&format!("{MARK}={}", two.mark)), &log, &Stop::new(), GRACE).await.unwrap();
    let pid: i32 = memory.text().trim().parse().unwrap();
    until("the process is adopted and is the other job's", || two.members().contains(&pid)).await;
    assert!(!one.strangers(|_| true).contains(&pid));
    two.finish(GRACE).await;
    assert!(!alive(pid));
    one.finish(GRACE).await;
}

#[tokio::test]
async fn with_a_cgroup_a_process_that_hides_ends_with_its_job_whatever_runs_beside_it() {
    let host = Host::new(Containment::Cgroups, None);
    if !muster_test_needs::cgroups(host.cgroups.is_some()) {
        return;
    }
    let (beside, _) = job(&host, "beside");
    let (processes, _) = job(&host, "contained");
    let (memory, log) = memory();
    processes.run(hide(&format!("{MARK}={}", beside.mark)), &log, &Stop::new(), GRACE).await.unwrap();
    let pid: i32 = memory.text().trim().parse().unwrap();
    processes.finish(GRACE).await;
    assert!(!alive(pid));
    beside.finish(GRACE).await;
}

#[tokio::test]
async fn a_job_that_freezes_its_cgroup_waits_alone() {
    let host = Host::new(Containment::Cgroups, None);
    if !muster_test_needs::cgroups(host.cgroups.is_some()) {
        return;
    }
    let ((frozen, _), (beside, _)) = (job(&host, "frozen"), job(&host, "beside"));
    let (_, log) = memory();
    let freeze = frozen.cgroup.as_ref().unwrap().path().join("cgroup.freeze");
    std::fs::write(freeze, "1").unwrap();
    let (stop, go_on) = (Stop::new(), Stop::new());
    let other = async {
        let ended = beside.run(shell("true"), &log, &go_on, GRACE).await.unwrap();
        stop.stop(TerminationCause::CanceledByUser);
        ended
    };
    let both = async { tokio::join!(frozen.run(shell("true"), &log, &stop, GRACE), other) };
    let (ended, other) = tokio::time::timeout(PATIENCE, both).await.expect("neither hangs");
    assert_eq!(ended.unwrap(), Ended::Stopped(TerminationCause::CanceledByUser));
    assert!(matches!(other, Ended::Exited(status) if status.success()));
    frozen.finish(GRACE).await;
    beside.finish(GRACE).await;
}

#[tokio::test]
async fn a_process_in_a_cgroup_is_started_as_any_other() {
    for host in hosts() {
        let (processes, _) = job(&host, "like-any");
        let (memory, log) = memory();
        let dir = tempfile::tempdir().unwrap();
        let command = Command {
            program: "sh".into(),
            args: ["-c", "echo $0 $A $1; pwd; cat; cut -d' ' -f5 /proc/$$/stat; echo $$; kill -PIPE $$", "sh", "arg"]
                .map(Into::into)
                .to_vec(),
            env: [("PATH", "/usr/bin:/bin"), ("A", "first"), ("A", "last")].map(|(k, v)| (k.into(), v.into())).to_vec(),
            work_dir: Some(dir.path().to_owned()),
            stdin: Some(b"input\n".to_vec()),
            stdout: None,
        };
        let ended = processes.run(command, &log, &Stop::new(), GRACE).await.unwrap();
        let text = memory.text();
        let lines: Vec<&str> = text.lines().collect();
        let dir = dir.path().to_str().unwrap();
        assert!(
            matches!(lines.as_slice(), ["sh last arg", own, "input", group, pid] if *own == dir && group == pid),
            "{text}"
        );
        // Signal handling was reset to its default.
        assert_eq!(ended, Ended::Exited(std::process::ExitStatus::from_raw(libc::SIGPIPE)));
        let missing = Command { work_dir: Some("/no/such/directory".into()), ..shell("true") };
        let error = processes.run(missing, &log, &Stop::new(), GRACE).await.unwrap_err();
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("No such file"), "{error:?}");
        processes.finish(GRACE).await;
    }
}

#[test]
fn a_job_does_not_get_the_tokens_of_its_runner() {
    let handed_on = |key: &str| is_for_jobs(std::ffi::OsStr::new(key));
    for own in ["CI_SERVER_TOKEN", "REGISTRATION_TOKEN", "MUSTER_STATE_DIR", "STEP_RUNNER_SOCKET"] {
        assert!(!handed_on(own), "{own}");
    }
    assert!(handed_on("PATH") && handed_on("CI_SERVER_URL") && handed_on("MY_CI_SERVER_TOKEN"));
}
