//! The state directory: a full disk, an entry that cannot be deleted, and a lock that another process holds.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{CommandOutput, Project};

const MAX_RUN_TIME: Duration = Duration::from_secs(40);

/// Runs `muster ci` with its state on a separate small disk, if this machine permits mounts.
fn on_small_disk(project: &Project, size: &str) -> Option<CommandOutput> {
    if !muster_test_prerequisites::mounts() {
        return None;
    }
    let state = project.home().join("small");
    std::fs::create_dir_all(&state).unwrap();
    let mount = format!("mount -t tmpfs -o size={size} none '{}'", state.display());
    let ci = project.command(&[]);
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &format!("{mount} && exec \"$0\" ci")]).arg(ci.get_program());
    command.current_dir(project.path()).env_clear();
    command.envs(ci.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("MUSTER_STATE_DIR", &state);
    let started = Instant::now();
    let output = CommandOutput::from(command.output().unwrap());
    assert!(started.elapsed() < MAX_RUN_TIME, "{size}: {:?}: {output:#?}", started.elapsed());
    assert_eq!(super::run::processes(&state.display().to_string()), Vec::<String>::new(), "{size}");
    Some(output)
}

#[test]
fn full_disk_ends_the_run_with_a_remedy() {
    // The first sizes are too small for the databases of coordinator and manager. The last sizes suffice for the databases, but not for
    // the log.
    std::thread::scope(|scope| {
        for size in ["20k", "60k", "100k", "200k", "300k", "400k", "700k", "1500k"] {
            scope.spawn(move || {
                let project = Project::new("a: {script: ['seq 1 300000']}\n");
                let Some(output) = on_small_disk(&project, size) else { return };
                let output = output.code(2);
                output.warns("/small` is full").warns("MUSTER_STATE_DIR");
                assert!(!output.err.contains("panicked") && !output.err.contains("defect"), "{size}: {output:#?}");
            });
        }
    });
}

/// Uses a mount point, which not even root can delete.
#[test]
fn clean_continues_after_errors_and_reports_them() {
    if !muster_test_prerequisites::mounts() {
        return;
    }
    let project = Project::new("a: {script: ['true']}\n");
    project.ci(&[]).code(0);
    project.ci(&[]).code(0);
    let projects = project.home().join("state/muster/projects");
    let state = std::fs::read_dir(projects).unwrap().next().unwrap().unwrap().path();
    let stuck = state.join("runs/1/a-stuck");
    std::fs::create_dir(&stuck).unwrap();
    let ci = project.command(&["clean", "--all"]);
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", "mount -t tmpfs none \"$1\" || exit 99; exec \"$0\" ci clean --all"]);
    command.arg(ci.get_program()).arg(&stuck).current_dir(project.path()).env_clear();
    command.envs(ci.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = CommandOutput::from(command.output().unwrap()).code(2);
    output.prints("deleted ").warns("a-stuck`: ").warns("one entry of the state directory");
    assert!(!output.err.contains("free some space"), "{output:#?}");
    let content = |directory: &std::path::Path| -> Vec<_> {
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let in_trash = content(&state.join("trash"));
    assert_eq!(in_trash.len(), 1, "{in_trash:?}");
    assert_eq!(content(&in_trash[0]), [in_trash[0].join("a-stuck")], "the rest of run 1 must be deleted");
    assert!(content(&state.join("runs")).is_empty());
    // The mount ended with the namespace of the command.
    project.ci(&["clean"]).code(0);
    assert!(content(&state.join("trash")).is_empty());
}

#[test]
fn run_that_waits_for_the_lock_of_the_repository_reports_it() {
    let project = Project::new("a: {script: ['true']}\n");
    project.ci(&[]).code(0);
    let projects = project.home().join("state/muster/projects");
    let path = std::fs::read_dir(projects).unwrap().next().unwrap().unwrap().path().join("lock");
    let lock = std::fs::File::open(&path).unwrap();
    lock.lock().unwrap();
    let mut child = project.command(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let message = messages.next().unwrap();
    assert!(message.contains("waiting for another `muster ci`"), "{message}");
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    drop(lock);
    assert!(child.wait_with_output().unwrap().status.success());
}
