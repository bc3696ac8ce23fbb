//! Tests that start processes, read their output and terminate them, with and without cgroups.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use muster_job::TerminationCause;

use super::*;
use crate::log::{Log, Stream};
use crate::stop::StopToken;

mod races;
mod sets;

const GRACE: Duration = Duration::from_millis(200);
/// Maximum time to wait: enough for a busy machine, and well below the run time of the background processes.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct MemoryLog(Mutex<Vec<u8>>);

impl Log for MemoryLog {
    fn write(&self, _: Stream, bytes: &[u8]) {
        self.0.lock().extend_from_slice(bytes);
    }
}

impl MemoryLog {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

fn recorded_log() -> (Arc<MemoryLog>, Arc<dyn Log>) {
    let memory = Arc::new(MemoryLog::default());
    let log: Arc<dyn Log> = Arc::<MemoryLog>::clone(&memory);
    (memory, log)
}

/// Returns one manager without cgroups, and one with cgroups if the system permits them.
fn managers() -> Vec<Arc<ProcessManager>> {
    let contained = ProcessManager::new(Containment::Cgroups, None);
    let contained = muster_test_prerequisites::cgroups(contained.cgroups.is_some()).then_some(contained);
    contained.into_iter().chain([ProcessManager::new(Containment::ProcessTree, None)]).collect()
}

fn job(manager: &Arc<ProcessManager>, name: &str) -> (Processes, Arc<Mutex<Vec<ProcessRecord>>>) {
    let records = Arc::new(Mutex::new(Vec::new()));
    let copy = Arc::clone(&records);
    let nonce = format!("{}-{:p}", std::process::id(), manager);
    let recorder: ProcessRecorder = Arc::new(move |item: &ProcessRecord| {
        copy.lock().push(item.clone());
        Ok(())
    });
    (manager.new_job(name, &nonce, recorder).unwrap(), records)
}

fn shell(script: &str) -> Command {
    Command {
        program: "/bin/sh".into(),
        env: std::env::vars_os().collect(),
        stdin: Some(script.as_bytes().to_vec()),
        ..Command::default()
    }
}

/// Polls until the condition is true, because only the end of children can be awaited.
async fn wait_for(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "timeout: {description}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn printed_pid(memory: &MemoryLog) -> i32 {
    wait_for("a process prints its ID", || memory.text().ends_with('\n')).await;
    memory.text().trim().parse().unwrap()
}

fn is_alive(pid: i32) -> bool {
    procfs::Process::read(pid).is_some_and(|process| !process.is_zombie)
}

/// Leaves orphans that exit, and ends when none is a zombie. `$$` is the process group.
const LEAVE_ORPHANS: &str = "for orphan in 1 2 3 4 5 6 7 8; do (sleep 0.1 &) done; sleep 0.3; attempts=0
    while grep -qE \"^[0-9]+ .* Z [0-9]+ $$ \" /proc/[0-9]*/stat 2>/dev/null; do
    attempts=$((attempts + 1)); [ $attempts -lt 300 ] || exit 9; sleep 0.1; done";

#[tokio::test]
async fn orphans_are_reaped_while_the_script_runs() {
    for manager in managers() {
        let (processes, _) = job(&manager, "orphans");
        let (memory, log) = recorded_log();
        let ended = processes.run(shell(LEAVE_ORPHANS), &log, &StopToken::new(), GRACE).await.unwrap();
        assert_eq!(ended, ProcessEnd::Exited(std::process::ExitStatus::from_raw(0)), "{}", memory.text());
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn output_of_both_streams_keeps_its_order() {
    for manager in managers() {
        let (processes, records) = job(&manager, "order");
        let (memory, log) = recorded_log();
        let ended =
            processes.run(shell("echo a; echo b >&2; echo c; exit 3"), &log, &StopToken::new(), GRACE).await.unwrap();
        assert_eq!(ended, ProcessEnd::Exited(std::process::ExitStatus::from_raw(3 << 8)));
        assert_eq!(memory.text(), "a\nb\nc\n");
        assert!(matches!(records.lock().as_slice(), [ProcessRecord::Job { .. }, ProcessRecord::Leader { .. }]));
        processes.finish(GRACE).await;
    }
}

/// Script that uses CPU time, independent of the load of the machine.
const BURN: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
const MIN_BURN_TIME: Duration = Duration::from_millis(20);

#[tokio::test]
async fn usage_includes_awaited_children() {
    for manager in managers() {
        let (processes, _) = job(&manager, "usage");
        let (_, log) = recorded_log();
        let before = processes.usage_counters();
        assert_eq!((before.cpu, before.memory_bytes), (Some(Duration::ZERO), Some(0)));
        // Until a child executes its program, it has the memory of this process. The script must use more.
        let script = format!("sh -c '{BURN}'; head -c 120000000 /dev/zero | tail -c 120000000 >/dev/null");
        processes.run(shell(&script), &log, &StopToken::new(), GRACE).await.unwrap();
        let after = processes.usage_counters();
        assert!(
            after.by_processes && after.cpu > Some(MIN_BURN_TIME) && after.memory_bytes > Some(120_000_000),
            "{after:?}"
        );
        // A second process adds its CPU time, but does not change the peak memory.
        processes.run(shell(BURN), &log, &StopToken::new(), GRACE).await.unwrap();
        let both = processes.usage_counters();
        assert!(both.cpu > after.cpu.map(|cpu| cpu + MIN_BURN_TIME), "{both:?} after {after:?}");
        assert_eq!(both.memory_bytes, after.memory_bytes);
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn usage_includes_terminated_background_processes() {
    for manager in managers() {
        let (processes, _) = job(&manager, "left");
        let (memory, log) = recorded_log();
        let script = format!("sh -c '{BURN}; echo burnt; exec sleep 600 >/dev/null 2>&1' & exit 0");
        processes.run(shell(&script), &log, &StopToken::new(), GRACE).await.unwrap();
        wait_for("the child has used CPU time", || memory.text().contains("burnt")).await;
        let before = processes.usage_counters();
        processes.finish(GRACE).await;
        let after = processes.usage_counters();
        assert!(after.cpu > before.cpu.map(|cpu| cpu + MIN_BURN_TIME), "{after:?} after {before:?}");
    }
}

#[tokio::test]
async fn processes_that_ignore_term_are_killed_after_grace_time() {
    for manager in managers() {
        let (processes, _) = job(&manager, "stubborn");
        let (memory, log) = recorded_log();
        let stop = StopToken::new();
        let script = "trap '' TERM; (trap '' TERM; echo $$; while :; do sleep 1; done) & setsid sh -c 'trap \"\" TERM; \
                      echo ready; while :; do sleep 1; done' & wait; while :; do sleep 1; done";
        let run = processes.run(shell(script), &log, &stop, GRACE);
        let stopper = async {
            wait_for("the tree runs", || memory.text().contains("ready")).await;
            stop.stop(TerminationCause::TimedOut);
        };
        let (ended, ()) = tokio::join!(run, stopper);
        assert_eq!(ended.unwrap(), ProcessEnd::Stopped(TerminationCause::TimedOut));
        assert_eq!(processes.members_of(&processes.all), Vec::<i32>::new());
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn background_process_does_not_delay_the_step() {
    let manager = ProcessManager::new(Containment::ProcessTree, None);
    let (processes, _) = job(&manager, "background");
    let (memory, log) = recorded_log();
    let script = "sleep 600 & { for n in 1 2 3; do sleep 0.1; echo late $n; done; } &\necho script";
    let stop = StopToken::new();
    let run = processes.run(shell(script), &log, &stop, GRACE);
    tokio::time::timeout(TIMEOUT, run).await.expect("the step must not wait for the background process").unwrap();
    wait_for("later output is in the log", || memory.text().ends_with("late 3\n")).await;
    processes.finish(GRACE).await;
}

/// Log that counts the writes between two turns of another task on the same thread.
#[derive(Default)]
struct TurnLog {
    /// Number of writes since the last turn, and the maximum of this number.
    writes: Mutex<(usize, usize)>,
    written: tokio::sync::Notify,
}

impl Log for TurnLog {
    fn write(&self, _: Stream, _: &[u8]) {
        let mut writes = self.writes.lock();
        writes.0 += 1;
        writes.1 = writes.1.max(writes.0);
        self.written.notify_one();
    }
}

#[tokio::test]
async fn endless_output_does_not_block_other_tasks() {
    let manager = ProcessManager::new(Containment::ProcessTree, None);
    let (processes, _) = job(&manager, "flood");
    let turns = Arc::new(TurnLog::default());
    let log: Arc<dyn Log> = Arc::<TurnLog>::clone(&turns);
    let stop = StopToken::new();
    let run = processes.run(shell("exec cat /dev/zero"), &log, &stop, GRACE);
    let other = async {
        turns.written.notified().await;
        *turns.writes.lock() = (0, 0);
        for _ in 0..1000 {
            turns.writes.lock().0 = 0;
            tokio::task::yield_now().await;
        }
        let max = turns.writes.lock().1;
        stop.stop(TerminationCause::CanceledByUser);
        max
    };
    let (ended, max) = tokio::join!(run, other);
    assert_eq!(ended.unwrap(), ProcessEnd::Stopped(TerminationCause::CanceledByUser));
    // Several writes are possible, because not only the pipe, but also its own yield wakes the copying task.
    assert!(max <= 4, "{max} writes between two turns");
    processes.finish(GRACE).await;
}

#[tokio::test]
async fn process_has_configured_limit_of_open_files() {
    let agent_limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let hard = agent_limit.map_or("unlimited".to_owned(), |files| files.to_string());
    for containment in [Containment::ProcessTree, Containment::Cgroups] {
        let manager = ProcessManager::new(containment, Some(99));
        let (processes, _) = job(&manager, "files");
        let (memory, log) = recorded_log();
        processes.run(shell("ulimit -Sn; ulimit -Hn"), &log, &StopToken::new(), GRACE).await.unwrap();
        assert_eq!(memory.text(), format!("99\n{hard}\n"));
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn daemon_is_terminated_with_its_job() {
    for manager in managers() {
        let (processes, _) = job(&manager, "daemon");
        let (memory, log) = recorded_log();
        let script = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' & exit 0";
        processes.run(shell(script), &log, &StopToken::new(), GRACE).await.unwrap();
        let pid: i32 = printed_pid(&memory).await;
        assert!(is_alive(pid));
        processes.finish(GRACE).await;
        assert!(!is_alive(pid));
    }
}

#[tokio::test]
async fn process_with_non_utf8_name_is_terminated_with_its_job() {
    for manager in managers() {
        let (processes, _) = job(&manager, "named");
        let (memory, log) = recorded_log();
        let change = r"printf \\377\\376 >/proc/$$/comm; echo $$; exec >/dev/null 2>&1; while :; do sleep 600; done";
        let script = format!("setsid -f sh -c '{change}' | head -n 1");
        processes.run(shell(&script), &log, &StopToken::new(), GRACE).await.unwrap();
        let pid: i32 = printed_pid(&memory).await;
        assert_eq!(std::fs::read(format!("/proc/{pid}/comm")).unwrap(), b"\xff\xfe\n");
        let watched = Watched::open(pid).unwrap();
        processes.finish(GRACE).await;
        assert!(watched.has_ended(), "the process must end with its job");
        assert!(!PathBuf::from(format!("/proc/{pid}")).exists(), "the process must not remain as a zombie");
    }
}

#[tokio::test]
async fn only_recorded_leftovers_are_terminated() {
    for manager in managers() {
        let (processes, records) = job(&manager, "leftover");
        let (memory, log) = recorded_log();
        let script = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &";
        processes.run(shell(script), &log, &StopToken::new(), GRACE).await.unwrap();
        let pid: i32 = printed_pid(&memory).await;
        let mut unrelated = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let id = i32::try_from(unrelated.id()).unwrap();
        let mut records = records.lock().clone();
        records.push(ProcessRecord::Leader { pid: id, start_ticks: 1 });
        terminate_leftovers(&records, GRACE).await;
        assert!(!is_alive(pid));
        assert!(is_alive(id), "a process with the same ID but another start time must not be terminated");
        unrelated.kill().unwrap();
        unrelated.wait().unwrap();
    }
}

#[tokio::test]
async fn error_names_missing_program() {
    for manager in managers() {
        let (processes, _) = job(&manager, "missing");
        let (_, log) = recorded_log();
        for program in ["/no/such/program", "no-such-program"] {
            let command = Command { program: program.into(), ..Command::default() };
            let error = processes.run(command, &log, &StopToken::new(), GRACE).await.unwrap_err();
            assert_eq!(error.to_string(), format!("failed to start `{program}`"));
        }
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn orphan_without_tag_is_an_adopted_descendant() {
    let manager = ProcessManager::new(Containment::ProcessTree, None);
    let (processes, _) = job(&manager, "orphan");
    let (memory, log) = recorded_log();
    let script = "env -i setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &";
    processes.run(shell(script), &log, &StopToken::new(), GRACE).await.unwrap();
    let pid: i32 = printed_pid(&memory).await;
    wait_for("the process is adopted", || processes.adopted_descendants(|_| true).contains(&pid)).await;
    terminate::terminate_all(|| processes.adopted_descendants(|process| process.pid == pid), GRACE, Vec::new).await;
    assert!(!is_alive(pid));
    processes.finish(GRACE).await;
}

#[tokio::test]
async fn job_can_start_processes_after_termination() {
    for manager in managers() {
        let (processes, _) = job(&manager, "again");
        let (memory, log) = recorded_log();
        for round in 1..=2 {
            let stop = StopToken::new();
            let run = processes.run(shell("trap '' TERM; echo ready; while :; do sleep 1; done"), &log, &stop, GRACE);
            let stopper = async {
                wait_for("the process runs", || memory.text().matches("ready").count() == round).await;
                stop.stop(TerminationCause::CanceledByUser);
            };
            let (ended, ()) = tokio::join!(run, stopper);
            assert_eq!(ended.unwrap(), ProcessEnd::Stopped(TerminationCause::CanceledByUser));
            let ended = processes.run(shell("echo after"), &log, &StopToken::new(), GRACE).await.unwrap();
            assert_eq!(ended, ProcessEnd::Exited(std::process::ExitStatus::default()));
        }
        processes.finish(GRACE).await;
        assert_eq!(memory.text().matches("after").count(), 2);
    }
}

/// Returns a command that leaves an orphan with its own session and only this environment.
fn hidden_process(environment: &str) -> Command {
    shell(&format!("env -i {environment} setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &"))
}

#[tokio::test]
async fn tag_of_ended_job_does_not_protect_a_process() {
    let manager = ProcessManager::new(Containment::ProcessTree, None);
    let (ended, _) = job(&manager, "ended");
    let tag = ended.tag.clone();
    ended.finish(GRACE).await;
    for tag in ["anything", "", &tag] {
        let (processes, _) = job(&manager, "made-up");
        let (memory, log) = recorded_log();
        processes.run(hidden_process(&format!("{JOB_TAG}={tag}")), &log, &StopToken::new(), GRACE).await.unwrap();
        let pid: i32 = printed_pid(&memory).await;
        wait_for("the process is adopted and belongs to no job", || {
            processes.adopted_descendants(|_| true).contains(&pid)
        })
        .await;
        terminate::terminate_all(|| processes.adopted_descendants(|process| process.pid == pid), GRACE, Vec::new).await;
        assert!(!is_alive(pid), "{tag}");
        processes.finish(GRACE).await;
    }
}

#[tokio::test]
async fn process_with_tag_of_another_job_ends_with_that_job() {
    let manager = ProcessManager::new(Containment::ProcessTree, None);
    let (one, _) = job(&manager, "one");
    let (two, _) = job(&manager, "two");
    let (memory, log) = recorded_log();
    one.run(hidden_process(&format!("{JOB_TAG}={}", two.tag)), &log, &StopToken::new(), GRACE).await.unwrap();
    let pid: i32 = printed_pid(&memory).await;
    wait_for("the process is adopted and is the other job's", || two.members_of(&two.all).contains(&pid)).await;
    assert!(!one.adopted_descendants(|_| true).contains(&pid));
    two.finish(GRACE).await;
    assert!(!is_alive(pid));
    one.finish(GRACE).await;
}

#[tokio::test]
async fn hidden_process_in_cgroup_ends_with_its_job() {
    let manager = ProcessManager::new(Containment::Cgroups, None);
    if !muster_test_prerequisites::cgroups(manager.cgroups.is_some()) {
        return;
    }
    let (other_job, _) = job(&manager, "beside");
    let (processes, _) = job(&manager, "contained");
    let (memory, log) = recorded_log();
    processes
        .run(hidden_process(&format!("{JOB_TAG}={}", other_job.tag)), &log, &StopToken::new(), GRACE)
        .await
        .unwrap();
    let pid: i32 = printed_pid(&memory).await;
    processes.finish(GRACE).await;
    assert!(!is_alive(pid));
    other_job.finish(GRACE).await;
}

#[tokio::test]
async fn frozen_cgroup_delays_only_its_own_job() {
    let manager = ProcessManager::new(Containment::Cgroups, None);
    if !muster_test_prerequisites::cgroups(manager.cgroups.is_some()) {
        return;
    }
    let ((frozen, _), (other_job, _)) = (job(&manager, "frozen"), job(&manager, "beside"));
    let (_, log) = recorded_log();
    let freeze = frozen.cgroup.as_ref().unwrap().path().join("cgroup.freeze");
    std::fs::write(freeze, "1").unwrap();
    let (stop, not_stopped) = (StopToken::new(), StopToken::new());
    let other = async {
        let ended = other_job.run(shell("true"), &log, &not_stopped, GRACE).await.unwrap();
        stop.stop(TerminationCause::CanceledByUser);
        ended
    };
    let both = async { tokio::join!(frozen.run(shell("true"), &log, &stop, GRACE), other) };
    let (ended, other) = tokio::time::timeout(TIMEOUT, both).await.expect("both jobs must end in time");
    assert_eq!(ended.unwrap(), ProcessEnd::Stopped(TerminationCause::CanceledByUser));
    assert!(matches!(other, ProcessEnd::Exited(status) if status.success()));
    frozen.finish(GRACE).await;
    other_job.finish(GRACE).await;
}

#[tokio::test]
async fn process_starts_in_the_same_way_with_and_without_cgroup() {
    for manager in managers() {
        let (processes, _) = job(&manager, "like-any");
        let (memory, log) = recorded_log();
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
        let ended = processes.run(command, &log, &StopToken::new(), GRACE).await.unwrap();
        let text = memory.text();
        let lines: Vec<&str> = text.lines().collect();
        let dir = dir.path().to_str().unwrap();
        assert!(
            matches!(lines.as_slice(), ["sh last arg", work_dir, "input", group, pid] if *work_dir == dir && group == pid),
            "{text}"
        );
        // Signal handling was reset.
        assert_eq!(ended, ProcessEnd::Exited(std::process::ExitStatus::from_raw(libc::SIGPIPE)));
        let missing = Command { work_dir: Some("/no/such/directory".into()), ..shell("true") };
        let error = processes.run(missing, &log, &StopToken::new(), GRACE).await.unwrap_err();
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("No such file"), "{error:?}");
        processes.finish(GRACE).await;
    }
}

#[test]
fn job_does_not_inherit_runner_tokens() {
    let is_inherited = |key: &str| is_inherited_by_jobs(std::ffi::OsStr::new(key));
    for name in ["CI_SERVER_TOKEN", "REGISTRATION_TOKEN", "MUSTER_STATE_DIR", "STEP_RUNNER_SOCKET"] {
        assert!(!is_inherited(name), "{name}");
    }
    assert!(is_inherited("PATH") && is_inherited("CI_SERVER_URL") && is_inherited("MY_CI_SERVER_TOKEN"));
}
