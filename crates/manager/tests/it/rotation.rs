//! Renewal of expiring tokens, on a clock that the test moves.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_config::edit::{ConfigFile, LOCK_TIMEOUT};
use muster_config::settings::Settings;
use muster_config::{HostFacts, SettingsContext};
use muster_manager::clock::{ManualClock, WallClock};
use muster_manager::rotation::Rotation;
use muster_runner_api::client::{Client, Progress};
use muster_runner_api::test_support::{Call, Fault, MemoryCoordinator, Served, serve};
use muster_runner_api::wire::JobRequest;
use muster_telemetry::spans::SpanSettings;
use muster_telemetry::{Build, ProcessState, Telemetry};
use time::macros::datetime;

const SOON: Duration = Duration::from_secs(20);
/// A token that is valid for 100 hours.
const CONFIG: &str = "# kept\nconcurrent = 3\n\n[[runners]]\nname = \"a\" # and this\nurl = \"URL\"\n\
    token = \"glrt-old\"\ntoken_obtained_at = 2026-11-01T00:00:00Z\ntoken_expires_at = 2026-11-05T04:00:00Z\n\
    executor = \"shell\"\n";

/// Returns the time this number of hours after the token was created.
fn at(hours: i64) -> SystemTime {
    SystemTime::from(datetime!(2026-11-01 00:00 UTC) + time::Duration::hours(hours))
}

struct World {
    coordinator: Arc<MemoryCoordinator>,
    served: Served,
    home: tempfile::TempDir,
    clock: ManualClock,
    telemetry: Arc<Telemetry>,
    rotation: Rotation,
}

impl World {
    /// Starts a rotation with `text` as config.toml, 10 hours after the token was created.
    ///
    /// New tokens are valid for 200 hours.
    async fn start(text: &str) -> Self {
        let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_millis(1)));
        coordinator.add_runner("glrt-old", Some("2026-11-12T11:00:00Z"));
        let served = serve(coordinator.clone()).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config.toml"), text.replace("URL", served.url.as_str())).unwrap();
        let telemetry = Telemetry::new(&Build::default(), &Arc::default(), SpanSettings::default());
        let clock = ManualClock::at(at(10));
        let path = home.path().join("config.toml");
        let rotation = Rotation::start(path.clone(), Arc::new(clock.clone()), &telemetry, settings(path));
        Self { coordinator, served, home, clock, telemetry, rotation }
    }

    fn path(&self) -> PathBuf {
        self.home.path().join("config.toml")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap().replace(self.served.url.as_str(), "URL")
    }

    /// Moves the clock to the time for which the rotation waits.
    async fn go_on(&self) -> SystemTime {
        let until = tokio::time::timeout(SOON, self.clock.awaited()).await.expect("nothing is waited for");
        self.clock.set(until);
        until
    }

    /// Returns the settings after the next change, and applies them as a manager does.
    async fn changed(&mut self) -> Settings {
        tokio::time::timeout(SOON, self.rotation.changed()).await.expect("no change");
        self.rotation.apply_renewed(settings(self.path()))
    }

    async fn works(&self, token: &str) -> bool {
        Client::new(&self.served.url).unwrap().request_job(&request(token), &Progress::default()).await.is_ok()
    }

    fn counted(&self, metric: &str) -> bool {
        self.telemetry.metrics.text(ProcessState::Running).lines().any(|line| line.starts_with(metric))
    }
}

fn settings(path: PathBuf) -> Settings {
    muster_config::settings(
        &muster_config::load(&path, &HostFacts::of(&path)).config.unwrap(),
        &SettingsContext::default(),
    )
}

fn request(token: &str) -> JobRequest {
    JobRequest { token: token.to_owned(), ..JobRequest::default() }
}

fn token(settings: &Settings) -> &str {
    settings.runners[0].token.expose()
}

#[tokio::test]
async fn token_is_renewed_at_three_quarters_of_its_life() {
    let mut world = World::start(CONFIG).await;
    assert_eq!(world.go_on().await, at(75));
    let settings = world.changed().await;
    assert_eq!(token(&settings), "glrt-old-reset-1");
    assert!(world.works("glrt-old-reset-1").await && !world.works("glrt-old").await);
    let wanted = CONFIG
        .replace("glrt-old", "glrt-old-reset-1")
        .replace("2026-11-01T00:00:00Z", "2026-11-04T03:00:00Z")
        .replace("2026-11-05T04:00:00Z", "2026-11-12T11:00:00Z");
    assert_eq!(world.text(), wanted);
    assert_eq!(world.go_on().await, at(75 + 150), "the next one is planned");
    world.changed().await;
    assert!(world.works("glrt-old-reset-2").await);
    assert!(world.counted("gitlab_runner_configuration_saved_total 2"));
    let call = "gitlab_runner_api_request_statuses_total{endpoint=\"reset_token\"";
    assert!(world.counted(call), "{}", world.telemetry.metrics.text(ProcessState::Running));
    world.rotation.stop().await;
}

#[tokio::test]
async fn failed_reset_is_retried_with_old_token() {
    let mut world = World::start(CONFIG).await;
    world.coordinator.fail(Call::ResetToken, [Fault::FailBefore; 3]);
    assert_eq!(world.go_on().await, at(75));
    let mut before = at(75);
    for _ in 0..3 {
        let again = world.go_on().await;
        assert!(again > before && again < before + Duration::from_secs(60), "{again:?}");
        before = again;
    }
    assert_eq!(token(&world.changed().await), "glrt-old-reset-1");
}

#[tokio::test]
async fn token_is_not_reset_unless_file_is_writable() {
    let mut world = World::start(CONFIG).await;
    // The file cannot be locked.
    let lock = world.home.path().join(".config.toml.lock");
    std::fs::create_dir(&lock).unwrap();
    while world.go_on().await < at(95) {
        assert!(world.works("glrt-old").await);
        assert_eq!(world.text(), CONFIG);
    }
    let settings = world.changed().await;
    assert_eq!((token(&settings), world.text().as_str()), ("glrt-old-reset-1", CONFIG), "from memory");
    assert!(world.works(token(&settings)).await);
    std::fs::remove_dir(lock).unwrap();
    world.go_on().await;
    assert_eq!(token(&world.changed().await), "glrt-old-reset-1");
    assert!(world.text().contains("token = \"glrt-old-reset-1\""), "it is saved as soon as that works");
}

#[tokio::test]
async fn entries_with_shared_token_are_renewed_together() {
    let second = CONFIG.split_once("\n\n").unwrap().1.replace("\"a\"", "\"b\"");
    let mut world = World::start(&format!("{CONFIG}\n{second}")).await;
    world.go_on().await;
    let settings = world.changed().await;
    let tokens: Vec<_> = settings.runners.iter().map(|runner| runner.token.expose()).collect();
    assert_eq!(tokens, ["glrt-old-reset-1"; 2]);
}

#[tokio::test]
async fn disabled_rotation_renews_nothing() {
    let text = format!("{CONFIG}[runners.feature_flags]\nFF_DISABLE_AUTOMATIC_TOKEN_ROTATION = true\n");
    let world = World::start(&text).await;
    assert_eq!(world.go_on().await, at(75));
    world.rotation.stop().await;
    assert_eq!(world.coordinator.runner_tokens().iter().filter(|token| token.contains("reset")).count(), 0);
}

#[tokio::test]
async fn stop_waits_for_reset_in_progress() {
    let world = World::start(CONFIG).await;
    world.coordinator.fail(Call::ResetToken, [Fault::Hung]);
    world.go_on().await;
    world.coordinator.faults_left(Call::ResetToken, 0).await;
    let mut end = pin!(world.rotation.stop());
    assert!(futures::poll!(&mut end).is_pending());
    // But not indefinitely.
    tokio::time::pause();
    end.await;
}

#[tokio::test]
async fn stop_does_not_wait_for_locked_file() {
    let world = World::start(CONFIG).await;
    let other = ConfigFile::open(&world.path()).unwrap();
    world.go_on().await;
    // The rotation waits for the lock of the file now.
    tokio::task::yield_now().await;
    tokio::time::timeout(LOCK_TIMEOUT / 2, world.rotation.stop()).await.expect("the end waits for the file");
    drop(other);
    assert!(
        Client::new(&world.served.url).unwrap().request_job(&request("glrt-old"), &Progress::default()).await.is_ok(),
        "it was not reset"
    );
}

#[tokio::test]
async fn system_clock_sleeps_until_wall_time() {
    let clock = muster_manager::clock::SystemClock;
    let until = clock.now() + Duration::from_millis(20);
    clock.sleep_until(until).await;
    assert!(clock.now() >= until);
}
