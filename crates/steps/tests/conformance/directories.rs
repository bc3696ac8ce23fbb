//! Cases 82, 83 and 85: directories, programs and streams of processes. Case 84 is a test of the agent.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::harness::Project;

/// Adds the step `pwd`, which prints its working directory.
fn with_pwd_step(project: Project, work_dir: &str) -> Project {
    project.step("dir/pwd", &format!("{{}}\n---\nexec: {{command: [pwd], work_dir: '{work_dir}'}}"))
}

const ITEM: &str = "- {name: p, step: ./dir/pwd}";

#[tokio::test]
async fn c082_working_directory_is_the_directory_of_the_job() {
    let project = Project::new().step("dir/pwd", "{}\n---\nexec: {command: [pwd]}");
    let expected = fs::canonicalize(project.path()).unwrap();
    assert_eq!(project.run(ITEM).await.log(), format!("{}\n", expected.display()));
    assert_eq!(project.run("- {name: s, script: pwd}").await.log(), format!("{}\n", expected.display()));
}

#[tokio::test]
async fn c082_work_dir_may_be_the_directory_of_the_step() {
    for (name, new) in [("step_dir", Project::new()), ("func_dir", Project::new()), ("step_dir", Project::legacy())] {
        let project = with_pwd_step(new, &format!("${{{{{name}}}}}"));
        let expected = fs::canonicalize(project.path().join("dir/pwd")).unwrap();
        assert_eq!(project.run(ITEM).await.log(), format!("{}\n", expected.display()));
    }
}

#[tokio::test]
async fn c082_relative_work_dir_is_relative_to_the_agent_legacy() {
    let expected = std::env::current_dir().unwrap().join("tests");
    let outcome = with_pwd_step(Project::legacy(), "tests").run(ITEM).await;
    assert_eq!(outcome.log(), format!("{}\n", expected.display()));
}

#[tokio::test]
async fn c082_relative_work_dir_is_relative_to_the_job_current() {
    let project = with_pwd_step(Project::new(), "dir");
    let expected = fs::canonicalize(project.path().join("dir")).unwrap();
    assert_eq!(project.run(ITEM).await.log(), format!("{}\n", expected.display()));
}

#[tokio::test]
async fn c083_path_variable_of_the_step_does_not_affect_the_lookup_of_its_program_legacy() {
    let step = "{}\n---\nexec: {command: [own-program]}\nenv: {PATH: '${{step_dir}}'}";
    let project = Project::legacy().step("own", step).file("own/own-program", "#!/bin/sh\necho found\n");
    let program = project.path().join("own/own-program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = project.run("- {name: o, step: ./own}").await;
    outcome.assert_error("exec: exec: \"own-program\": executable file not found in $PATH");
}

#[tokio::test]
async fn c082_path_of_a_program_is_relative_to_its_working_directory() {
    let step = "{}\n---\nexec: {command: [./own-sh, -c, echo found], work_dir: '${{step_dir}}'}";
    let project = Project::new().step("own", step);
    std::os::unix::fs::symlink("/bin/sh", project.path().join("own/own-sh")).unwrap();
    assert_eq!(project.run("- {name: o, step: ./own}").await.log(), "found\n");
}

#[tokio::test]
async fn missing_work_dir_of_a_step_is_named() {
    let outcome = with_pwd_step(Project::new(), "none").run(ITEM).await;
    outcome.assert_error("step \"p\": exec: chdir ");
    outcome.assert_error("/none: no such directory");
}

#[tokio::test]
async fn c085_standard_input_is_empty() {
    let step = "{}\n---\nexec: {command: [sh, -c, 'cat; echo end']}";
    let outcome = Project::new().step("cat", step).run("- {name: a, step: ./cat}\n- {name: b, script: cat}").await;
    assert_eq!(outcome.log(), "end\n");
}

#[tokio::test]
async fn c085_output_and_errors_keep_their_order() {
    let step = "{}\n---\nexec: {command: [sh, -c, 'echo 1; echo 2 >&2; echo 3; echo 4 >&2']}";
    let outcome = Project::new().step("both", step).run("- {name: a, step: ./both}").await;
    assert_eq!(outcome.log(), "1\n2\n3\n4\n");
}
