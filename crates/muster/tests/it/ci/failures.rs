//! Problems of the machine or the directory are reported clearly, with exit status 2.

use super::{CommandOutput, Project};

#[test]
fn directory_without_repository_is_an_error() {
    let project = Project::empty();
    let directory = tempfile::tempdir().unwrap();
    let output = project.ci(&["-C", directory.path().to_str().unwrap()]).code(2);
    output.warns("not in a git repository").warns("git init");
    project.ci(&["-C", "/nowhere/at/all"]).code(2).warns("/nowhere/at/all");
}

#[test]
fn missing_commits_or_configuration_are_errors() {
    let project = Project::empty();
    project.ci(&[]).code(2).warns("no commits yet");
    project.write("a.txt", "a");
    project.commit("No pipeline");
    project.ci(&[]).code(2).warns(".gitlab-ci.yml").warns("--file");
    project.ci(&["show"]).code(0).warns("no past runs");
}

#[test]
fn unwritable_state_directory_is_an_error() {
    let project = Project::new("a: {script: ['true']}\n");
    std::fs::create_dir_all(project.home()).unwrap();
    let file = project.home().join("a-file");
    std::fs::write(&file, "").unwrap();
    let mut command = project.command(&[]);
    let output = CommandOutput::from(command.env("MUSTER_STATE_DIR", file.join("state")).output().unwrap()).code(2);
    output.warns("failed to write to the state directory").warns("MUSTER_STATE_DIR");
}

#[test]
fn invalid_arguments_are_errors() {
    let project = Project::new("a: {script: ['true']}\n");
    project.ci(&["run", "b"]).code(2).warns("no job `b`");
    project.ci(&["--event", "tag"]).code(2).warns("--tag NAME");
}

#[test]
fn special_files_are_not_read() {
    let project = Project::empty();
    project.write("README", "words");
    project.commit("No pipeline");
    let create_pipe = |path: &str| {
        let status = std::process::Command::new("mkfifo").arg(project.path().join(path)).status().unwrap();
        assert!(status.success(), "mkfifo {path}");
    };
    create_pipe(".gitlab-ci.yml");
    create_pipe("other");
    project.ci(&["lint"]).code(2).warns(".gitlab-ci.yml").warns("not a regular file");
    project.ci(&["lint", "--file", "other"]).code(2).warns("not a regular file");
    project.ci(&["lint", "--file", "/dev/zero"]).code(2).warns("not a regular file");
    project.write("ok.yml", "a: {script: ['true']}\n");
    let lint_with = |flag: &str, value: &str| project.ci(&["lint", "--file", "ok.yml", flag, value]);
    lint_with("--var-file", "other").code(2).warns("not a regular file");
    lint_with("--file-var", "A=/dev/zero").code(2).warns("not a regular file");
    std::fs::remove_file(project.path().join(".gitlab-ci.yml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", project.path().join(".gitlab-ci.yml")).unwrap();
    project.ci(&["lint"]).code(2).warns("not a regular file");
    project.write("large.env", &"#\n".repeat(1 << 21));
    lint_with("--var-file", "large.env").code(2).warns("larger than 2 MiB");
    project.ci(&["lint", "--file", "large.env"]).code(2).warns("2097152");
}

#[test]
fn pipe_from_the_shell_is_read() {
    let project = Project::new("a: {script: ['true']}\n");
    let ci = project.command(&["explain", "a", "--var-file", "/dev/stdin"]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "echo GIVEN=piped | \"$0\" \"$@\""]).arg(ci.get_program()).args(ci.get_args());
    command.current_dir(project.path()).env_clear();
    command.envs(ci.get_envs().filter_map(|(name, value)| Some((name, value?))));
    CommandOutput::from(command.output().unwrap()).code(0).prints("GIVEN=piped");
}

#[test]
fn event_without_pipeline_succeeds() {
    let project = Project::new("workflow: {rules: [{if: $CI_COMMIT_TAG}]}\na: {script: ['true']}\n");
    project.ci(&[]).code(0).warns("no pipeline for this event");
    project.ci(&["run", "a"]).code(2).warns("no pipeline for this event");
    project.ci(&["--tag", "v1"]).code(0).prints("1 passed");
}

/// Writes to `/dev/full` fail, as on a full disk.
#[test]
fn unwritable_output_fails_the_command() {
    let project = Project::new("a: {script: ['true']}\n");
    project.ci(&["run"]).code(0);
    let run_with_full_output = |arguments: &[&str]| {
        let sink = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        CommandOutput::from(project.command(arguments).stdout(sink).output().unwrap())
    };
    for arguments in [
        &["run"][..],
        &["run", "--output", "json"],
        &["run", "--output", "junit"],
        &["list"],
        &["list", "--output", "json"],
        &["graph"],
        &["graph", "--format", "dot"],
        &["graph", "--format", "svg"],
        &["lint"],
        &["lint", "--preview"],
        &["explain", "a"],
        &["show"],
        &["show", "last"],
        &["show", "last", "a"],
        &["show", "last", "a", "--raw"],
        &["clean"],
    ] {
        let output = run_with_full_output(arguments);
        assert_eq!(output.code, Some(2), "{arguments:?}: {output:#?}");
        output.warns("output is incomplete").warns("No space left on device");
        assert_eq!(output.err.matches("output is incomplete").count(), 1, "{arguments:?}: {output:#?}");
    }
    project.write(".gitlab-ci.yml", "a: {script: ['false']}\n");
    run_with_full_output(&["run"]).code(1).warns("output is incomplete");
}

#[test]
fn closed_pipe_is_not_a_failure() {
    let project = Project::new("a: {script: ['true']}\n");
    for arguments in [&["list"][..], &["lint", "--preview"], &["run"], &["run", "--output", "json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = CommandOutput::from(project.command(arguments).stdout(writer).output().unwrap()).code(0);
        assert!(!output.err.contains("incomplete"), "{arguments:?}: {output:#?}");
    }
}

#[test]
fn unpack_limits_are_set_in_ci_toml() {
    let project = Project::new(
        "build:\n  stage: build\n  script: ['echo 12345678 > a', 'echo > b']\n  artifacts: {paths: [a, b]}\n\
         unit: {stage: test, script: ['cat a']}\n",
    );
    let config = project.home().join("config/muster");
    std::fs::create_dir_all(&config).unwrap();
    let output = |limits: &str| {
        std::fs::write(config.join("ci.toml"), format!("[unpack]\n{limits}\n")).unwrap();
        project.ci(&["--log", "all"])
    };
    // The two files together have 10 bytes.
    output("max_bytes = 10").code(0);
    // The agent rejects an archive that a job receives.
    let too_low = output("max_bytes = 9").code(1);
    let reason = "the archive unpacks to more than 9 bytes; to raise the limit, set `max_bytes` of [unpack] in ci.toml";
    assert!(too_low.out.contains(reason), "{too_low:#?}");
    // The coordinator rejects an archive that a job uploads.
    let too_few = output("max_entries = 1").code(1);
    assert!(too_few.out.contains("the archive has more than 1 entries"), "{too_few:#?}");
    output("max_bytes = 10").code(0);
    std::fs::write(config.join("ci.toml"), "[unpack]\nmax_bytes = 9\n").unwrap();
    let target = project.home().join("extracted").display().to_string();
    let shown = project.ci(&["show", "last", "build", "--extract", &target]).code(2);
    assert!(shown.err.contains(reason), "{shown:#?}");
    output("max_bytes = 0").code(2);
}
