//! Jobs from `Run` to `Close`.

use muster_agent_api::plan::{Call, When};
use muster_agent_api::result::{Outcome, StepStatus};
use muster_agent_api::step_runner::Variable;

use crate::harness::*;

#[tokio::test]
async fn job_log_equals_that_of_gitlab_runner() {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(vec![script(&["echo hello"]), after_script(&["echo \"it was $CI_JOB_STATUS\""])]);
    plan.header = vec!["Running with muster".to_owned()];
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(
        log,
        "\x1b[0KRunning with muster\x1b[0;m\n\
         \x1b[0K\x1b[36;1mExecuting \"get_sources\" stage of the job script\x1b[0;m\x1b[0;m\n\
         \x1b[32;1mSkipping Git repository setup\x1b[0;m\n\
         \x1b[32;1mSkipping Git checkout\x1b[0;m\n\
         \x1b[32;1mSkipping Git submodules setup\x1b[0;m\n\
         \x1b[0K\x1b[36;1mExecuting \"step_script\" stage of the job script\x1b[0;m\x1b[0;m\n\
         \x1b[32;1m$ echo hello\x1b[0;m\n\
         hello\n\
         \x1b[0K\x1b[36;1mExecuting \"after_script\" stage of the job script\x1b[0;m\x1b[0;m\n\
         \x1b[32;1mRunning after script...\x1b[0;m\n\
         \x1b[32;1m$ echo \"it was $CI_JOB_STATUS\"\x1b[0;m\n\
         it was success\n\
         \x1b[32;1mJob succeeded\x1b[0;m\n"
    );
    assert_eq!(result.outcome, Outcome::Success);
    let ok = StepStatus::Success;
    assert_eq!(states(&result), [("get_sources", ok), ("step_script", ok), ("after_script", ok)]);
    assert_eq!(agent.temporary_files(), [""; 0]);
}

#[tokio::test]
async fn failing_script_fails_the_job_with_its_status() {
    let mut agent = Agent::start().await;
    let on_failure = step("upload", When::OnFailure, script(&["echo saved"]).call);
    let on_success = step("never", When::OnSuccess, script(&["echo never"]).call);
    let plan = agent.plan(vec![
        script(&["exit 3"]),
        after_script(&["echo \"it was $CI_JOB_STATUS\"; exit 9"]),
        on_failure,
        on_success,
    ]);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(3)));
    assert!(log.contains("it was failed\n") && log.contains("\nsaved\n") && !log.contains("\nnever\n"), "{log}");
    let warning = "WARNING: after_script failed, but job will continue unaffected: exit status 9\x1b[0;m\n";
    assert!(log.contains(warning), "{log}");
    assert!(log.ends_with("\x1b[31;1mERROR: Job failed: exit status 3\x1b[0;m\n"), "{log}");
}

#[tokio::test]
async fn variables_reach_the_script_and_masked_ones_do_not_reach_the_log() {
    let mut agent = Agent::start().await;
    let plan = agent.plan(vec![
        script(&["echo \"$A and $SECRET\"", "cat \"$FILE\"; stat -c %a \"$FILE\"", "echo B=later >> \"$GITLAB_ENV\""]),
        after_script(&["echo \"B is $B\""]),
    ]);
    let secret = Variable { masked: true, ..variable("SECRET", "hunter22hunter") };
    let file = Variable { file: true, ..variable("FILE", "content\n") };
    agent.run("2-1", &plan, &[variable("A", "first"), secret, file]).await;
    let log = agent.log("2-1").await;
    assert!(log.contains("\nfirst and [MASKED]\n"), "{log}");
    assert!(log.contains("\ncontent\n600\n") && log.contains("\nB is later\n"), "{log}");
    assert!(!log.contains("hunter22hunter"));
}

#[tokio::test]
async fn second_run_attaches_to_running_job() {
    let mut agent = Agent::start().await;
    let counter = agent.dir.path().join("count");
    let plan = agent.plan(vec![script(&[&format!("echo once >> {}; cat", counter.display())])]);
    agent.run("3-1", &plan, &[]).await;
    agent.run("3-1", &plan, &[]).await;
    agent.wait("3-1").await;
    agent.run("3-1", &plan, &[]).await;
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), "once\n");
    assert_eq!(agent.ids().await, ["3-1"]);
    agent.close("3-1").await;
    agent.close("3-1").await;
    assert!(agent.ids().await.is_empty());
    assert!(!agent.dir.path().join("spool/3-1").exists());
}

#[tokio::test]
async fn followers_start_at_any_offset_and_wait_for_the_end() {
    let mut agent = Agent::start().await;
    let gate = agent.dir.path().join("gate");
    let plan =
        agent.plan(vec![script(&["echo start", &format!("until [ -e {} ]; do sleep 0.01; done", gate.display())])]);
    agent.run("4-1", &plan, &[]).await;
    let seen = agent.log_until("4-1", "\nstart\n").await;
    let (mut steps, offset) = (agent.steps.clone(), i64::try_from(seen.len()).unwrap());
    let rest = tokio::spawn(async move {
        let request = muster_agent_api::step_runner::FollowLogsRequest { id: "4-1".to_owned(), offset };
        let mut stream = steps.follow_logs(request).await.unwrap().into_inner();
        let mut rest = Vec::new();
        while let Some(message) = stream.message().await.unwrap() {
            rest.extend(message.data);
        }
        String::from_utf8(rest).unwrap()
    });
    std::fs::write(gate, "").unwrap();
    let rest = tokio::time::timeout(TIMEOUT, rest).await.unwrap().unwrap();
    assert_eq!(format!("{seen}{rest}"), agent.log("4-1").await);
    assert!(rest.ends_with("Job succeeded\x1b[0;m\n"));
}

#[tokio::test]
async fn user_steps_run_and_are_in_the_result_tree() {
    let mut agent = Agent::start().await;
    let list = serde_json::json!([
        {"name": "one", "script": "echo \"${{ vars.A }}\""},
        {"name": "two", "script": "exit 4"},
        {"name": "three", "script": "echo never"},
    ]);
    let plan = agent.plan(vec![step("step_run", When::OnSuccess, Call::Run(list))]);
    agent.run("1-1", &plan, &[variable("A", "from the job")]).await;
    let log = agent.log("1-1").await;
    let result = agent.wait("1-1").await;
    assert!(log.contains("\nfrom the job\n") && !log.contains("never"), "{log}");
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(4)));
    let steps: Vec<_> = result.tree.steps[1].steps.iter().map(|step| (step.name.as_str(), step.status)).collect();
    assert_eq!(steps, [("one", StepStatus::Success), ("two", StepStatus::Failure)]);
}
