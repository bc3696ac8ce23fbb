//! Contract tests that every implementation of [`Blobs`] must pass.

use std::io::Read;

use bytes::Bytes;
use futures::StreamExt;
use muster_job::JobId;

use super::{Appended, ArtifactName, Blobs};

/// Defines all tests for one implementation. `$open` is a pair: a guard that keeps the blobs' files, and the blobs.
macro_rules! blob_contract {
    ($name:ident, $open:expr) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn trace_accepts_only_appends_at_its_end() {
                let (_guard, blobs) = $open;
                contract::check_traces(&blobs).await;
            }

            #[tokio::test]
            async fn trace_append_respects_the_size_limit() {
                let (_guard, blobs) = $open;
                contract::check_limited_traces(&blobs).await;
            }

            #[tokio::test]
            async fn artifact_is_stored_under_its_name() {
                let (_guard, blobs) = $open;
                contract::check_artifacts(&blobs).await;
            }

            #[tokio::test]
            async fn deleted_content_stays_readable_for_open_readers() {
                let (_guard, blobs) = $open;
                contract::check_delete_while_open(&blobs).await;
            }
        }
    };
}

mod suites {
    use super::super::contract;
    use super::super::directory::DirectoryBlobs;
    use super::super::memory::MemoryBlobs;

    blob_contract!(memory, ((), MemoryBlobs::default()));
    blob_contract!(directory, {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let blobs = DirectoryBlobs::open(dir.path()).expect("failed to open the blobs");
        (dir, blobs)
    });
}

fn name(job: i64, filename: &str) -> ArtifactName {
    ArtifactName { job: JobId(job), kind: "archive".to_owned(), filename: filename.to_owned() }
}

async fn append(blobs: &dyn Blobs, start: u64, text: &'static str) -> Appended {
    blobs.append_trace(JobId(1), start, Bytes::from_static(text.as_bytes()), 20).await.expect("failed to write")
}

async fn store(blobs: &dyn Blobs, name: &ArtifactName, pieces: &[&str]) {
    let mut incoming = blobs.receive().await.expect("failed to start receiving");
    for piece in pieces {
        incoming.write(piece.as_bytes()).await.expect("failed to write");
    }
    let mut text = String::new();
    incoming.open().await.expect("failed to open").read_to_string(&mut text).expect("failed to read");
    assert_eq!(text, pieces.concat(), "the content must be readable before it is stored");
    incoming.store(name).await.expect("failed to store");
}

async fn content(blobs: &dyn Blobs, name: &ArtifactName) -> Option<String> {
    let mut text = String::new();
    blobs.open(name).await.expect("failed to read")?.read_to_string(&mut text).expect("failed to read");
    Some(text)
}

pub(super) async fn check_traces(blobs: &dyn Blobs) {
    assert_eq!(blobs.read_trace(JobId(1), 0).await.expect("failed to read"), "");
    assert!(blobs.open_trace(JobId(1)).await.expect("failed to read").is_none());
    assert_eq!(append(blobs, 0, "hello ").await, Appended::Yes(6));
    assert_eq!(append(blobs, 0, "hello ").await, Appended::WrongOffset(6));
    assert_eq!(append(blobs, 7, "gap").await, Appended::WrongOffset(6));
    blobs.close_trace(JobId(1));
    assert_eq!(append(blobs, 6, "world").await, Appended::Yes(11), "an append must reopen a closed trace");
    assert_eq!(blobs.read_trace(JobId(1), 6).await.expect("failed to read"), "world");
    assert_eq!(blobs.read_trace(JobId(1), 11).await.expect("failed to read"), "");
    assert_eq!(blobs.read_trace(JobId(1), 99).await.expect("failed to read"), "");
    assert_eq!(
        blobs.trace_checksum(JobId(1)).await.expect("failed to compute the checksum"),
        (11, crc32fast::hash(b"hello world"))
    );
    let mut text = String::new();
    let mut file = blobs.open_trace(JobId(1)).await.expect("failed to read").expect("no trace");
    file.read_to_string(&mut text).expect("failed to read");
    assert_eq!(text, "hello world");
}

pub(super) async fn check_limited_traces(blobs: &dyn Blobs) {
    assert_eq!(append(blobs, 0, "12345678901234567890").await, Appended::Yes(20));
    assert_eq!(append(blobs, 20, "1").await, Appended::TooLarge);
    assert_eq!(append(blobs, 20, "").await, Appended::Yes(20));
}

pub(super) async fn check_artifacts(blobs: &dyn Blobs) {
    let (first, second) = (name(1, "a.zip"), name(1, "b.zip"));
    assert!(content(blobs, &first).await.is_none() && blobs.is_lost(&first));
    assert!(blobs.stream(&first).await.expect("failed to read").is_none());
    store(blobs, &first, &["one ", "piece"]).await;
    store(blobs, &first, &["another"]).await;
    store(blobs, &second, &["a second"]).await;
    store(blobs, &name(2, "a.zip"), &[]).await;
    assert_eq!(content(blobs, &first).await.as_deref(), Some("another"), "the second upload must replace the first");
    assert!(!blobs.is_lost(&first));
    let (size, pieces) = blobs.stream(&second).await.expect("failed to read").expect("no content");
    let pieces: Vec<Bytes> = pieces.map(|piece| piece.expect("failed to read")).collect().await;
    assert_eq!((size, pieces.concat()), (8, b"a second".to_vec()));
    let mut names = blobs.list(JobId(1)).await.expect("failed to list");
    names.sort();
    assert_eq!(names, [first, second]);
    assert!(blobs.list(JobId(3)).await.expect("failed to list").is_empty());
}

pub(super) async fn check_delete_while_open(blobs: &dyn Blobs) {
    let name = name(1, "a.zip");
    store(blobs, &name, &["content"]).await;
    let mut opened = blobs.open(&name).await.expect("failed to read").expect("no content");
    blobs.delete(&name).await.expect("failed to delete");
    blobs.delete(&name).await.expect("failed to delete again");
    assert!(content(blobs, &name).await.is_none() && blobs.list(JobId(1)).await.expect("failed to list").is_empty());
    let mut text = String::new();
    opened.read_to_string(&mut text).expect("failed to read");
    assert_eq!(text, "content");
}
