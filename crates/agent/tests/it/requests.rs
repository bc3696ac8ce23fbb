//! Requests with a step file, as clients of step-runner send them (`docs/spec/steps.md`, section 6.4).

use muster_agent_api::step_runner::step_result::Status;
use muster_agent_api::step_runner::{Job, RunRequest, StatusRequest, Variable};
use muster_job::TerminationCause;

use crate::harness::*;

impl Agent {
    /// Runs a step file in a missing directory. Returns its log, state and message.
    async fn run_step_file(&mut self, id: &str, steps: &str, variables: &[Variable]) -> (String, Status, String) {
        let work_dir = self.dir.path().join("work").join(id).to_string_lossy().into_owned();
        let request = RunRequest {
            id: id.to_owned(),
            work_dir,
            env: [("GREETING".to_owned(), "hello".to_owned())].into(),
            job: Some(Job { variables: variables.to_vec(), build_dir: String::new() }),
            steps: steps.to_owned(),
        };
        self.steps.run(request).await.unwrap();
        let log = self.log(id).await;
        let status = self.steps.status(StatusRequest { id: id.to_owned() }).await.unwrap().into_inner();
        let job = status.jobs.into_iter().next().unwrap();
        (log, job.status(), job.message)
    }
}

#[tokio::test]
async fn step_file_log_is_the_output_of_its_steps() {
    let mut agent = Agent::start().await;
    let greet = agent.dir.path().join("greet");
    std::fs::create_dir(&greet).unwrap();
    let file = "spec: {inputs: {who: {type: string}}}\n---\n\
                exec: {command: [sh, -c, 'echo \"$GREETING ${{ inputs.who }} in ${PWD##*/}\"']}\n";
    std::fs::write(greet.join("step.yml"), file).unwrap();
    let steps = format!(
        "{{}}\n---\nrun:\n  - name: greet\n    step: {}\n    inputs: {{who: '${{{{ vars.WHO }}}}'}}\n  \
         - name: secret\n    script: echo \"${{{{ vars.SECRET }}}}\"\n",
        greet.display()
    );
    let secret = Variable { masked: true, ..variable("SECRET", "hunter22hunter") };
    let (log, status, message) = agent.run_step_file("1", &steps, &[variable("WHO", "world"), secret]).await;
    assert_eq!(log, "Running step name=greet\nhello world in 1\nRunning step name=secret\n[MASKED]\n");
    assert_eq!((status, message.as_str()), (Status::Success, ""));
    let result = agent.wait("1").await;
    let names: Vec<_> = result.tree.steps[0].steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["greet", "secret"]);
    agent.close("1").await;
}

#[tokio::test]
async fn failed_and_canceled_steps_have_their_status() {
    let mut agent = Agent::start().await;
    let failing = "{}\n---\nexec: {command: [sh, -c, 'echo before; exit 7']}\n";
    let (log, status, message) = agent.run_step_file("1", failing, &[]).await;
    assert_eq!((status, message.as_str()), (Status::Failure, "exec: exit status 7"));
    assert_eq!(log, "Running step name=\nbefore\n");

    let work_dir = agent.dir.path().join("work").to_string_lossy().into_owned();
    let steps = "{}\n---\nrun:\n  - {name: slow, script: echo ready; sleep 600}\n".to_owned();
    agent.steps.run(RunRequest { id: "2".to_owned(), work_dir, steps, ..RunRequest::default() }).await.unwrap();
    agent.log_until("2", "ready\n").await;
    agent.cancel("2").await;
    let result = agent.wait("2").await;
    assert_eq!(failure(&result).0, "job_canceled");
    assert_eq!(result.tree.cause, Some(TerminationCause::CanceledByUser));
}

#[tokio::test]
async fn invalid_step_file_is_refused_and_not_stored() {
    let mut agent = Agent::start().await;
    for (steps, work_dir, message) in [
        ("run: []", "/tmp/none", "loading step: a step file must have two documents"),
        ("{}\n---\nrun: []", "/tmp/none", "loading step: `run` must be a list of at least one step"),
        ("{}\n---\nrun: [{name: a, script: ls}]", "", "is not a valid project directory"),
    ] {
        let request = RunRequest {
            id: "1".to_owned(),
            work_dir: work_dir.to_owned(),
            steps: steps.to_owned(),
            ..RunRequest::default()
        };
        let refused = agent.steps.run(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(message), "{refused}");
    }
    assert!(agent.ids().await.is_empty());
}
