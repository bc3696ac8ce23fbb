//! The contract tests of the port, which all implementations pass.

use std::io::Read;

use bytes::Bytes;
use futures::StreamExt;
use muster_job::JobId;

use super::{Appended, ArtifactName, Blobs};

/// Defines all tests for one implementation. `$open` returns a guard for its resources, and the blobs.
macro_rules! blob_contract {
    ($name:ident, $open:expr) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn trace_grows_only_at_its_end() {
                let (_guard, blobs) = $open;
                contract::traces(&blobs).await;
            }

            #[tokio::test]
            async fn trace_append_respects_the_size_limit() {
                let (_guard, blobs) = $open;
                contract::limited_traces(&blobs).await;
            }

            #[tokio::test]
            async fn artifact_is_kept_whole_under_its_name() {
                let (_guard, blobs) = $open;
                contract::artifacts(&blobs).await;
            }

            #[tokio::test]
            async fn dropped_content_is_deleted() {
                let (_guard, blobs) = $open;
                contract::dropped(&blobs).await;
            }

            #[tokio::test]
            async fn deleted_content_stays_readable_for_open_readers() {
                let (_guard, blobs) = $open;
                contract::deleted(&blobs).await;
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
        let dir = tempfile::tempdir().expect("a directory");
        let blobs = DirectoryBlobs::open(dir.path()).expect("a directory");
        (dir, blobs)
    });
}

fn name(job: i64, filename: &str) -> ArtifactName {
    ArtifactName { job: JobId(job), kind: "archive".to_owned(), filename: filename.to_owned() }
}

async fn append(blobs: &dyn Blobs, start: u64, text: &'static str) -> Appended {
    blobs.append_trace(JobId(1), start, Bytes::from_static(text.as_bytes()), 20).await.expect("written")
}

async fn keep(blobs: &dyn Blobs, name: &ArtifactName, pieces: &[&str]) {
    let mut incoming = blobs.receive().await.expect("space");
    for piece in pieces {
        incoming.write(piece.as_bytes()).await.expect("written");
    }
    let mut text = String::new();
    incoming.open().await.expect("opened").read_to_string(&mut text).expect("read");
    assert_eq!(text, pieces.concat(), "it can be checked before it is kept");
    incoming.keep(name).await.expect("kept");
}

async fn content(blobs: &dyn Blobs, name: &ArtifactName) -> Option<String> {
    let mut text = String::new();
    blobs.open(name).await.expect("readable")?.read_to_string(&mut text).expect("read");
    Some(text)
}

pub(super) async fn traces(blobs: &dyn Blobs) {
    assert_eq!(blobs.read_trace(JobId(1), 0).await.expect("read"), "");
    assert!(blobs.open_trace(JobId(1)).await.expect("readable").is_none());
    assert_eq!(append(blobs, 0, "hello ").await, Appended::Yes(6));
    assert_eq!(append(blobs, 0, "hello ").await, Appended::WrongOffset(6));
    assert_eq!(append(blobs, 7, "gap").await, Appended::WrongOffset(6));
    blobs.close_trace(JobId(1));
    assert_eq!(append(blobs, 6, "state").await, Appended::Yes(11), "also after closing it");
    assert_eq!(blobs.read_trace(JobId(1), 6).await.expect("read"), "state");
    assert_eq!(blobs.read_trace(JobId(1), 11).await.expect("read"), "");
    assert_eq!(blobs.read_trace(JobId(1), 99).await.expect("read"), "");
    assert_eq!(blobs.trace_checksum(JobId(1)).await.expect("sum"), (11, crc32fast::hash(b"hello state")));
    let mut text = String::new();
    let mut file = blobs.open_trace(JobId(1)).await.expect("readable").expect("a trace");
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "hello state");
}

pub(super) async fn limited_traces(blobs: &dyn Blobs) {
    assert_eq!(append(blobs, 0, "12345678901234567890").await, Appended::Yes(20));
    assert_eq!(append(blobs, 20, "1").await, Appended::TooLarge);
    assert_eq!(append(blobs, 20, "").await, Appended::Yes(20));
}

pub(super) async fn artifacts(blobs: &dyn Blobs) {
    let (first, second) = (name(1, "a.zip"), name(1, "b.zip"));
    assert!(content(blobs, &first).await.is_none() && blobs.is_lost(&first));
    assert!(blobs.stream(&first).await.expect("readable").is_none());
    keep(blobs, &first, &["one ", "piece"]).await;
    keep(blobs, &first, &["another"]).await;
    keep(blobs, &second, &["a second"]).await;
    keep(blobs, &name(2, "a.zip"), &[]).await;
    assert_eq!(content(blobs, &first).await.as_deref(), Some("another"), "it takes the place of the first");
    assert!(!blobs.is_lost(&first));
    let (size, pieces) = blobs.stream(&second).await.expect("readable").expect("content");
    let pieces: Vec<Bytes> = pieces.map(|piece| piece.expect("read")).collect().await;
    assert_eq!((size, pieces.concat()), (8, b"a second".to_vec()));
    let mut names = blobs.list(JobId(1)).await.expect("listed");
    names.sort();
    assert_eq!(names, [first, second]);
    assert!(blobs.list(JobId(3)).await.expect("listed").is_empty());
}

pub(super) async fn dropped(blobs: &dyn Blobs) {
    let mut incoming = blobs.receive().await.expect("space");
    incoming.write(b"half").await.expect("written");
    drop(incoming);
    assert!(blobs.list(JobId(1)).await.expect("listed").is_empty());
}

pub(super) async fn deleted(blobs: &dyn Blobs) {
    let name = name(1, "a.zip");
    keep(blobs, &name, &["content"]).await;
    let mut opened = blobs.open(&name).await.expect("readable").expect("content");
    blobs.delete(&name).await.expect("deleted");
    blobs.delete(&name).await.expect("deleted again");
    assert!(content(blobs, &name).await.is_none() && blobs.list(JobId(1)).await.expect("listed").is_empty());
    let mut text = String::new();
    opened.read_to_string(&mut text).expect("read");
    assert_eq!(text, "content");
}
