//! Renewal of expiring tokens, on a clock that the test controls.

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

const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// The token is valid for 100 hours.
const CONFIG: &str = "# kept\nconcurrent = 3\n\n[[runners]]\nname = \"a\" # and this\nurl = \"URL\"\n\
    token = \"glrt-old\"\ntoken_obtained_at = 2026-11-01T00:00:00Z\ntoken_expires_at = 2026-11-05T04:00:00Z\n\
    executor = \"shell\"\n";

/// Returns the time `hours` after the token's creation.
fn at(hours: i64) -> SystemTime {
    SystemTime::from(datetime!(2026-11-01 00:00 UTC) + time::Duration::hours(hours))
}

struct Fixture {
    coordinator: Arc<MemoryCoordinator>,
    served: Served,
    home: tempfile::TempDir,
    clock: ManualClock,
    telemetry: Arc<Telemetry>,
    rotation: Rotation,
}

impl Fixture {
    /// `text` is the content of `config.toml`. The clock starts 10 hours after the token's creation.
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

    /// Advances the clock to the time until which the rotation waits.
    async fn advance_clock(&self) -> SystemTime {
        let until = tokio::time::timeout(WAIT_TIMEOUT, self.clock.next_wake_up())
            .await
            .expect("the rotation does not wait on the clock");
        self.clock.set(until);
        until
    }

    /// Returns the next settings, and applies them as a manager does.
    async fn changed(&mut self) -> Settings {
        tokio::time::timeout(WAIT_TIMEOUT, self.rotation.changed()).await.expect("no change");
        self.rotation.apply_renewed(settings(self.path()))
    }

    async fn is_valid_token(&self, token: &str) -> bool {
        Client::new(&self.served.url).unwrap().request_job(&request(token), &Progress::default()).await.is_ok()
    }

    fn has_metric(&self, metric: &str) -> bool {
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
    let mut fixture = Fixture::start(CONFIG).await;
    assert_eq!(fixture.advance_clock().await, at(75));
    let settings = fixture.changed().await;
    assert_eq!(token(&settings), "glrt-old-reset-1");
    assert!(fixture.is_valid_token("glrt-old-reset-1").await && !fixture.is_valid_token("glrt-old").await);
    let expected = CONFIG
        .replace("glrt-old", "glrt-old-reset-1")
        .replace("2026-11-01T00:00:00Z", "2026-11-04T03:00:00Z")
        .replace("2026-11-05T04:00:00Z", "2026-11-12T11:00:00Z");
    assert_eq!(fixture.text(), expected);
    assert_eq!(
        fixture.advance_clock().await,
        at(75 + 150),
        "the next renewal follows at three quarters of the new token's life"
    );
    fixture.changed().await;
    assert!(fixture.is_valid_token("glrt-old-reset-2").await);
    assert!(fixture.has_metric("gitlab_runner_configuration_saved_total 2"));
    let call = "gitlab_runner_api_request_statuses_total{endpoint=\"reset_token\"";
    assert!(fixture.has_metric(call), "{}", fixture.telemetry.metrics.text(ProcessState::Running));
    fixture.rotation.stop().await;
}

#[tokio::test]
async fn failed_reset_is_retried_with_old_token() {
    let mut fixture = Fixture::start(CONFIG).await;
    fixture.coordinator.fail(Call::ResetToken, [Fault::FailBefore; 3]);
    assert_eq!(fixture.advance_clock().await, at(75));
    let mut before = at(75);
    for _ in 0..3 {
        let retried_at = fixture.advance_clock().await;
        assert!(retried_at > before && retried_at < before + Duration::from_secs(60), "{retried_at:?}");
        before = retried_at;
    }
    assert_eq!(token(&fixture.changed().await), "glrt-old-reset-1");
}

#[tokio::test]
async fn token_is_reset_shortly_before_expiry_even_if_file_is_not_writable() {
    let mut fixture = Fixture::start(CONFIG).await;
    // The file cannot be locked.
    let lock = fixture.home.path().join(".config.toml.lock");
    std::fs::create_dir(&lock).unwrap();
    while fixture.advance_clock().await < at(95) {
        assert!(fixture.is_valid_token("glrt-old").await);
        assert_eq!(fixture.text(), CONFIG);
    }
    let settings = fixture.changed().await;
    assert_eq!(
        (token(&settings), fixture.text().as_str()),
        ("glrt-old-reset-1", CONFIG),
        "the new token must be used from memory"
    );
    assert!(fixture.is_valid_token(token(&settings)).await);
    std::fs::remove_dir(lock).unwrap();
    fixture.advance_clock().await;
    assert_eq!(token(&fixture.changed().await), "glrt-old-reset-1");
    assert!(
        fixture.text().contains("token = \"glrt-old-reset-1\""),
        "the token must be saved once the file is writable again"
    );
}

#[tokio::test]
async fn entries_with_shared_token_are_renewed_together() {
    let second = CONFIG.split_once("\n\n").unwrap().1.replace("\"a\"", "\"b\"");
    let mut fixture = Fixture::start(&format!("{CONFIG}\n{second}")).await;
    fixture.advance_clock().await;
    let settings = fixture.changed().await;
    let tokens: Vec<_> = settings.runners.iter().map(|runner| runner.token.expose()).collect();
    assert_eq!(tokens, ["glrt-old-reset-1"; 2]);
}

#[tokio::test]
async fn disabled_rotation_renews_nothing() {
    // The token of another runner is valid for 128 hours.
    let other = CONFIG.split_once("\n\n").unwrap().1.replace("glrt-old", "glrt-other").replace("11-05T04", "11-06T08");
    let flags = "[runners.feature_flags]\nFF_DISABLE_AUTOMATIC_TOKEN_ROTATION = true\n";
    let fixture = Fixture::start(&format!("{CONFIG}{flags}\n{other}")).await;
    assert_eq!(fixture.advance_clock().await, at(75));
    // The rotation waits for the second token only after it has handled the first.
    assert_eq!(fixture.advance_clock().await, at(96));
    assert_eq!(fixture.coordinator.runner_tokens().iter().filter(|token| token.contains("reset")).count(), 0);
    fixture.rotation.stop().await;
}

#[tokio::test]
async fn stop_waits_for_reset_in_progress() {
    let fixture = Fixture::start(CONFIG).await;
    fixture.coordinator.fail(Call::ResetToken, [Fault::Hung]);
    fixture.advance_clock().await;
    fixture.coordinator.wait_for_faults_left(Call::ResetToken, 0).await;
    let mut end = pin!(fixture.rotation.stop());
    assert!(futures::poll!(&mut end).is_pending());
    // The wait ends when the request times out after 60 s.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(50)).await;
    assert!(futures::poll!(&mut end).is_pending(), "the reset must not be aborted");
    end.await;
}

#[tokio::test]
async fn stop_does_not_wait_for_locked_file() {
    let fixture = Fixture::start(CONFIG).await;
    let other = ConfigFile::open(&fixture.path()).unwrap();
    fixture.advance_clock().await;
    // Now the rotation waits for the lock of the file.
    tokio::task::yield_now().await;
    tokio::time::timeout(LOCK_TIMEOUT / 2, fixture.rotation.stop()).await.expect("stop waits for the lock of the file");
    drop(other);
    assert!(
        Client::new(&fixture.served.url).unwrap().request_job(&request("glrt-old"), &Progress::default()).await.is_ok(),
        "the token must not be reset"
    );
}

#[tokio::test]
async fn system_clock_sleeps_until_wall_time() {
    let clock = muster_manager::clock::SystemClock;
    let until = clock.now() + Duration::from_millis(20);
    clock.sleep_until(until).await;
    assert!(clock.now() >= until);
}
