use std::sync::Arc;

use futures::TryStreamExt;
use muster_agent_api::result::{JobResult, Outcome, StepNode, StepStatus};
use muster_steps::process::ProcessRecord;

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
        attempts: None,
        used: None,
        steps: Vec::new(),
        call: None,
    };
    JobResult { outcome: Outcome::Success, message: String::new(), log_bytes: 3, log_crc32: 4, tree, used: None }
}

#[test]
fn entry_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), u64::MAX).unwrap();
    let entry = spool.entry("7-1").unwrap();
    let request = RunRequest { id: "7-1".to_owned(), steps: "{}".to_owned(), ..RunRequest::default() };
    let (journal, _) = entry.create(&request).unwrap();
    let contents = JournalContents { request: Some(request), ..JournalContents::default() };
    assert_eq!(entry.read_journal().unwrap(), contents);
    journal.record_result(&result()).unwrap();
    assert_eq!(
        spool.entries().unwrap()[0].read_journal().unwrap(),
        JournalContents { result: Some(result()), ..contents }
    );
    entry.remove().unwrap();
    entry.remove().unwrap();
    assert!(spool.entries().unwrap().is_empty());
}

#[test]
fn recycled_directory_is_empty_and_reused() {
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
        let (journal, log) = entry.create(&request(id)).unwrap();
        let line = format!("log of {id}");
        log.append(line.as_bytes()).unwrap();
        journal.record_user_code().unwrap();
        assert_eq!(
            entry.read_journal().unwrap(),
            JournalContents { request: Some(request(id)), user_code: true, ..JournalContents::default() }
        );
        assert_eq!(entry.log().unwrap().bytes(), line.len() as u64);
        seen.push(inodes());
        entry.remove().unwrap();
        assert!(!texts().contains("secret") && !texts().contains("log of"), "{}", texts());
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

type Create<'a> = &'a dyn Fn(&Path);

#[test]
fn removing_an_entry_with_a_replaced_log_ends_and_changes_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("spool");
    let spool = Spool::open(&root, u64::MAX).unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, "text").unwrap();
    let fifo = |path: &Path| {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    };
    let replacements: [(&str, Create<'_>); 5] = [
        ("a FIFO", &fifo),
        ("a link", &|path| std::os::unix::fs::symlink(&outside, path).unwrap()),
        ("a hard link of a file", &|path| fs::hard_link(&outside, path).unwrap()),
        ("a directory", &|path| fs::create_dir(path).unwrap()),
        ("nothing", &|_| {}),
    ];
    for (replacement, create) in replacements {
        let entry = spool.entry("1-1").unwrap();
        let request = RunRequest { id: "1-1".to_owned(), ..RunRequest::default() };
        entry.create(&request).unwrap();
        let log = entry.dir.join(LOG);
        fs::remove_file(&log).unwrap();
        create(&log);
        let (done, removed) = std::sync::mpsc::channel();
        let blocking_entry = entry.clone();
        std::thread::spawn(move || done.send(blocking_entry.remove()));
        let removed = removed.recv_timeout(Duration::from_secs(20));
        removed
            .unwrap_or_else(|_| panic!("removing the entry does not end if the log is replaced by {replacement}"))
            .unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "text", "{replacement}");
        assert_eq!(
            fs::read_dir(root.join(".free")).unwrap().count(),
            0,
            "{replacement}: the directory must not be reused"
        );
    }
}

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
fn repeated_run_keeps_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), u64::MAX).unwrap();
    let entry = spool.entry("7-1").unwrap();
    let request = |steps: &str| RunRequest { id: "7-1".to_owned(), steps: steps.to_owned(), ..RunRequest::default() };
    entry.create(&request("first")).unwrap();
    let line = b"first line\n";
    entry.log().unwrap().append(line).unwrap();
    spool.entry("8-1").unwrap().create(&request("other")).unwrap();
    spool.entry("8-1").unwrap().remove().unwrap();
    entry.create(&request("second")).unwrap();
    assert_eq!(
        entry.read_journal().unwrap(),
        JournalContents { request: Some(request("second")), ..JournalContents::default() }
    );
    assert_eq!(entry.log().unwrap().bytes(), line.len() as u64);
}

#[test]
fn request_whose_log_cannot_be_opened_leaves_no_entry() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), 4_000).unwrap();
    let entry = spool.entry("7-1").unwrap();
    let request = RunRequest { id: "7-1".to_owned(), steps: "x".repeat(3000), ..RunRequest::default() };
    fs::create_dir_all(entry.dir.join(LOG)).unwrap();
    entry.create(&request).unwrap_err();
    assert!(spool.is_empty());
    // The request no longer counts toward the quota.
    spool.entry("7-1").unwrap().create(&request).unwrap();
}

#[test]
fn ids_cannot_refer_to_paths_outside_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), u64::MAX).unwrap();
    for id in ["", ".", "..", "../x", "a/b", ".hidden", "agent.lock", "reserve", "a b", "ä", &"x".repeat(129)] {
        assert!(spool.entry(id).is_none(), "{id}");
    }
}

#[test]
fn spool_has_only_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let first = Spool::open(dir.path(), u64::MAX).unwrap();
    let error = Spool::open(dir.path(), u64::MAX).unwrap_err();
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(first);
    Spool::open(dir.path(), u64::MAX).unwrap();
}

const SAMPLE: &[u8] = b"muster job 1 5\n\x0a\x037-1\n{\"boot\":\"one\"}\n\
    {\"started\":{\"job\":{\"tag\":\"7-1/ab\",\"cgroup\":null}}}\n\
    {\"started\":{\"leader\":{\"pid\":12,\"start_ticks\":34}}}\n\"user_code\"\n\n\
    {\"result\":{\"outcome\":{\"state\":\"success\"},\"message\":\"\",\"log_bytes\":3,\"log_crc32\":4,\
    \"tree\":{\"name\":\"job\",\"status\":\"success\",\"started_ms\":1,\"duration_ms\":2}}}\n";

fn read_journal_bytes(bytes: &[u8]) -> io::Result<JournalContents> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("journal"), bytes).unwrap();
    JournalContents::read(dir.path())
}

fn process_records() -> Vec<ProcessRecord> {
    vec![
        ProcessRecord::Job { tag: "7-1/ab".to_owned(), cgroup: None },
        ProcessRecord::Leader { pid: 12, start_ticks: 34 },
    ]
}

#[test]
fn journal_sample_of_version_1_is_read() {
    let request = Some(RunRequest { id: "7-1".to_owned(), ..RunRequest::default() });
    let boot = Some("one".to_owned());
    assert_eq!(
        read_journal_bytes(SAMPLE).unwrap(),
        JournalContents { request, boot, process_records: process_records(), user_code: true, result: Some(result()) }
    );
    let error = read_journal_bytes(b"muster job 3 5\n").unwrap_err();
    assert!(error.to_string().contains("`muster job 3 5` is not a journal of this version"), "{error}");
}

#[test]
fn process_records_of_an_earlier_boot_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let leader = |pid| ProcessRecord::Leader { pid, start_ticks: 1 };
    let journal = Journal::create(&dir.path().join("journal"), &RunRequest::default()).unwrap();
    for (boot, pid) in [("one", 7), ("two", 8)] {
        journal.record_boot(boot).unwrap();
        journal.record_process(&leader(pid)).unwrap();
    }
    let contents = JournalContents::read(dir.path()).unwrap();
    assert_eq!(
        (contents.boot.as_deref(), contents.process_records, contents.user_code),
        (Some("two"), vec![leader(8)], false)
    );
}

#[test]
fn truncated_journal_has_no_result_and_an_incomplete_line_counts_as_user_code() {
    let lines: Vec<usize> = (0..SAMPLE.len()).filter(|at| SAMPLE[*at] == b'\n').map(|at| at + 1).collect();
    for length in 0..SAMPLE.len() {
        let contents = read_journal_bytes(&SAMPLE[..length]).unwrap();
        let request_end = "muster job 1 5\n".len() + 5;
        assert_eq!(contents.request.is_some(), length > request_end, "{length}");
        // The final line break of a line may be missing.
        let is_complete = lines.contains(&length) || lines.contains(&(length + 1));
        assert!(
            is_complete || length <= request_end || contents.user_code,
            "{length}: an incomplete line must count as user code: {contents:?}"
        );
        assert_eq!(contents.result.is_some(), length == SAMPLE.len() - 1, "{length}");
    }
    assert_eq!(JournalContents::read(Path::new("/no/job")).unwrap(), JournalContents::default());
}

#[test]
fn result_after_an_incomplete_line_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = Journal::create(&path, &RunRequest::default()).unwrap();
    let mut file = File::options().append(true).open(&path).unwrap();
    file.write_all(b"{\"result\":{\"outc").unwrap();
    journal.record_result(&result()).unwrap();
    assert_eq!(JournalContents::read(dir.path()).unwrap().result, Some(result()));
}

#[test]
fn quota_covers_all_jobs_except_final_messages() {
    let dir = tempfile::tempdir().unwrap();
    let request = |id: &str| RunRequest { id: id.to_owned(), ..RunRequest::default() };
    let spool = Spool::open(dir.path(), 10_000).unwrap();
    let (one, two) = (spool.entry("1-1").unwrap(), spool.entry("2-1").unwrap());
    one.create(&request("1-1")).unwrap();
    two.create(&request("2-1")).unwrap();
    one.log().unwrap().append(&[b'x'; 6000]).unwrap();
    let log = two.log().unwrap();
    log.append(&[b'x'; 3900]).unwrap();
    // The logs have 9900 of the 10000 bytes.
    let error = log.append(&[b'x'; 200]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    assert!(error.to_string().contains("10000 bytes together") && error.to_string().contains("MUSTER_SPOOL_LIMIT"));
    // After that error, the job may write 4096 bytes.
    log.append(&[b'x'; 200]).unwrap();
    log.append(&[b'x'; 4000]).unwrap_err();
    let three = spool.entry("3-1").unwrap();
    assert_eq!(three.create(&request("3-1")).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    assert!(!three.dir.exists());
    one.remove().unwrap();
    three.create(&request("3-1")).unwrap();
    drop(spool);
    let spool = Spool::open(dir.path(), 4_000).unwrap();
    assert!(spool.entry("4-1").unwrap().create(&request("4-1")).is_err());
    spool.entry("2-1").unwrap().remove().unwrap();
    spool.entry("4-1").unwrap().create(&request("4-1")).unwrap();
}

#[test]
fn results_do_not_count_toward_the_quota_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let request = |id: &str| RunRequest { id: id.to_owned(), steps: "x".repeat(1000), ..RunRequest::default() };
    let spool = Spool::open(dir.path(), 4_000).unwrap();
    let (journal, _) = spool.entry("1-1").unwrap().create(&request("1-1")).unwrap();
    journal.record_result(&JobResult { message: "x".repeat(5000), ..result() }).unwrap();
    spool.entry("2-1").unwrap().create(&request("2-1")).unwrap();
    drop(spool);
    let spool = Spool::open(dir.path(), 4_000).unwrap();
    spool.entry("3-1").unwrap().create(&request("3-1")).unwrap();
    let error = spool.entry("4-1").unwrap().create(&request("4-1")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded, "the requests must count");
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
    let log = Arc::new(LogFile::open(&dir.path().join("log"), Quota::new(u64::MAX).job("7-1")).unwrap());
    log.append(b"hello ").unwrap();
    let readers: Vec<_> = [0, 3, 6, 100].map(|offset| tokio::spawn(read_all(Arc::clone(&log), offset))).into();
    log.append(b"world\n").unwrap();
    log.close();
    for (reader, expected) in readers.into_iter().zip(["hello world\n", "lo world\n", "world\n", ""]) {
        assert_eq!(reader.await.unwrap().unwrap(), expected.as_bytes());
    }
    let reopened = LogFile::open(&dir.path().join("log"), Quota::new(u64::MAX).job("7-1")).unwrap();
    assert_eq!((reopened.bytes(), reopened.crc32(), reopened.ends_with_line_break()), (12, log.crc32(), true));
}
