use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::SystemTime;

use super::*;

const RUNNER: &str =
    "[[runners]]\nname = \"a\"\nurl = \"https://one.example\"\nid = 1\ntoken = \"glrt-first\"\nexecutor = \"shell\"\n";

fn config(concurrent: usize) -> String {
    format!("concurrent = {concurrent}\n{RUNNER}")
}

fn watch(path: &Path) -> ConfigWatch {
    let (watch, loaded) = ConfigWatch::start(path.to_owned(), SettingsContext::default());
    assert!(loaded.config.is_some(), "{:?}", loaded.problems);
    watch
}

/// Returns the next change on a paused clock.
async fn next(watch: &mut ConfigWatch) -> Reload {
    tokio::time::timeout(Duration::from_secs(60), watch.changed()).await.expect("nothing changed")
}

async fn applied(watch: &mut ConfigWatch) -> (Settings, Vec<String>) {
    match next(watch).await {
        Reload::Applied { settings, changes, .. } => (*settings, changes),
        other => panic!("{other:?}"),
    }
}

async fn assert_no_change(watch: &mut ConfigWatch) {
    let change = tokio::time::timeout(Duration::from_secs(60), watch.changed()).await;
    assert!(change.is_err(), "{change:?}");
}

#[tokio::test(start_paused = true)]
async fn changed_content_is_reported_but_touched_file_is_not() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    std::fs::write(&path, config(1)).unwrap();
    let mut watch = watch(&path);
    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    std::fs::File::open(&path).unwrap().set_modified(written + Duration::from_secs(9)).unwrap();
    assert_no_change(&mut watch).await;
    std::fs::write(&path, config(4)).unwrap();
    let (settings, changes) = applied(&mut watch).await;
    assert_eq!((settings.concurrent, changes), (4, vec!["concurrent: 1 -> 4".to_owned()]));
    assert_no_change(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn replaced_file_with_old_time_is_detected() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name);
    for (name, concurrent) in [("one", 1), ("two", 2), ("three", 3)] {
        std::fs::write(file(name), config(concurrent)).unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        std::fs::File::options().write(true).open(file(name)).unwrap().set_modified(old).unwrap();
    }
    // Like a ConfigMap: a link to a link.
    symlink("one", file("..data")).unwrap();
    symlink("..data", file("config.toml")).unwrap();
    let mut watch = watch(&file("config.toml"));
    symlink("two", file("..data_tmp")).unwrap();
    std::fs::rename(file("..data_tmp"), file("..data")).unwrap();
    assert_eq!(applied(&mut watch).await.0.concurrent, 2);
    std::fs::rename(file("three"), file("config.toml")).unwrap();
    assert_eq!(applied(&mut watch).await.0.concurrent, 3);
}

#[tokio::test(start_paused = true)]
async fn invalid_file_is_reported_once_and_fixed_one_is_used() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    std::fs::write(&path, config(2)).unwrap();
    let mut watch = watch(&path);
    std::fs::write(&path, "concurrent = [").unwrap();
    let Reload::Invalid { problems } = next(&mut watch).await else { panic!("an invalid file was accepted") };
    assert_eq!(problems[0].severity, muster_config::Severity::Fatal);
    assert_no_change(&mut watch).await;
    assert_eq!(watch.settings().concurrent, 2, "the previous settings must remain in effect");
    std::fs::write(&path, config(3)).unwrap();
    assert_eq!(applied(&mut watch).await.1, ["concurrent: 2 -> 3"]);
}

#[tokio::test(start_paused = true)]
async fn policy_that_changes_beside_an_invalid_file_is_reported_once() {
    for first in ["default = \"allow\"\n", "default = "] {
        let home = tempfile::tempdir().unwrap();
        let (path, policy) = (home.path().join("config.toml"), home.path().join("policy.toml"));
        std::fs::write(&policy, first).unwrap();
        std::fs::write(&path, format!("{}[runners.steps]\npolicy = {policy:?}\n", config(1))).unwrap();
        let mut watch = watch(&path);
        std::fs::write(&path, "concurrent = ").unwrap();
        assert!(matches!(next(&mut watch).await, Reload::Invalid { .. }));
        std::fs::write(&policy, "default = \"deny\"\n# longer").unwrap();
        assert!(matches!(next(&mut watch).await, Reload::Invalid { .. }));
        assert_no_change(&mut watch).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_file_is_reported_once_and_read_again_although_it_does_not_change() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    std::fs::write(&path, config(1)).unwrap();
    let mut watch = watch(&path);
    std::fs::write(&path, b"\xff").unwrap();
    assert!(matches!(next(&mut watch).await, Reload::Invalid { .. }));
    assert_no_change(&mut watch).await;
    std::fs::write(&path, config(2)).unwrap();
    // As if the read of this content had failed.
    watch.stamp = Stamp::read(&path);
    assert_eq!(applied(&mut watch).await.0.concurrent, 2);
    assert_no_change(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn invalid_policy_is_reported_once_and_read_again_although_it_does_not_change() {
    let home = tempfile::tempdir().unwrap();
    let (path, policy) = (home.path().join("config.toml"), home.path().join("policy.toml"));
    std::fs::write(&policy, "default = \"allow\"\n").unwrap();
    std::fs::write(&path, format!("{}[runners.steps]\npolicy = {policy:?}\n", config(1))).unwrap();
    let mut watch = watch(&path);
    std::fs::write(&policy, "default = ").unwrap();
    assert!(applied(&mut watch).await.0.runners[0].steps.problem.is_some());
    assert_no_change(&mut watch).await;
    std::fs::write(&policy, "default = \"deny\"\n").unwrap();
    // As if the read of this content had failed.
    watch.policies = policy_stamps(watch.current.as_ref());
    let steps = applied(&mut watch).await.0.runners[0].steps.clone();
    assert_eq!((steps.problem, steps.policy.unwrap().denied_by_default), (None, Some(1)));
    assert_no_change(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn missing_file_is_reported_once_and_settings_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    std::fs::write(&path, config(2)).unwrap();
    let mut watch = watch(&path);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(next(&mut watch).await, Reload::Missing));
    assert_no_change(&mut watch).await;
    assert!(matches!(watch.reload(), Reload::Missing), "SIGHUP must report the missing file");
    assert_eq!(watch.settings().runners.len(), 1);
    std::fs::write(&path, config(2)).unwrap();
    assert_no_change(&mut watch).await;
    assert!(matches!(watch.reload(), Reload::Applied { changes, .. } if changes.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn changes_are_described_without_secrets() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    let second = RUNNER.replace("\"a\"", "\"b\"").replace("id = 1", "id = 2");
    std::fs::write(&path, format!("{RUNNER}{second}")).unwrap();
    let mut watch = watch(&path);
    let third = second.replace("\"b\"", "\"c\"").replace("id = 2", "id = 3");
    let changed = RUNNER.replace("glrt-first", "glrt-secret").replace("executor", "limit = 3\nexecutor");
    std::fs::write(&path, format!("listen_address = \":9252\"\n{third}{changed}")).unwrap();
    let Reload::Applied { problems, changes, .. } = next(&mut watch).await else { panic!("a valid file was rejected") };
    let descriptions = [
        "listen_address: default -> `:9252`",
        "runner `c` is new",
        "runner `a`: token changed",
        "runner `a`: limit: default -> 3",
        "runner `b` was removed",
    ];
    assert_eq!(changes, descriptions);
    let restart = problems.iter().find(|problem| problem.code == "C035").unwrap();
    assert_eq!(restart.message, "listen_address changed; restart needed");
    assert!(!format!("{problems:?}{changes:?}").contains("glrt-secret"));
}

#[tokio::test(start_paused = true)]
async fn runner_with_new_password_in_its_url_is_the_same_runner() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    let text = |password: &str| config(1).replace("https://", &format!("https://user:{password}@"));
    std::fs::write(&path, text("first")).unwrap();
    let mut watch = watch(&path);
    std::fs::write(&path, text("second")).unwrap();
    assert_eq!(applied(&mut watch).await.1, ["runner `a`: url changed"]);
}
