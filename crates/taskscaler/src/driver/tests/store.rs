//! Tests of the driver on a disk that is full or hangs.

use tokio::time::{Instant, timeout};

use super::*;
use crate::ledger::{Change, Row, RowKey};
use crate::types::{LossReason, SlotRequest, TaskKey};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Fine,
    Full,
    Hangs,
}

#[derive(Debug, Clone)]
struct Disk {
    mood: watch::Sender<Mood>,
    rows: MemoryLedger,
}

#[async_trait]
impl LedgerStore for Disk {
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, LedgerError> {
        self.rows.load().await
    }

    async fn apply(&mut self, changes: &[Change]) -> Result<(), LedgerError> {
        let mut mood = self.mood.subscribe();
        let mood = *mood.wait_for(|mood| *mood != Mood::Hangs).await.unwrap();
        match mood {
            Mood::Full => Err(LedgerError::Other("no space left on device".to_owned())),
            _ => self.rows.apply(changes).await,
        }
    }
}

async fn scaler(cloud: &Arc<Cloud>, disk: &Disk) -> Scaler {
    let mut config = Config::new(GroupConfig::new("main", 10));
    config.heartbeat_interval = Some(Duration::from_secs(4));
    let hosts: Vec<Arc<dyn InstanceGroupPort>> = vec![Arc::<Cloud>::clone(cloud)];
    let store = Box::new(disk.clone());
    Scaler::start(config, hosts, Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0).await.unwrap()
}

async fn lease(scaler: &Scaler, key: &str) -> Result<LeaseHandle, AcquireError> {
    scaler.admit(TaskKey::new(key)).acquire(SlotRequest::default(), Duration::from_secs(30)).await
}

async fn while_the_disk_is(bad: Mood, words: &str) {
    let (cloud, disk) = (Cloud::new(), Disk { mood: watch::Sender::new(Mood::Fine), rows: MemoryLedger::default() });
    let scaler = scaler(&cloud, &disk).await;
    let [held, doomed] = [lease(&scaler, "held").await.unwrap(), lease(&scaler, "doomed").await.unwrap()];
    let before = cloud.ids();

    disk.mood.send_replace(bad);
    let why = match lease(&scaler, "new").await {
        Err(AcquireError::Timeout { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why.contains(words), "who waits is told: {why}");
    assert_eq!(cloud.ids(), before, "nothing is made that the books do not know of");
    let refusal = scaler.reserve(TaskKey::new("job")).await.unwrap_err().unwrap().to_string();
    assert!(refusal.contains(words), "no job is requested: {refusal}");

    cloud.machines.lock().unwrap().remove(doomed.instance());
    doomed.connection_lost();
    let loss = timeout(Duration::from_secs(5), doomed.lost()).await.expect("it is told that its machine is gone");
    assert_eq!(loss, LossReason::Missing);
    let status = timeout(Duration::from_secs(1), scaler.status()).await.unwrap().unwrap();
    assert!(status.scale_up_blocked.iter().any(|held| held.contains(words)), "{:?}", status.scale_up_blocked);
    assert_eq!(status.instances.len(), 1);

    disk.mood.send_replace(Mood::Fine);
    let new = lease(&scaler, "newer").await.unwrap();
    assert_ne!(new.instance(), held.instance(), "what waited is done");
    assert!(scaler.reserve(TaskKey::new("job")).await.is_ok());
    new.leave_to_next_start();

    disk.mood.send_replace(bad);
    drop(held);
    let began = Instant::now();
    scaler.shutdown(Duration::from_secs(1)).await;
    assert!(began.elapsed() <= Duration::from_secs(11), "{:?}", began.elapsed());
    assert!(scaler.status().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_full_holds_up_only_what_must_be_stored() {
    while_the_disk_is(Mood::Full, "no space left on device").await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_hangs_holds_up_only_what_must_be_stored() {
    while_the_disk_is(Mood::Hangs, "its books have been written for").await;
}
