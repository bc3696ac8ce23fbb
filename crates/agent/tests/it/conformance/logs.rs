//! Cases 103 to 105: following logs.

use muster_agent_api::step_runner::FollowLogsRequest;

use super::*;

#[tokio::test]
async fn c103_every_follower_gets_the_bytes_after_its_offset() {
    let mut agent = Agent::start().await;
    let fifo = Fifo::new(&agent);
    agent.run_script("1", &format!("echo early; {}; printf '\\nlate\\r\\nend'", fifo.wait_command()), &[]).await;
    let expected = log_of("early\n\nlate\r\nend").into_bytes();
    let follow = |offset: usize| {
        let mut steps = agent.steps.clone();
        tokio::spawn(async move {
            let request = FollowLogsRequest { id: "1".to_owned(), offset: i64::try_from(offset).unwrap() };
            let mut stream = steps.follow_logs(request).await.unwrap().into_inner();
            let mut log = Vec::new();
            while let Some(message) = stream.message().await.unwrap() {
                log.extend(message.data);
            }
            log
        })
    };
    let offsets = [0, 0, 0, 0, 0, 7, expected.len() - 1, expected.len(), expected.len() + 10];
    let followers = offsets.map(follow);
    agent.log_until("1", "early\n").await;
    fifo.let_job_continue().await;
    for (offset, follower) in offsets.into_iter().zip(followers) {
        let log = tokio::time::timeout(TIMEOUT, follower).await.unwrap().unwrap();
        assert_eq!(log, expected.get(offset..).unwrap_or_default(), "offset {offset}");
        assert_eq!(agent.log_from("1", i64::try_from(offset).unwrap()).await, log);
    }
    let negative = agent.steps.follow_logs(FollowLogsRequest { id: "1".to_owned(), offset: -1 }).await.unwrap_err();
    assert_eq!((negative.code(), negative.message()), (tonic::Code::InvalidArgument, "-1 is not a valid offset"));
}

#[tokio::test]
async fn c104_interrupted_follower_resumes_at_its_offset() {
    let mut agent = Agent::start().await;
    let fifo = Fifo::new(&agent);
    agent.run_script("1", &format!("echo early; {}; echo late", fifo.wait_command()), &[]).await;
    // The first call ends early, as after an error of the client's writer.
    let early = agent.log_until("1", "early\n").await;
    fifo.let_job_continue().await;
    let rest = agent.log_from("1", i64::try_from(early.len()).unwrap()).await;
    assert_eq!(early + &String::from_utf8(rest).unwrap(), log_of("early\nlate\n"));
}

#[tokio::test]
async fn c105_lines_arrive_while_the_job_runs() {
    let mut agent = Agent::start().await;
    let fifo = Fifo::new(&agent);
    agent.run_script("1", &format!("echo early; {}; echo late", fifo.wait_command()), &[]).await;
    assert_eq!(agent.log_until("1", "early\n").await, log_of("early\n"));
    assert_eq!(agent.status("1").await.status(), State::Running);
    fifo.let_job_continue().await;
    agent.log_until("1", "late\n").await;
    agent.assert_ended("1", State::Success, None, "").await;
}
