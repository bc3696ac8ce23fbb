use std::path::PathBuf;

use muster_job::{Secret, error_chain};
use muster_remote::{DialError, HostKey};

use super::host_keys::HostKeys;
use super::*;
use crate::SlotKey;

fn settings() -> SshSettings {
    SshSettings {
        host: "build.example".to_owned(),
        port: "2222".to_owned(),
        user: "ci".to_owned(),
        password: Some(Secret::new("hunter2")),
        identity_file: None,
        known_hosts_file: None,
        accepts_any_host_key: false,
    }
}

fn executors() -> SshExecutors {
    SshExecutors::new(Arc::new(Executable::new("/nonexistent/muster")), 1)
}

fn runner(ssh: Option<SshSettings>) -> Arc<RunnerSettings> {
    let base = RunnerSettings::new("https://one.example/".parse().unwrap(), Secret::new("t"), 1);
    Arc::new(RunnerSettings { executor: NAME.to_owned(), ssh: ssh.map(Arc::new), ..base })
}

#[test]
fn invalid_settings_are_errors_with_a_remedy() {
    let error = |ssh| executors().configure(&runner(ssh), &[]).err().unwrap().to_string();
    assert_eq!(error(None), "executor `ssh` requires [runners.ssh]");
    for port in ["", "0", "ssh", "70000"] {
        let text = error(Some(SshSettings { port: port.to_owned(), ..settings() }));
        assert!(text.contains(&format!("port = {port:?} is not a valid port; write a number")), "{text}");
    }
    let text = error(Some(SshSettings { password: None, ..settings() }));
    assert!(text.contains("set identity_file or password"), "{text}");
}

#[test]
fn rejected_host_key_is_explained_with_the_commands_to_run() {
    let explain = |known: &str| {
        let keys = Vec::<HostKey>::new();
        let path = PathBuf::from("/k/known_hosts");
        let keys = HostKeys::Known { keys, path, host: "build.example".to_owned(), port: 2222 };
        let address = "build.example:2222".to_owned();
        keys.explain(DialError::HostKey { address, found: "SHA256:new".to_owned(), known: known.to_owned() })
            .to_string()
    };
    let text = explain("");
    assert!(text.contains("is SHA256:new, and /k/known_hosts has no key for `[build.example]:2222`"), "{text}");
    assert!(text.contains("`ssh-keyscan -p 2222 build.example >> /k/known_hosts`"), "{text}");
    let text = explain("SHA256:old");
    assert!(text.contains("is SHA256:new, but /k/known_hosts has SHA256:old"), "{text}");
    assert!(text.contains("`ssh-keygen -R '[build.example]:2222' -f /k/known_hosts`"), "{text}");
}

#[test]
fn failed_connection_error_names_its_cause_once() {
    let error = error_chain(&HostKeys::Any.explain(DialError::Expired));
    assert_eq!(error, "failed to connect to the machine of [runners.ssh]: the credentials have expired");
}

#[tokio::test]
async fn slots_in_use_stay_in_use_when_the_settings_change() {
    let executors = executors();
    let key = SlotKey { runner: "t".to_owned(), project_id: 1 };
    executors.configure(&runner(Some(settings())), &[]).unwrap();
    let executor = executors.runners.lock().values().next().map(Arc::clone).unwrap();
    let (before, held_slot) = (executor.environment(), executor.slots.take(&key).unwrap());
    assert!(Arc::ptr_eq(&before, &executor.environment()), "concurrent jobs must share the session");
    let record = lease(Arc::clone(&before), held_slot).record.clone();
    let held = executor.restore(&record).await.unwrap();

    let other = SshSettings { host: "other.example".to_owned(), ..settings() };
    executors.configure(&runner(Some(other)), &[]).unwrap();
    assert!(executor.slots.take(&key).is_none(), "a slot must not be given twice");
    assert!(!Arc::ptr_eq(&before, &executor.environment()));
    drop(held);
    let lost = executor.restore(&record).await.unwrap_err().to_string();
    assert_eq!(lost, "machine ci@build.example:2222 was lost: [runners.ssh] now names another machine");
}
