//! What is written is read again, also by later versions.

use std::sync::Arc;

use futures::TryStreamExt;
use muster_agent_api::result::{Outcome, StepNode, StepStatus};
use muster_steps::process::Trail;

use super::*;

fn result() -> JobResult {
    let tree = StepNode {
        name: "job".to_owned(),
        status: StepStatus::Success,
        started_ms: 1,
        duration_ms: 2,
        exit_code: None,
        message: String::new(),
        cause: None,
        steps: Vec::new(),
    };
    JobResult { outcome: Outcome::Success, message: String::new(), log_bytes: 3, log_crc32: 4, tree }
}

#[test]
fn an_entry_comes_back_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path()).unwrap();
    let entry = spool.entry("7-1").unwrap();
    let request = RunRequest { id: "7-1".to_owned(), steps: "{}".to_owned(), ..RunRequest::default() };
    entry.create(&request).unwrap();
    assert_eq!(entry.request(), Some(request));
    assert_eq!(entry.result(), None);
    entry.write_result(&result()).unwrap();
    assert_eq!(spool.entries().unwrap()[0].result(), Some(result()));
    entry.remove().unwrap();
    entry.remove().unwrap();
    assert!(spool.entries().unwrap().is_empty());
}

#[test]
fn ids_cannot_lead_out_of_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path()).unwrap();
    for id in ["", ".", "..", "../x", "a/b", ".hidden", "agent.lock", "reserve", "a b", "ä", &"x".repeat(129)] {
        assert!(spool.entry(id).is_none(), "{id}");
    }
}

#[test]
fn a_spool_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let first = Spool::open(dir.path()).unwrap();
    let error = Spool::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(first);
    Spool::open(dir.path()).unwrap();
}

#[test]
fn a_kept_sample_of_version_1_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path()).unwrap();
    let entry = spool.entry("sample").unwrap();
    fs::create_dir(&entry.dir).unwrap();
    fs::write(
        entry.dir.join("journal"),
        "{\"version\":1}\n{\"started\":{\"job\":{\"mark\":\"7-1/ab\",\"cgroup\":null}}}\n\
         {\"started\":{\"leader\":{\"pid\":12,\"start_ticks\":34}}}\n\"user_code\"\n",
    )
    .unwrap();
    fs::write(
        entry.dir.join("result.json"),
        "{\"version\":1,\"result\":{\"outcome\":{\"state\":\"success\"},\"message\":\"\",\"log_bytes\":3,\
         \"log_crc32\":4,\"tree\":{\"name\":\"job\",\"status\":\"success\",\"started_ms\":1,\"duration_ms\":2}}}",
    )
    .unwrap();
    let mut bytes = b"muster request 1\n".to_vec();
    bytes.extend([0x0a, 3, b'7', b'-', b'1']);
    fs::write(entry.dir.join("request"), bytes).unwrap();
    let trail =
        vec![Trail::Job { mark: "7-1/ab".to_owned(), cgroup: None }, Trail::Leader { pid: 12, start_ticks: 34 }];
    assert_eq!(entry.past(), Past { boot: None, trail, user_code: true });
    assert_eq!(entry.result(), Some(result()));
    assert_eq!(entry.request().unwrap().id, "7-1");
}

#[test]
fn what_an_earlier_start_of_the_system_ran_is_not_in_the_trail() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let leader = |pid| Trail::Leader { pid, start_ticks: 1 };
    Journal::open(&path, "one").unwrap().started(&leader(7)).unwrap();
    let again = Journal::open(&path, "two").unwrap();
    again.started(&leader(8)).unwrap();
    let past = Past { boot: Some("two".to_owned()), trail: vec![leader(8)], user_code: false };
    assert_eq!(Past::read(&path), past);
}

#[test]
fn a_torn_journal_means_that_anything_may_have_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    fs::write(&path, "{\"version\":1}\n{\"star").unwrap();
    assert!(Past::read(&path).user_code);
    assert_eq!(Past::read(&dir.path().join("none")), Past::default());
}

async fn read_all(log: Arc<LogFile>, offset: u64) -> io::Result<Vec<u8>> {
    log.follow(offset)
        .try_fold(Vec::new(), |mut all, chunk| async move {
            all.extend_from_slice(&chunk);
            Ok(all)
        })
        .await
}

#[tokio::test]
async fn readers_start_anywhere_and_end_with_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(LogFile::open(&dir.path().join("log")).unwrap());
    log.append(b"hello ").unwrap();
    let readers: Vec<_> = [0, 3, 6, 100].map(|offset| tokio::spawn(read_all(Arc::clone(&log), offset))).into();
    log.append(b"world\n").unwrap();
    log.close();
    for (reader, expected) in readers.into_iter().zip(["hello world\n", "lo world\n", "world\n", ""]) {
        assert_eq!(reader.await.unwrap().unwrap(), expected.as_bytes());
    }
    let again = LogFile::open(&dir.path().join("log")).unwrap();
    assert_eq!((again.bytes(), again.crc32(), again.ends_a_line()), (12, log.crc32(), true));
}
