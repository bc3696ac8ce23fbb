//! Compares Muster's agent and GitLab's server: log, state and message of lists that GitLab's client runs in the legacy dialect.
//!
//! Some differences are removed before the comparison: blank lines, carriage returns before line feeds, and paths of temporary files.

use super::*;
use crate::step_runner::differential::copy_files;
use crate::step_runner::differential::lists::{CASES, Case};

/// Reason for the differences of lists with a path that does not exist in the working directory of the server.
const MESSAGE: &str = "The messages about the missing file differ in the remedy or in the operating system's text.";
/// Lists whose results differ over a socket but not between the commands `ci`, with the reason.
const ONLY_OVER_A_SOCKET: [(&str, &str); 3] = [
    (
        r##"[{name: t, script: 'printf "%s\n" "#!/bin/sh" "pwd; echo \$1 \$W" >tool/tool; chmod +x tool/tool'}, {name: a, step: ./tool, env: {OUTER: o}}]"##,
        MESSAGE,
    ),
    (r"[{name: a, step: './${{job.CI_V}}/../e', inputs: {s: dynamic}}]", MESSAGE),
    (
        r#"[{name: a, script: 'head -c 100000 /dev/zero | tr "\\0" x; echo; echo after'}]"#,
        "GitLab's server ends the stream at a line over 64 KiB with an error.",
    ),
];

#[tokio::test]
async fn their_client_gets_the_same_results_from_both_servers() {
    let Some(theirs) = variable(PROGRAM) else { return };
    let (our_project, their_project) = (Project::new(), Project::new());
    let ours = Server::start_agent(&our_project);
    let theirs = Server::start_theirs(&their_project, &theirs).await;
    let Some(mut client_of_ours) = TheirClient::new(&our_project, json!({ "socket": ours.socket })) else { return };
    let Some(mut client_of_theirs) = TheirClient::new(&their_project, json!({ "socket": theirs.socket })) else {
        return;
    };
    let mut problems = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let id = number.to_string();
        let ours = run(&mut client_of_ours, &our_project, &id, case);
        let theirs = run(&mut client_of_theirs, &their_project, &id, case);
        let reason = ONLY_OVER_A_SOCKET.iter().find(|(steps, _)| *steps == case.steps).map(|(_, reason)| reason);
        let is_listed = case.differences.iter().any(|difference| difference.in_legacy);
        let problem = match reason {
            None if ours != theirs && !is_listed => "no difference is listed",
            Some(_) if ours == theirs => "remove the reason",
            _ => continue,
        };
        problems.push(format!("{}: {problem}\n  ours: {ours:?}\n  theirs: {theirs:?}", case.steps));
    }
    assert!(problems.is_empty(), "{} of {} lists:\n{}", problems.len(), CASES.len(), problems.join("\n"));
    for (steps, _) in ONLY_OVER_A_SOCKET {
        assert!(CASES.iter().any(|case| case.steps == steps), "no list has the steps {steps}");
    }
    println!("GitLab's client ran {} lists at both servers; all differences are listed", CASES.len());
}

/// Returns the log, the job's state and message, and whether the call succeeded.
fn run(client: &mut TheirClient, project: &Project, id: &str, case: &Case) -> (String, Option<(String, String)>, bool) {
    std::fs::remove_dir_all(project.work()).unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/step_runner/differential/project");
    std::fs::create_dir(project.work()).unwrap();
    copy_files(&files, &project.work());
    let work = project.work().to_str().unwrap().to_owned();
    let values = [("CI_STEPS_DIALECT", "legacy"), ("CI_PROJECT_DIR", &work), ("CI_V", "v")];
    let variables: Vec<_> = values.iter().map(|(key, value)| json!({ "Key": key, "Value": value })).collect();
    let env: Map<_, _> = values.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let steps = format!("{{}}\n---\nrun: {}\n", case.steps.replace("/PROJECT", &work));
    let answer = client.call("run_and_follow", id, json!({ "steps": steps, "env": env, "variables": variables }));
    let normalize = |text: &str| {
        let text = text.replace(&work, "<project>").replace(project.tmp().to_str().unwrap(), "<tmp>");
        let words = text.split_inclusive([' ', '"']).map(|word| match word.strip_prefix("<tmp>") {
            Some(_) => format!("<file>{}", word.trim_start_matches(|c| c != ' ' && c != '"')),
            None => word.to_owned(),
        });
        words.collect::<String>()
    };
    let lines = answer.log.split('\n').map(|line| line.trim_end_matches('\r')).filter(|line| !line.is_empty());
    let log = normalize(&lines.collect::<Vec<_>>().join("\n"));
    let state = answer.states.get(id).map(|state| (state.state.clone(), normalize(&state.message)));
    // The text of the error is not compared, because the text of GitLab's server contains the whole request.
    (log, state, answer.error.is_empty())
}
