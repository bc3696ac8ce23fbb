//! A disk that is full, or hangs.

use tokio::time::{Instant, timeout};

use super::*;
use crate::books::{Change, Row, RowKey};
use crate::words::{Key, Loss, Request};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Fine,
    Full,
    Hangs,
}

#[derive(Debug, Clone)]
struct Disk {
    mood: watch::Sender<Mood>,
    rows: MemoryStore,
}

#[async_trait]
impl Store for Disk {
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, StoreError> {
        self.rows.load().await
    }

    async fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let mut mood = self.mood.subscribe();
        let mood = *mood.wait_for(|mood| *mood != Mood::Hangs).await.unwrap();
        match mood {
            Mood::Full => Err(StoreError::Other("no space left on device".to_owned())),
            _ => self.rows.apply(changes).await,
        }
    }
}

async fn scaler(cloud: &Arc<Cloud>, disk: &Disk) -> Scaler {
    let mut config = Config::new(GroupConfig::new("main", 10));
    config.heartbeat_interval = Some(Duration::from_secs(4));
    let hosts: Vec<Arc<dyn Host>> = vec![Arc::<Cloud>::clone(cloud)];
    let store = Box::new(disk.clone());
    Scaler::start(config, hosts, Arc::new(NoPreparation), store, &Buckets::default(), || 0).await.unwrap()
}

async fn lease(scaler: &Scaler, key: &str) -> Result<Lease, AcquireFailure> {
    scaler.admit(Key::new(key)).acquire(Request::default(), Duration::from_secs(30)).await
}

async fn while_the_disk_is(bad: Mood, words: &str) {
    let (cloud, disk) = (Cloud::new(), Disk { mood: watch::Sender::new(Mood::Fine), rows: MemoryStore::default() });
    let scaler = scaler(&cloud, &disk).await;
    let [held, doomed] = [lease(&scaler, "held").await.unwrap(), lease(&scaler, "doomed").await.unwrap()];
    let before = cloud.ids();

    disk.mood.send_replace(bad);
    let why = match lease(&scaler, "new").await {
        Err(AcquireFailure::Timeout { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why.contains(words), "who waits is told: {why}");
    assert_eq!(cloud.ids(), before, "nothing is made that the books do not know of");
    let refusal = scaler.reserve(Key::new("job")).await.unwrap_err().unwrap().to_string();
    assert!(refusal.contains(words), "no job is requested: {refusal}");

    cloud.machines.lock().unwrap().remove(doomed.instance());
    doomed.suspect();
    let loss = timeout(Duration::from_secs(5), doomed.lost()).await.expect("it is told that its machine is gone");
    assert_eq!(loss, Loss::Missing);
    let status = timeout(Duration::from_secs(1), scaler.status()).await.unwrap().unwrap();
    assert!(status.held.iter().any(|held| held.contains(words)), "{:?}", status.held);
    assert_eq!(status.instances.len(), 1);

    disk.mood.send_replace(Mood::Fine);
    let new = lease(&scaler, "newer").await.unwrap();
    assert_ne!(new.instance(), held.instance(), "what waited is done");
    assert!(scaler.reserve(Key::new("job")).await.is_ok());
    new.keep();

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
