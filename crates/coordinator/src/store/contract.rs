//! Contract tests that every [`Store`] must pass.

use std::sync::Arc;

use muster_job::{JobId, JobStatus, PipelineId, ProjectId, RunnerId};
use muster_pipeline::context::Context;
use muster_pipeline::model::{AutoCancel, Pipeline};

use super::{
    ArtifactRow, Changes, JobDetail, JobRow, LastIds, ManagerRow, Member, PipelineDetail, PipelineRow, PipelineSpec,
    RunnerRow, Store,
};
use crate::clock::from_millis;
use crate::facts::{GitFacts, JobKind, NewPipeline, NoFiles, Parent, ProjectFacts, RunnerSpec};
use crate::outbox::{JobChange, NewJobEvent};
use crate::schedule::JobState;

/// Defines all tests for one store. `$open` returns a guard for its resources, and the store.
macro_rules! store_contract {
    ($name:ident, $open:expr) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn batches_are_atomic() {
                let (_guard, store) = $open.await;
                contract::check_batches(&store).await;
            }

            #[tokio::test]
            async fn rows_round_trip() {
                let (_guard, store) = $open.await;
                contract::check_rows(&store).await;
            }

            #[tokio::test]
            async fn only_unfinished_work_is_read_at_the_start() {
                let (_guard, store) = $open.await;
                contract::check_unfinished_work(&store).await;
            }

            #[tokio::test]
            async fn ids_are_never_reused() {
                let (_guard, store) = $open.await;
                contract::check_ids(&store).await;
            }

            #[tokio::test]
            async fn store_returns_hierarchies_and_pages() {
                let (_guard, store) = $open.await;
                contract::check_hierarchies_and_pages(&store).await;
            }

            #[tokio::test]
            async fn expired_artifacts_are_found_until_they_are_deleted() {
                let (_guard, store) = $open.await;
                contract::check_expiry(&store).await;
            }

            #[tokio::test]
            async fn events_are_ordered_and_deleted_when_acknowledged() {
                let (_guard, store) = $open.await;
                contract::check_events(&store).await;
            }

            #[tokio::test]
            async fn events_and_their_changes_are_atomic() {
                let (_guard, store) = $open.await;
                contract::check_events_with_changes(&store).await;
            }

            #[tokio::test]
            async fn closed_store_returns_an_error() {
                let (_guard, store) = $open.await;
                store.close().await.expect("failed to close");
                let error = store.write(&Changes { runners: vec![&contract::runner(1)], ..Changes::default() }).await;
                assert!(matches!(error, Err(StoreError::Closed)), "{error:?}");
                assert!(matches!(store.unfinished_work().await, Err(StoreError::Closed)));
                store.close().await.expect("failed to close a closed store");
            }
        }
    };
}

mod suites {
    use super::super::memory::MemoryStore;
    use super::super::sqlite::SqliteStore;
    use super::super::{Changes, Store, contract};
    use crate::error::StoreError;

    store_contract!(memory, async { ((), MemoryStore::new()) });
    store_contract!(sqlite, async {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let store = SqliteStore::open(dir.path()).await.expect("failed to open a database");
        (dir, store)
    });
}

pub(super) fn runner(id: i64) -> RunnerRow {
    let (token_hash, created_at) = (id.to_string(), from_millis(0));
    RunnerRow { id: RunnerId(id), token_hash, token_expires_at: None, created_at, settings: RunnerSpec::default() }
}

fn manager(runner: i64) -> ManagerRow {
    let (system_id, info) = ("s".to_owned(), muster_runner_api::wire::VersionInfo::default());
    ManagerRow { runner: RunnerId(runner), system_id, contacted_at: from_millis(7), info }
}

fn pipeline(id: i64, parent: Option<(i64, i64)>, open: bool) -> PipelineRow {
    let compiled = Pipeline {
        name: Some("a name".to_owned()),
        stages: vec!["test".to_owned()],
        variables: Vec::new(),
        auto_cancel: AutoCancel::default(),
        jobs: Vec::new(),
        excluded: Vec::new(),
    };
    let (project, git) = (ProjectFacts::new(ProjectId(1), "grp/app"), GitFacts::default());
    let new = NewPipeline::new(project, Context::default(), compiled.clone(), git, Arc::new(NoFiles));
    PipelineRow {
        id: PipelineId(id),
        root: PipelineId(parent.map_or(id, |(parent, _)| parent)),
        parent: parent.map(|(pipeline, bridge)| Parent { pipeline: PipelineId(pipeline), bridge: JobId(bridge) }),
        open,
        status: JobStatus::Created,
        created_at: from_millis(1),
        finished_at: None,
        detail: PipelineDetail::default(),
        spec: Arc::new(PipelineSpec::new(&new)),
        compiled: Arc::new(compiled),
    }
}

pub(super) fn job(id: i64, pipeline: i64) -> JobRow {
    let state = JobState {
        retry: 0,
        status: JobStatus::Created,
        failure_allowed: false,
        requested_by_user: false,
        started: false,
        supports_graceful_cancel: false,
        timer_at: None,
        child: None,
    };
    let (position, names) = ((PipelineId(pipeline), 0), ("a".to_owned(), "test".to_owned()));
    JobRow::new(JobId(id), position, names, JobKind::Script, JobDetail::new(state), from_millis(2))
}

fn artifact(job: i64, expires_ms: Option<i64>) -> ArtifactRow {
    ArtifactRow {
        job: JobId(job),
        kind: "archive".to_owned(),
        format: "zip".to_owned(),
        filename: "a.zip".to_owned(),
        size: 9,
        created_at: from_millis(3),
        expires_at: expires_ms.map(from_millis),
        deleted: false,
    }
}

fn event(job: i64, change: JobChange) -> NewJobEvent {
    NewJobEvent { at: from_millis(4), pipeline: PipelineId(1), job: JobId(job), change }
}

async fn write(store: &dyn Store, changes: Changes<'_>) {
    store.write(&changes).await.expect("failed to write");
}

pub(super) async fn check_batches(store: &dyn Store) {
    let (first, second, valid, orphan) = (runner(1), runner(2), manager(1), manager(9));
    let rejected = Changes { runners: vec![&first, &second], managers: vec![&orphan], ..Changes::default() };
    store.write(&rejected).await.expect_err("a manager without a runner must be rejected");
    assert!(store.unfinished_work().await.expect("failed to read").runners.is_empty(), "nothing must be written");
    write(store, Changes { runners: vec![&first, &second], managers: vec![&valid], ..Changes::default() }).await;
    let contents = store.unfinished_work().await.expect("failed to read");
    assert_eq!((contents.runners, contents.managers), (vec![first, second], vec![valid]));
}

pub(super) async fn check_rows(store: &dyn Store) {
    let (mut row, mut job, artifact) = (pipeline(1, None, true), job(1, 1), artifact(1, Some(50)));
    job.name = "a\0b \"c\" \\ \u{1f600}".to_owned();
    let new = Changes { new_pipelines: vec![&row], jobs: vec![&job], artifacts: vec![&artifact], ..Changes::default() };
    write(store, new).await;
    (row.status, row.finished_at, row.detail.warnings) = (JobStatus::Success, Some(from_millis(9)), true);
    job.detail.state.status = JobStatus::Failed;
    job.failure_reason = Some(muster_job::FailureReason::ScriptFailure);
    (job.runner, job.system_id, job.exit_code) = (Some(RunnerId(3)), Some("s\0".to_owned()), Some(7));
    (job.queued_at, job.started_at, job.coverage) = (Some(from_millis(5)), Some(from_millis(6)), Some(12.5));
    job.detail.dotenv = vec![("KEY".to_owned(), "value".to_owned())];
    for _ in 0..2 {
        // Writing the same rows twice changes nothing.
        write(store, Changes { pipelines: vec![&row], jobs: vec![&job], ..Changes::default() }).await;
    }
    let found = store.hierarchy(Member::Job(JobId(1))).await.expect("failed to read");
    assert_eq!((found.jobs, found.artifacts), (vec![job], vec![artifact]));
    let [found] = found.pipelines.as_slice() else { panic!("expected exactly one pipeline") };
    assert_eq!((found.status, found.finished_at, &found.detail), (row.status, row.finished_at, &row.detail));
    assert_eq!((found.root, found.open, found.parent), (row.root, row.open, row.parent));
    assert_eq!((&found.compiled, found.spec.source()), (&row.compiled, row.spec.source()));
}

pub(super) async fn check_unfinished_work(store: &dyn Store) {
    let (open, mut finished) = (pipeline(1, None, true), pipeline(2, None, true));
    let (first, second) = (job(1, 1), job(2, 2));
    let files = (artifact(1, None), artifact(2, None));
    write(
        store,
        Changes {
            new_pipelines: vec![&open, &finished],
            jobs: vec![&first, &second],
            artifacts: vec![&files.0, &files.1],
            ..Changes::default()
        },
    )
    .await;
    finished.open = false;
    write(store, Changes { pipelines: vec![&finished], ..Changes::default() }).await;
    let ids = |contents: &super::Contents| contents.pipelines.iter().map(|row| row.id.0).collect::<Vec<_>>();
    let contents = store.unfinished_work().await.expect("failed to read");
    assert_eq!((ids(&contents), contents.jobs, contents.artifacts), (vec![1], vec![first], vec![files.0]));
    finished.open = true;
    write(store, Changes { pipelines: vec![&finished], ..Changes::default() }).await;
    assert_eq!(
        ids(&store.unfinished_work().await.expect("failed to read")),
        [1, 2],
        "the reopened pipeline must be read"
    );
}

pub(super) async fn check_ids(store: &dyn Store) {
    assert_eq!(store.last_ids().await.expect("failed to read"), LastIds::default());
    let (one, two, row, job) = (runner(1), runner(2), pipeline(40, None, true), job(700, 40));
    let new = Changes { runners: vec![&one, &two], new_pipelines: vec![&row], jobs: vec![&job], ..Changes::default() };
    write(store, new).await;
    write(store, Changes { removed_runners: vec![RunnerId(2)], ..Changes::default() }).await;
    let (pipeline, job, runner) = (Some(PipelineId(40)), Some(JobId(700)), Some(RunnerId(2)));
    assert_eq!(store.last_ids().await.expect("failed to read"), LastIds { pipeline, job, runner });
}

pub(super) async fn check_hierarchies_and_pages(store: &dyn Store) {
    let rows = [pipeline(1, None, false), pipeline(2, Some((1, 1)), false), pipeline(3, None, false)];
    let (mut bridge, inner, other, known) = (job(1, 1), job(2, 2), job(3, 3), [runner(5), runner(6)]);
    bridge.runner = Some(RunnerId(6));
    write(
        store,
        Changes {
            runners: known.iter().collect(),
            new_pipelines: rows.iter().collect(),
            jobs: vec![&bridge, &inner, &other],
            ..Changes::default()
        },
    )
    .await;
    for member in [Member::Pipeline(PipelineId(1)), Member::Pipeline(PipelineId(2)), Member::Job(JobId(2))] {
        let found = store.hierarchy(member).await.expect("failed to read");
        assert_eq!(found.pipelines.iter().map(|row| row.id.0).collect::<Vec<_>>(), [1, 2], "{member:?}");
        assert_eq!(found.jobs, [bridge.clone(), inner.clone()]);
        assert_eq!(found.runners, known[1..]);
    }
    for member in [Member::Pipeline(PipelineId(9)), Member::Job(JobId(9))] {
        assert!(store.hierarchy(member).await.expect("failed to read").pipelines.is_empty(), "{member:?}");
    }
    let page = async |after, limit| {
        let found = store.pipelines(PipelineId(after), limit).await.expect("failed to read");
        found.iter().map(|row| row.id.0).collect::<Vec<_>>()
    };
    assert_eq!((page(i64::MIN, 2).await, page(2, 2).await, page(3, 2).await), (vec![1, 2], vec![3], vec![]));
}

pub(super) async fn check_expiry(store: &dyn Store) {
    let (row, jobs) = (pipeline(1, None, false), [job(1, 1), job(2, 1), job(3, 1)]);
    let files = [artifact(1, Some(20)), artifact(2, Some(10)), artifact(3, None)];
    write(
        store,
        Changes {
            new_pipelines: vec![&row],
            jobs: jobs.iter().collect(),
            artifacts: files.iter().collect(),
            ..Changes::default()
        },
    )
    .await;
    let expired = async |now, limit| {
        let found = store.expired(from_millis(now), limit).await.expect("failed to read");
        found.iter().map(|row| row.job.0).collect::<Vec<_>>()
    };
    assert_eq!(store.next_expiry().await.expect("failed to read"), Some(from_millis(10)));
    assert_eq!((expired(9, 9).await, expired(20, 1).await, expired(20, 9).await), (vec![], vec![2], vec![2, 1]));
    let deleted = (JobId(2), "archive".to_owned());
    write(store, Changes { deleted_artifacts: vec![&deleted], ..Changes::default() }).await;
    assert_eq!(expired(20, 9).await, [1]);
    assert_eq!(store.next_expiry().await.expect("failed to read"), Some(from_millis(20)));
    let rows = store.hierarchy(Member::Job(JobId(2))).await.expect("failed to read").artifacts;
    assert_eq!(rows.iter().filter(|row| row.deleted).count(), 1, "the row must be kept");
    // A new file of the same kind replaces the deleted one.
    write(store, Changes { artifacts: vec![&artifact(2, None)], ..Changes::default() }).await;
    write(store, Changes { artifacts: vec![&artifact(1, None)], ..Changes::default() }).await;
    assert_eq!(store.next_expiry().await.expect("failed to read"), None);
    assert!(
        !store.hierarchy(Member::Job(JobId(2))).await.expect("failed to read").artifacts.iter().any(|row| row.deleted)
    );
}

pub(super) async fn check_events(store: &dyn Store) {
    let assigned = JobChange::Assigned { runner: RunnerId(1), system_id: "s".to_owned(), assignment: 1 };
    let (first, second) = ([event(1, JobChange::Queued), event(2, assigned)], [event(1, JobChange::Accepted)]);
    write(store, Changes { events: &first, ..Changes::default() }).await;
    write(store, Changes { events: &second, ..Changes::default() }).await;
    let all = store.events_after(0, 9).await.expect("failed to read");
    let expected: Vec<_> = first.iter().chain(&second).zip(1..).map(|(event, number)| event.numbered(number)).collect();
    assert_eq!(all, expected);
    assert_eq!(store.events_after(1, 1).await.expect("failed to read"), expected[1..2]);
    store.prune_events(3).await.expect("failed to prune");
    store.prune_events(3).await.expect("failed to prune again");
    assert!(store.events_after(0, 9).await.expect("failed to read").is_empty());
    write(store, Changes { events: &second, ..Changes::default() }).await;
    assert_eq!(
        store.events_after(0, 9).await.expect("failed to read"),
        [second[0].numbered(4)],
        "sequence numbers must not be reused"
    );
}

pub(super) async fn check_events_with_changes(store: &dyn Store) {
    let (row, job, orphan) = (pipeline(1, None, true), job(1, 1), manager(9));
    let events = [event(1, JobChange::Queued)];
    let rejected = Changes {
        new_pipelines: vec![&row],
        jobs: vec![&job],
        managers: vec![&orphan],
        events: &events,
        ..Changes::default()
    };
    store.write(&rejected).await.expect_err("a manager without a runner must be rejected");
    assert!(store.events_after(0, 9).await.expect("failed to read").is_empty());
    assert!(store.unfinished_work().await.expect("failed to read").jobs.is_empty());
    write(store, Changes { managers: Vec::new(), ..rejected }).await;
    assert_eq!(store.events_after(0, 9).await.expect("failed to read"), [events[0].numbered(1)]);
    assert_eq!(store.unfinished_work().await.expect("failed to read").jobs, [job]);
}
