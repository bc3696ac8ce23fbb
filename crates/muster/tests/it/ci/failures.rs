//! What is wrong on this machine or in this folder is said plainly, with exit status 2.

use super::{Project, Said};

#[test]
fn a_folder_without_a_repository() {
    let project = Project::empty();
    let folder = tempfile::tempdir().unwrap();
    let said = project.ci(&["-C", folder.path().to_str().unwrap()]).code(2);
    said.warns("not in a git repository").warns("git init");
    project.ci(&["-C", "/nowhere/at/all"]).code(2).warns("/nowhere/at/all");
}

#[test]
fn a_repository_without_commits_or_configuration() {
    let project = Project::empty();
    project.ci(&[]).code(2).warns("no commits yet");
    project.write("a.txt", "a");
    project.commit("No pipeline");
    project.ci(&[]).code(2).warns(".gitlab-ci.yml").warns("--file");
    project.ci(&["show"]).code(0).warns("no past runs");
}

#[test]
fn a_state_directory_that_cannot_be_written() {
    let project = Project::new("a: {script: ['true']}\n");
    std::fs::create_dir_all(project.home()).unwrap();
    let file = project.home().join("a-file");
    std::fs::write(&file, "").unwrap();
    let mut command = project.command(&[]);
    let said = Said::from(command.env("MUSTER_STATE_DIR", file.join("state")).output().unwrap()).code(2);
    said.warns("cannot write to the state directory").warns("MUSTER_STATE_DIR");
}

#[test]
fn what_is_not_there_yet_is_said() {
    let project = Project::new("a: {script: ['true']}\n");
    project.ci(&["--executor", "docker"]).code(2).warns("not there yet");
    project.ci(&["run", "b"]).code(2).warns("no job `b`");
    project.ci(&["--event", "tag"]).code(2).warns("--tag NAME");
}

#[test]
fn an_event_that_makes_no_pipeline_is_no_failure() {
    let project = Project::new("workflow: {rules: [{if: $CI_COMMIT_TAG}]}\na: {script: ['true']}\n");
    project.ci(&[]).code(0).warns("nothing to run for this event");
    project.ci(&["run", "a"]).code(2).warns("no pipeline for this event");
    project.ci(&["--tag", "v1"]).code(0).says("1 passed");
}
