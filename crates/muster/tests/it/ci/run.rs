//! Runs: their order, what jobs see, results, and cleanup.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use muster_job::invariants;

use super::{CommandOutput, Project};

const THREE_STAGES: &str = "
stages: [build, test, deploy]
build:
  stage: build
  script: [mkdir out, 'echo made > out/file']
  artifacts: {paths: [out]}
unit:
  stage: test
  script: ['cat out/file']
deploy:
  stage: deploy
  script: ['echo deployed']
";

#[test]
fn stages_run_in_order_and_pass_artifacts() {
    let project = Project::new(THREE_STAGES);
    let output = project.ci(&["--output", "json", "--log", "all"]).code(0);
    assert_eq!(output.started(), ["build", "unit", "deploy"]);
    let lines: Vec<_> = output.events().into_iter().filter(|event| event["event"] == "log").collect();
    assert!(lines.iter().any(|event| event["name"] == "unit" && event["line"] == "made"), "{output:#?}");
    let last = output.events().pop().unwrap();
    assert_eq!((last["event"].as_str(), last["status"].as_str()), (Some("run_finished"), Some("passed")));
    assert_eq!(last["critical_path"], serde_json::json!(["build", "unit", "deploy"]));
}

#[test]
fn c200_many_jobs_run_stage_by_stage() {
    use std::fmt::Write as _;
    let mut configuration = String::from("stages: [s0, s1, s2, s3, s4, s5, s6, s7]\n");
    for (stage, job) in (0..8).flat_map(|stage| (0..6).map(move |job| (stage, job))) {
        writeln!(configuration, "j{stage}{job}: {{stage: s{stage}, script: ['true']}}").unwrap();
    }
    let output = Project::new(&configuration).ci(&["--concurrent", "4", "--output", "json"]).code(0);
    let (mut started, mut passed) = (BTreeMap::new(), Vec::new());
    let mut intervals = Vec::new();
    // The order of the events is the order in time.
    for (position, event) in output.events().iter().enumerate().filter(|(_, event)| event["event"] == "job") {
        let name = event["name"].as_str().unwrap().to_owned();
        match event["status"].as_str().unwrap() {
            "running" => {
                let stage: usize = name[1..2].parse().unwrap();
                assert!(
                    passed.len() >= stage * 6,
                    "{name} must not start before all jobs of earlier stages have passed: {passed:?}"
                );
                assert_eq!(started.insert(name, position), None, "each job must start once");
            }
            "success" => {
                intervals.push((started[&name], Some(position)));
                passed.push(name);
            }
            _ => {}
        }
    }
    assert_eq!((started.len(), passed.len()), (48, 48), "{passed:?}");
    invariants::at_most(4, intervals).unwrap();
}

#[test]
fn jobs_run_one_after_the_other_if_concurrent_is_1() {
    let job =
        |name: &str| format!("{name}: {{script: ['mkdir \"$HOME/turn\"', 'sleep 0.05', 'rmdir \"$HOME/turn\"']}}\n");
    let project = Project::new(&["a", "b", "c", "d"].map(job).concat());
    std::fs::create_dir_all(project.home()).unwrap();
    // Two simultaneous jobs would fail, because each creates the same directory.
    project.ci(&["--concurrent", "1"]).code(0).prints("4 passed");
}

#[test]
fn jobs_get_variables_of_commit_configuration_and_command_line() {
    let project = Project::new(
        "a:\n  variables: {MINE: job}\n  script: ['echo \"[$CI_COMMIT_BRANCH $CI_COMMIT_TITLE $CI_COMMIT_SHA $MINE $GIVEN $CI_JOB_NAME]\"']\n",
    );
    let sha = project.git(&["rev-parse", "HEAD"]);
    let output = project.ci(&["--var", "GIVEN=given"]).code(0);
    output.prints(&format!("[main First commit {sha} job given a]"));
}

#[test]
fn failed_job_exits_with_1_and_shows_its_log() {
    let project = Project::new("good: {script: ['echo fine']}\nbad: {script: ['echo reason; exit 7']}\n");
    let output = project.ci(&[]).code(1);
    output.prints("reason").prints("✗ bad").prints("exit status 7").lacks("│ fine").prints("1 passed, 1 failed");
}

#[test]
fn long_log_shows_its_tail_and_a_hint() {
    let project = Project::new(
        "good: {script: ['true']}\nbad: {script: ['seq 100001 100200; exit 7']}\n'b d': {script: ['seq 70; false']}\n",
    );
    let output = project.ci(&[]).code(1);
    output.prints("100200\n").lacks("100101\n").prints("earlier lines: `muster ci show 1 bad --log`");
    assert_eq!(
        output.out.lines().filter(|line| line.starts_with("bad ") && line.contains('│')).count(),
        51,
        "{output:#?}"
    );
    output.prints("earlier lines: `muster ci show 1 100002 --log`");
    project.ci(&["show", "1", "bad", "--log"]).code(0).prints("100001\n").prints("100200\n");
    project.ci(&["--log", "failed"]).code(1).prints("100001\n").lacks("earlier lines");
    project.ci(&["--output", "junit"]).code(1).prints("100001").prints("100200");
}

#[test]
fn working_tree_is_used_and_not_modified() {
    let project = Project::new("a:\n  script: ['cat tracked new', 'test ! -e ignored', 'echo x > made-by-job']\n");
    project.write("tracked", "old\n");
    project.write(".gitignore", "ignored\n");
    project.commit("Second");
    project.write("tracked", "dirty-tracked\n");
    project.write("new", "dirty-untracked\n");
    project.write("ignored", "secret\n");
    let before = project.files();
    project.ci(&[]).code(0).prints("dirty-tracked").prints("dirty-untracked").prints("with uncommitted changes");
    assert_eq!(project.files(), before, "the repository must not change");
}

#[test]
fn concurrent_runs_are_independent() {
    // Each job waits for the other run's job.
    let project = Project::new(
        "a:\n  script:\n    - touch \"$MEET/$CI_PIPELINE_IID\"\n    - until [ -e \"$MEET/1\" ] && [ -e \"$MEET/2\" ]; do sleep 0.02; done\n    - echo \"iid=$CI_PIPELINE_IID\"\n",
    );
    let meet = project.home().join("meet");
    std::fs::create_dir_all(&meet).unwrap();
    let variable = format!("MEET={}", meet.display());
    let start =
        || project.command(&["--var", &variable]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (one, two) = (start(), start());
    let mut numbers = Vec::new();
    for child in [one, two] {
        let output = CommandOutput::from(child.wait_with_output().unwrap()).code(0);
        numbers.push(output.out.split("iid=").last().unwrap().lines().next().unwrap().to_owned());
    }
    numbers.sort();
    assert_eq!(numbers, ["1", "2"]);
    project.ci(&["show"]).code(0).prints("\n2 ").prints("\n1 ");
}

/// Starts a run, and waits for an output line that contains `line` and is not the echoed command (`$ ...`).
pub(super) fn start_and_wait_for(
    project: &Project,
    line: &str,
) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let mut child = project.command(&["--log", "live"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while out.read_line(&mut text).unwrap() > 0 {
        if text.lines().last().is_some_and(|last| last.contains(line) && !last.contains('$')) {
            return (child, out);
        }
    }
    let status = child.wait().unwrap();
    panic!("the run ended ({status}) before {line:?}: {text}");
}

/// Returns the process command lines that contain this text.
pub(super) fn processes(text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(text)).collect()
}

pub(super) fn interrupt(child: &std::process::Child) {
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn ctrl_c_cancels_and_leaves_no_process() {
    let project = Project::new(
        "a:\n  script: ['setsid sleep 54321 &', 'trap \"echo cleaning; exit 1\" TERM', 'echo now', 'sleep 54321 & wait']\nb:\n  stage: deploy\n  script: ['true']\n",
    );
    let home = project.home().display().to_string();
    let started = Instant::now();
    let (mut child, out) = start_and_wait_for(&project, "now");
    interrupt(&child);
    let rest: Vec<_> = out.lines().map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:#?}");
    assert!(rest.iter().any(|line| line.contains("canceled in")), "{rest:#?}");
    assert!(started.elapsed() < Duration::from_secs(60), "the run must not wait for the end of the job");
    assert_eq!(processes("sleep 54321"), Vec::<String>::new());
    assert_eq!(processes(&home), Vec::<String>::new(), "the manager and the agent must have exited");
}

#[test]
fn second_ctrl_c_kills_jobs_that_ignore_signals() {
    let project = Project::new("a:\n  script: [\"trap '' TERM\", 'echo now', 'while true; do sleep 54322; done']\n");
    let home = project.home().display().to_string();
    let (mut child, out) = start_and_wait_for(&project, "now");
    interrupt(&child);
    // Two pending signals of one kind are merged, so wait until the first one was handled.
    let mut warnings = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(warnings.any(|line| line.contains("interrupt again")));
    interrupt(&child);
    let rest: Vec<_> = out.lines().map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:#?}");
    assert_eq!(processes("sleep 54322"), Vec::<String>::new());
    assert_eq!(processes(&home), Vec::<String>::new());
}

/// The job kills each manager that it finds, and logs nothing, so that no manager makes progress.
#[test]
fn repeatedly_killed_manager_fails_the_run_with_its_log() {
    let project = Project::new(
        "a:\n  script:\n    - |\n      while sleep 0.02; do\n        for p in /proc/[0-9]*; do\n          mapfile -d '' -t c < $p/cmdline || continue\n          if [ \"${c[1]}\" = manager ] && [[ \"${c[*]}\" = *\"$HOME/\"* ]]; then kill -9 ${p#/proc/} || true; fi\n        done\n      done 2>/dev/null\n",
    );
    let home = project.home().display().to_string();
    let output = project.ci(&[]).code(2);
    output.warns("was restarted").warns("exited 6 times without progress").warns("signal: 9").warns("manager.log");
    assert_eq!(processes(&home), Vec::<String>::new());
}

#[test]
fn child_pipeline_runs_to_completion() {
    let project = Project::new("child:\n  trigger: {include: child.yml, strategy: depend}\n");
    project.write("child.yml", "inner: {script: ['echo from the child']}\n");
    project.commit("Child");
    project.ci(&["--log", "all"]).code(0).prints("from the child").prints("✓ child");
}

#[test]
fn junit_has_a_test_case_per_job() {
    let project = Project::new("good: {script: ['true']}\nbad: {script: ['echo \"<why>\"; exit 1']}\n");
    let output = project.ci(&["--output", "junit"]).code(1);
    output.prints("tests=\"2\" failures=\"1\" skipped=\"0\"").prints("<testcase name=\"bad\"").prints("&lt;why&gt;");
}

#[test]
fn resource_usage_is_stored_and_shown() {
    // The loop uses some CPU time on any machine; the variable `text` makes the shell use 20 MB of memory.
    let burn = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; text=$(printf %20000000s x)";
    let project = Project::new(&format!("heavy: {{script: ['{burn}']}}\n"));
    let output = project.ci(&["--output", "json"]).code(0);
    let events = output.events();
    let job_event = events.iter().rfind(|event| event["event"] == "job").unwrap();
    assert!(job_event["cpu_ms"].as_u64().unwrap() >= 20, "{job_event}");
    assert!(job_event["memory_bytes"].as_u64().unwrap() >= 20_000_000, "{job_event}");
    assert_eq!(events.last().unwrap()["jobs"][0]["cpu_ms"], job_event["cpu_ms"]);
    project.ci(&["show", "last", "heavy"]).code(0).prints("\n  used ").prints(" of CPU, ").prints(" MB of memory");
}

#[test]
fn usage_of_each_step_is_shown_on_request() {
    let project = Project::new("work: {script: ['text=$(printf %20000000s x)']}\n");
    project.ci(&[]).code(0);
    let line_of = |arguments: &[&str], step: &str| {
        let output = project.ci(arguments).code(0);
        let line = output.out.lines().find(|line| line.contains(&format!("✓ {step} ")));
        line.unwrap_or_else(|| panic!("{step} is missing in {output:#?}")).to_owned()
    };
    assert!(!line_of(&["show", "last", "work"], "step_script").contains("used"));
    let script = line_of(&["show", "last", "work", "--usage"], "step_script");
    let (_, used) = script.split_once("  used ").unwrap_or_else(|| panic!("{script}"));
    assert!(used.contains(" of CPU, ") && used.contains(" MB of memory"), "{script}");
    assert!(!line_of(&["show", "last", "work", "--usage"], "job").contains("used"));
    let output = project.ci(&["show", "last", "--usage"]).code(2);
    output.warns("`--usage`").warns("require a job, as in `muster ci show 1 JOB`");
}

#[test]
fn show_lists_past_runs() {
    let project = Project::new(THREE_STAGES);
    project.ci(&[]).code(0);
    project.ci(&["show"]).code(0).prints("passed").prints("push").prints("main");
    project.ci(&["show", "1"]).code(0).prints("build").prints("archive").prints("success");
    project.ci(&["show", "last", "unit"]).code(0).prints("made").prints("✓");
    let target = project.home().join("extracted");
    project.ci(&["show", "build", "--extract", target.to_str().unwrap()]).code(0);
    assert_eq!(std::fs::read_to_string(target.join("out/file")).unwrap(), "made\n");
    project.ci(&["show", "last", "unti"]).code(2).warns("did you mean `unit`?");
    project.ci(&["clean"]).code(0).prints("deleted");
    project.ci(&["show"]).code(0).warns("no past runs");
}

#[test]
fn links_in_archives_are_extracted() {
    let make = "mkdir v1; echo 1 > v1/f; ln -s v1 cur";
    let project = Project::new(&format!("a: {{script: ['{make}'], artifacts: {{paths: [v1, cur]}}}}\n"));
    project.ci(&[]).code(0);
    let target = project.home().join("extracted");
    project.ci(&["show", "a", "--extract", target.to_str().unwrap()]).code(0);
    assert_eq!(std::fs::read_link(target.join("cur")).unwrap(), std::path::Path::new("v1"));
}

/// The archive contains a symbolic link with the name of the job's report file. Both are extracted into the same directory.
#[test]
fn report_is_not_extracted_through_a_link() {
    let project = Project::new("");
    let keys = project.home().join("keys");
    std::fs::create_dir_all(project.home()).unwrap();
    std::fs::write(&keys, "secret").unwrap();
    let make = format!("ln -s {} junit.xml.gz; echo \"<x/>\" > r.xml", keys.display());
    let artifacts = "{paths: [junit.xml.gz], reports: {junit: r.xml}}";
    project.write(".gitlab-ci.yml", &format!("a: {{script: ['{make}'], artifacts: {artifacts}}}\n"));
    project.commit("Link");
    project.ci(&[]).code(0);
    let target = project.home().join("extracted");
    project.ci(&["show", "a", "--extract", target.to_str().unwrap()]).code(0);
    assert_eq!(std::fs::read(&keys).unwrap(), b"secret");
    let report = target.join("junit.xml.gz");
    assert!(!report.is_symlink() && std::fs::read(report).unwrap().starts_with(&[0x1f, 0x8b]));
}

#[test]
fn run_that_does_not_start_uses_no_run_number() {
    let project = Project::new("a: {script: ['true']}\n");
    project.ci(&[]).code(0).prints("run 1  ");
    project.write("bad.yml", "a: [");
    project.ci(&["--file", "bad.yml"]).code(2);
    project.ci(&["run", "nope"]).code(2);
    project.ci(&[]).code(0).prints("run 2  ");
    project.ci(&["clean"]).code(0);
    project.ci(&["--file", "bad.yml"]).code(2);
    project.ci(&[]).code(0).prints("run 3  ");
}

#[test]
fn show_names_the_failed_job_of_a_child() {
    let project = Project::new("bad: {script: ['exit 5']}\nchild: {trigger: {include: child.yml, strategy: depend}}\n");
    project.write("child.yml", "fine: {script: ['true']}\ninner: {script: ['exit 1']}\n");
    project.commit("Child");
    project.ci(&[]).code(1).prints("child: the child pipeline failed").lacks("unknown");
    project.ci(&["show", "last"]).code(0).prints("the child pipeline failed: inner\n").lacks("unknown");
    project.ci(&["show", "child"]).code(0).prints("the child pipeline failed: inner\n");
    project.ci(&["show", "bad"]).code(0).prints("exit status 5").lacks("exit status 5  exit status 5");
}

#[test]
fn jobs_of_a_killed_run_are_unknown() {
    let project = Project::new(
        "a: {stage: build, script: ['echo now', 'while [ -e \"$CI_PROJECT_DIR\" ]; do sleep 0.05; done']}\n\
         b: {script: ['true']}\nc: {stage: deploy, when: manual, script: ['true']}\n",
    );
    let (mut child, _out) = start_and_wait_for(&project, "now");
    project.ci(&["show", "1"]).code(0).prints("running").lacks("unknown");
    child.kill().unwrap();
    child.wait().unwrap();
    let output = project.ci(&["show", "1"]).code(0);
    output.prints("run 1  stopped").prints("unknown").prints("not run").lacks("running");
    project.ci(&["show", "a"]).code(0).prints("a  unknown").prints("now");
}

#[test]
fn show_prints_the_log_or_the_raw_trace() {
    let project = Project::new("a:\n  script: ['echo first', 'printf \"x%.0s\" $(seq 100)']\n");
    project.ci(&[]).code(0).prints(&"x".repeat(100));
    let log = project.ci(&["show", "a", "--log"]).code(0);
    log.prints("\nfirst\n").prints(&"x".repeat(100)).lacks("section_").lacks("\u{1b}").lacks("✓").lacks("Z ");
    project.ci(&["show", "a", "--log", "--timestamps"]).code(0).prints("Z first\n");
    project.ci(&["show", "a", "--raw"]).code(0).prints("section_start:").prints("\u{1b}[0K").prints("01O first\n");
    project.ci(&["show", "1", "--raw"]).code(2).warns("require a job");
}

#[test]
fn shell_opens_in_the_workspace_with_variables() {
    let project = Project::new("a:\n  variables: {MINE: yes-mine}\n  script: ['echo left > left-by-job']\n");
    let shell = |arguments: &[&str]| {
        in_shell(&project, arguments, "echo \"[$MINE $CI_JOB_NAME]\"; cat .gitlab-ci.yml left-by-job; true\n", 0)
    };
    project.ci(&["run", "--keep"]).code(0);
    shell(&["shell", "a"]).prints("[yes-mine a]").prints("\nleft\n").warns("as the job left it");
    project.ci(&["run"]).code(0);
    shell(&["shell", "a"]).prints("[yes-mine a]").prints("script:").warns("was not kept");
    in_shell(&project, &["shell", "a"], "exit 7\n", 7);
    in_shell(&project, &["shell", "a"], "kill -KILL $$\n", 137);
}

fn in_shell(project: &Project, arguments: &[&str], line: &str, code: i32) -> CommandOutput {
    let mut command = project.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), line.as_bytes()).unwrap();
    CommandOutput::from(child.wait_with_output().unwrap()).code(code)
}

#[test]
fn shell_has_artifacts_in_jobs_of_child_pipelines() {
    let project =
        Project::new("child:\n  trigger: {include: child.yml, strategy: depend}\n  variables: {FROM_BRIDGE: b}\n");
    project.write(
        "child.yml",
        "stages: [one, two]\nmake:\n  stage: one\n  script: ['echo GIVEN=yes > v.env', 'echo made > file']\n  \
         artifacts: {paths: [file], reports: {dotenv: v.env}}\ninner: {stage: two, script: ['true']}\n",
    );
    project.commit("Child");
    project.ci(&[]).code(0);
    let output =
        in_shell(&project, &["shell", "inner"], "echo \"[$GIVEN $FROM_BRIDGE $CI_PIPELINE_SOURCE]\"; cat file\n", 0);
    output.prints("[yes b parent_pipeline]").prints("made\n");
}

#[test]
fn jobs_are_requested_over_grpc_after_the_first_response() {
    let project = Project::new("a: {script: [echo a]}\nb: {stage: deploy, script: [echo b]}\n");
    let output = project.command(&["run"]).env("MUSTER_LOG", "info,muster_runner_api=debug").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let projects = std::fs::read_dir(project.home().join("state/muster/projects")).unwrap();
    let state = projects.map(|project| project.unwrap().path()).next().unwrap();
    let log = std::fs::read_to_string(state.join("runs/1/manager.log")).unwrap();
    let has_all = |line: &&str, words: &[&str]| words.iter().all(|word| line.split(' ').any(|part| part == *word));
    let calls = |text: &str, words: &[&str]| text.lines().filter(|line| has_all(line, words)).count();
    let (before, after) = log.split_once("coordinator supports gRPC").unwrap_or_else(|| panic!("{log}"));
    let (http, grpc) = (["endpoint=request_job", "transport=http"], ["endpoint=request_job", "transport=grpc"]);
    assert_eq!((calls(before, &http), calls(before, &grpc)), (1, 0), "only the first request must use HTTP:\n{log}");
    assert_eq!(calls(after, &http), 0, "{log}");
    assert!(calls(after, &[&grpc[..], &["status=201"]].concat()) > 0, "a job must arrive over gRPC:\n{log}");
    assert!(calls(after, &["endpoint=update_job", "transport=http"]) > 0, "{log}");
}
