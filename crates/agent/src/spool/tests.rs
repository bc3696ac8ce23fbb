//! Tests of the spool: everything that was written is read again.

use std::sync::Arc;

use futures::TryStreamExt;
use muster_agent_api::result::{JobResult, Outcome, StepNode, StepStatus};
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
    JobResult { outcome: Outcome::Success, message: String::new(), log_bytes: 3, log_crc32: 4, tree, used: None }
}

#[test]
fn an_entry_comes_back_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), u64::MAX).unwrap();
    let entry = spool.entry("7-1").unwrap();
    let request = RunRequest { id: "7-1".to_owned(), steps: "{}".to_owned(), ..RunRequest::default() };
    let journal = entry.create(&request).unwrap();
    let past = Past { request: Some(request), ..Past::default() };
    assert_eq!(entry.past().unwrap(), past);
    journal.result(&result()).unwrap();
    assert_eq!(spool.entries().unwrap()[0].past().unwrap(), Past { result: Some(result()), ..past });
    entry.remove().unwrap();
    entry.remove().unwrap();
    assert!(spool.entries().unwrap().is_empty());
}

#[test]
fn the_place_of_a_job_that_is_over_holds_nothing_of_it_and_serves_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), u64::MAX).unwrap();
    let request = |id: &str| RunRequest { id: id.to_owned(), steps: "secret".to_owned(), ..RunRequest::default() };
    let texts = || {
        let files = walkdir(dir.path()).into_iter().filter(|path| path.is_file() && !path.ends_with("reserve"));
        files.map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()).collect::<String>()
    };
    let inodes = || {
        let ids = walkdir(dir.path())
            .into_iter()
            .map(|path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap()));
        ids.collect::<std::collections::BTreeSet<u64>>()
    };
    let mut seen = Vec::new();
    for id in ["1-1", "2-1", "3-1"] {
        let entry = spool.entry(id).unwrap();
        let journal = entry.create(&request(id)).unwrap();
        entry.log().unwrap().append(format!("log of {id}").as_bytes()).unwrap();
        journal.user_code().unwrap();
        assert_eq!(entry.past().unwrap(), Past { request: Some(request(id)), user_code: true, ..Past::default() });
        assert_eq!(entry.log().unwrap().bytes(), 10);
        seen.push(inodes());
        entry.remove().unwrap();
        assert!(!texts().contains("secret") && !texts().contains("log of"), "{}", texts());
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

type Put<'a> = &'a dyn Fn(&Path);

#[test]
fn a_job_that_replaces_files_of_its_place_stops_nobody_and_nothing_else_is_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("spool");
    let spool = Spool::open(&root, u64::MAX).unwrap();
    let kept = dir.path().join("kept");
    fs::write(&kept, "text").unwrap();
    let fifo = |path: &Path| {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    };
    let put: [(&str, Put<'_>); 5] = [
        ("a FIFO", &fifo),
        ("a link", &|path| std::os::unix::fs::symlink(&kept, path).unwrap()),
        ("another name of a file", &|path| fs::hard_link(&kept, path).unwrap()),
        ("a directory", &|path| fs::create_dir(path).unwrap()),
        ("nothing", &|_| {}),
    ];
    for (what, put) in put {
        let entry = spool.entry("1-1").unwrap();
        let request = RunRequest { id: "1-1".to_owned(), ..RunRequest::default() };
        entry.create(&request).unwrap();
        drop(entry.log().unwrap());
        let log = entry.dir.join(LOG);
        fs::remove_file(&log).unwrap();
        put(&log);
        let (done, removed) = std::sync::mpsc::channel();
        let removing = entry.clone();
        std::thread::spawn(move || done.send(removing.remove()));
        let removed = removed.recv_timeout(Duration::from_secs(20));
        removed.unwrap_or_else(|_| panic!("{what} in the place of the log: its removal does not end")).unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "text", "{what}");
        assert_eq!(fs::read_dir(root.join(".free")).unwrap().count(), 0, "{what}: the place serves no other job");
    }
}

/// Returns all paths below `dir`.
fn walkdir(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(walkdir(&path));
        }
        all.push(path);
    }
    all
}

#[test]
fn a_run_said_again_after_nothing_was_started_keeps_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), u64::MAX).unwrap();
    let entry = spool.entry("7-1").unwrap();
    let request = |steps: &str| RunRequest { id: "7-1".to_owned(), steps: steps.to_owned(), ..RunRequest::default() };
    entry.create(&request("first")).unwrap();
    entry.log().unwrap().append(b"said before").unwrap();
    spool.entry("8-1").unwrap().create(&request("other")).unwrap();
    spool.entry("8-1").unwrap().remove().unwrap();
    entry.create(&request("second")).unwrap();
    assert_eq!(entry.past().unwrap(), Past { request: Some(request("second")), ..Past::default() });
    assert_eq!(entry.log().unwrap().bytes(), 11);
}

#[test]
fn ids_cannot_lead_out_of_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), u64::MAX).unwrap();
    for id in ["", ".", "..", "../x", "a/b", ".hidden", "agent.lock", "reserve", "a b", "ä", &"x".repeat(129)] {
        assert!(spool.entry(id).is_none(), "{id}");
    }
}

#[test]
fn a_spool_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let first = Spool::open(dir.path(), u64::MAX).unwrap();
    let error = Spool::open(dir.path(), u64::MAX).unwrap_err();
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(first);
    Spool::open(dir.path(), u64::MAX).unwrap();
}

/// A journal in version 2 of the format.
const SAMPLE: &[u8] = b"muster job 1 5\n\x0a\x037-1\n{\"boot\":\"one\"}\n\
    {\"started\":{\"job\":{\"mark\":\"7-1/ab\",\"cgroup\":null}}}\n\
    {\"started\":{\"leader\":{\"pid\":12,\"start_ticks\":34}}}\n\"user_code\"\n\n\
    {\"result\":{\"outcome\":{\"state\":\"success\"},\"message\":\"\",\"log_bytes\":3,\"log_crc32\":4,\
    \"tree\":{\"name\":\"job\",\"status\":\"success\",\"started_ms\":1,\"duration_ms\":2}}}\n";

fn sample(bytes: &[u8]) -> io::Result<Past> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("journal"), bytes).unwrap();
    Past::read(dir.path())
}

fn trail() -> Vec<Trail> {
    vec![Trail::Job { mark: "7-1/ab".to_owned(), cgroup: None }, Trail::Leader { pid: 12, start_ticks: 34 }]
}

#[test]
fn a_kept_sample_of_version_2_is_read() {
    let request = Some(RunRequest { id: "7-1".to_owned(), ..RunRequest::default() });
    let boot = Some("one".to_owned());
    assert_eq!(
        sample(SAMPLE).unwrap(),
        Past { request, boot, trail: trail(), user_code: true, result: Some(result()) }
    );
    let error = sample(b"muster job 3 5\n").unwrap_err();
    assert!(error.to_string().contains("`muster job 3 5` is not a journal of this version"), "{error}");
}

#[test]
fn what_an_earlier_start_of_the_system_ran_is_not_in_the_trail() {
    let dir = tempfile::tempdir().unwrap();
    let leader = |pid| Trail::Leader { pid, start_ticks: 1 };
    let journal = Journal::create(&dir.path().join("journal"), &RunRequest::default()).unwrap();
    for (boot, pid) in [("one", 7), ("two", 8)] {
        journal.boot(boot).unwrap();
        journal.started(&leader(pid)).unwrap();
    }
    let past = Past::read(dir.path()).unwrap();
    assert_eq!((past.boot.as_deref(), past.trail, past.user_code), (Some("two"), vec![leader(8)], false));
}

#[test]
fn a_journal_that_was_cut_off_anywhere_is_no_request_or_no_result_and_may_have_run() {
    let lines: Vec<usize> = (0..SAMPLE.len()).filter(|at| SAMPLE[*at] == b'\n').map(|at| at + 1).collect();
    for length in 0..SAMPLE.len() {
        let past = sample(&SAMPLE[..length]).unwrap();
        let head = "muster job 1 5\n".len() + 5;
        assert_eq!(past.request.is_some(), length > head, "{length}");
        // The last byte of a line is the line break, which may be missing.
        let whole = lines.contains(&length) || lines.contains(&(length + 1));
        assert!(whole || length <= head || past.user_code, "{length}: a torn line may have said anything: {past:?}");
        assert_eq!(past.result.is_some(), length == SAMPLE.len() - 1, "{length}");
    }
    assert_eq!(Past::read(Path::new("/no/job")).unwrap(), Past::default());
}

#[test]
fn a_result_that_follows_a_torn_line_counts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = Journal::create(&path, &RunRequest::default()).unwrap();
    let mut torn = File::options().append(true).open(&path).unwrap();
    torn.write_all(b"{\"result\":{\"outc").unwrap();
    journal.result(&result()).unwrap();
    assert_eq!(Past::read(dir.path()).unwrap().result, Some(result()));
}

#[test]
fn all_jobs_together_have_a_limit_which_last_words_may_pass_and_a_closed_job_gives_back() {
    let dir = tempfile::tempdir().unwrap();
    let request = |id: &str| RunRequest { id: id.to_owned(), ..RunRequest::default() };
    let spool = Spool::open(dir.path(), 10_000).unwrap();
    let (one, two) = (spool.entry("1-1").unwrap(), spool.entry("2-1").unwrap());
    one.create(&request("1-1")).unwrap();
    two.create(&request("2-1")).unwrap();
    one.log().unwrap().append(&[b'x'; 6000]).unwrap();
    let log = two.log().unwrap();
    log.append(&[b'x'; 3900]).unwrap();
    let error = log.append(&[b'x'; 200]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    assert!(
        error.to_string().contains("10000 bytes here together") && error.to_string().contains("MUSTER_SPOOL_LIMIT")
    );
    log.append(&[b'x'; 200]).unwrap();
    log.append(&[b'x'; 4000]).unwrap_err();
    let three = spool.entry("3-1").unwrap();
    assert_eq!(three.create(&request("3-1")).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    assert!(!three.dir.exists(), "what is refused leaves nothing");
    one.remove().unwrap();
    three.create(&request("3-1")).unwrap();
    drop(spool);
    // A new start counts the files that it finds.
    let spool = Spool::open(dir.path(), 4_000).unwrap();
    assert!(spool.entry("4-1").unwrap().create(&request("4-1")).is_err());
    spool.entry("2-1").unwrap().remove().unwrap();
    spool.entry("4-1").unwrap().create(&request("4-1")).unwrap();
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
    let log = Arc::new(LogFile::open(&dir.path().join("log"), Quota::new(u64::MAX).share("7-1")).unwrap());
    log.append(b"hello ").unwrap();
    let readers: Vec<_> = [0, 3, 6, 100].map(|offset| tokio::spawn(read_all(Arc::clone(&log), offset))).into();
    log.append(b"world\n").unwrap();
    log.close();
    for (reader, expected) in readers.into_iter().zip(["hello world\n", "lo world\n", "world\n", ""]) {
        assert_eq!(reader.await.unwrap().unwrap(), expected.as_bytes());
    }
    let again = LogFile::open(&dir.path().join("log"), Quota::new(u64::MAX).share("7-1")).unwrap();
    assert_eq!((again.bytes(), again.crc32(), again.ends_a_line()), (12, log.crc32(), true));
}
