//! Tests of the driver on a disk that is full or hangs.

use tokio::time::{Instant, timeout};

use super::*;
use crate::ledger::{Change, Row, RowKey};
use crate::types::{LossReason, SlotRequest, TaskKey};

#[derive(Debug, Clone, Copy, PartialEq)]
enum DiskState {
    Working,
    Full,
    Hanging,
}

#[derive(Debug, Clone)]
struct Disk {
    state: watch::Sender<DiskState>,
    rows: MemoryLedger,
}

#[async_trait]
impl LedgerStore for Disk {
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, LedgerError> {
        self.rows.load().await
    }

    async fn apply(&mut self, changes: &[Change]) -> Result<(), LedgerError> {
        let mut state = self.state.subscribe();
        let state = *state.wait_for(|state| *state != DiskState::Hanging).await.unwrap();
        match state {
            DiskState::Full => {
                let source = std::io::Error::other("no space left on device");
                Err(LedgerError::File { doing: "write", path: "ledger".into(), source })
            }
            _ => self.rows.apply(changes).await,
        }
    }
}

async fn scaler(cloud: &Arc<Cloud>, disk: &Disk) -> Scaler {
    scaler_with_clock(cloud, disk, || 0).await
}

async fn scaler_with_clock(cloud: &Arc<Cloud>, disk: &Disk, wall_clock: fn() -> i64) -> Scaler {
    let mut config = Config::new(GroupConfig::new("main", 10));
    config.heartbeat_interval = Some(Duration::from_secs(4));
    let plugins: Vec<Arc<dyn InstanceGroupPort>> = vec![Arc::<Cloud>::clone(cloud)];
    let store = Box::new(disk.clone());
    Scaler::start(config, plugins, Arc::new(ReadyWhenReachable), store, &Buckets::default(), wall_clock).await.unwrap()
}

async fn lease(scaler: &Scaler, key: &str) -> Result<LeaseHandle, AcquireError> {
    scaler.admit(TaskKey::new(key)).acquire(SlotRequest::default(), Duration::from_secs(30)).await
}

async fn check_scaler_with_disk_state(failure: DiskState, message: &str) {
    let (cloud, disk) =
        (Cloud::new(), Disk { state: watch::Sender::new(DiskState::Working), rows: MemoryLedger::default() });
    let scaler = scaler(&cloud, &disk).await;
    let [surviving, lost] = [lease(&scaler, "surviving").await.unwrap(), lease(&scaler, "lost").await.unwrap()];
    let before = cloud.ids();

    disk.state.send_replace(failure);
    let reason = match lease(&scaler, "new").await {
        Err(AcquireError::Timeout { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason.contains(message), "the error of the waiting job must contain the reason: {reason}");
    assert_eq!(cloud.ids(), before, "no instance must be created that the ledger does not contain");
    let refusal = scaler.reserve(TaskKey::new("job")).await.unwrap_err().unwrap().to_string();
    assert!(refusal.contains(message), "no job must be requested: {refusal}");

    cloud.machines.lock().unwrap().remove(lost.instance());
    lost.report_connection_lost();
    let loss =
        timeout(Duration::from_secs(5), lost.lost()).await.expect("the lease must report that its instance is lost");
    assert_eq!(loss, LossReason::Missing);
    let status = timeout(Duration::from_secs(1), scaler.status()).await.unwrap().unwrap();
    assert!(status.scale_up_blocked.iter().any(|block| block.contains(message)), "{:?}", status.scale_up_blocked);
    assert_eq!(status.instances.len(), 1);

    disk.state.send_replace(DiskState::Working);
    let new = lease(&scaler, "newer").await.unwrap();
    assert_ne!(new.instance(), surviving.instance(), "the request after the failure must get a new instance");
    assert!(scaler.reserve(TaskKey::new("job")).await.is_ok());
    new.leave_to_next_start();

    disk.state.send_replace(failure);
    drop(surviving);
    let start = Instant::now();
    scaler.shutdown(Duration::from_secs(1)).await;
    let elapsed = start.elapsed();
    assert!(
        elapsed <= Duration::from_secs(11),
        "must be at most the timeout of 1 s and 10 s for the plugins: {elapsed:?}"
    );
    assert!(scaler.status().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn full_disk_pauses_only_actions_that_must_be_stored() {
    check_scaler_with_disk_state(DiskState::Full, "no space left on device").await;
}

#[tokio::test(start_paused = true)]
async fn hanging_disk_pauses_only_actions_that_must_be_stored() {
    check_scaler_with_disk_state(DiskState::Hanging, "a write of the scaler ledger has been in progress for").await;
}

/// Regression test: after the back-off of a refused reservation, the scaler ran every millisecond.
#[tokio::test(start_paused = true)]
async fn full_disk_does_not_keep_the_scaler_busy() {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let (cloud, disk) =
        (Cloud::new(), Disk { state: watch::Sender::new(DiskState::Working), rows: MemoryLedger::default() });
    cloud.panicking_calls.store(u32::MAX, Ordering::Relaxed);
    fn count_run() -> i64 {
        RUNS.fetch_add(1, Ordering::Relaxed);
        0
    }
    let scaler = scaler_with_clock(&cloud, &disk, count_run).await;
    lease(&scaler, "waiting").await.unwrap_err();
    let acquire = scaler.admit(TaskKey::new("job")).acquire(SlotRequest::default(), Duration::from_secs(3600));
    let _waiting = tokio::spawn(acquire);
    let refusal = scaler.reserve(TaskKey::new("next")).await.unwrap_err().unwrap();
    assert!(refusal.retry_after().is_some(), "{refusal}");
    disk.state.send_replace(DiskState::Full);
    sleep_seconds(600).await;
    assert!(!scaler.status().await.unwrap().scale_up_blocked.is_empty());
    RUNS.store(0, Ordering::Relaxed);
    sleep_seconds(60).await;
    let runs = RUNS.load(Ordering::Relaxed);
    assert!(runs < 1000, "{runs} runs in a minute");
}
