//! Lock file `muster-steps.lock` of the checkout, which selects the versions of remote steps.

use muster_steps::lock::{LOCK_FILE, StepLock};
use muster_steps::remote::Source;

use super::*;

fn source(url: &str, revision: &str) -> Source {
    Source::Git { url: url.to_owned(), revision: revision.to_owned() }
}

fn write_lock_file(fixture: &Fixture, pins: &[(Source, &str)]) {
    let mut lock = StepLock::default();
    for (source, digest) in pins {
        lock.put(source, (*digest).to_owned());
    }
    fs::create_dir_all(fixture.agent.project()).unwrap();
    fs::write(fixture.agent.project().join(LOCK_FILE), lock.to_text().unwrap()).unwrap();
}

#[tokio::test]
async fn locked_commit_runs_although_its_branch_and_tag_have_moved() {
    let mut fixture = Fixture::new().await;
    let (url, first) = (fixture.public(), git(&fixture.work(), &["rev-parse", "HEAD"]));
    fixture.push("refs/tags/v1");
    fixture.write_step("steps", "moved");
    fixture.commit("second");
    fixture.push("refs/heads/main");
    fixture.push("refs/tags/v1");
    assert!(fixture.pass(json!(format!("{url}@v1"))).await.contains("<moved>"));
    write_lock_file(&fixture, &[(source(&url, "v1"), &first), (source(&url, "main"), &first)]);
    for revision in ["v1", "main"] {
        let log = fixture.pass(json!(format!("{url}@{revision}"))).await;
        assert!(log.contains("<top>") && log.contains(&format!("({first}, as locked)")), "{log}");
    }
}

#[tokio::test]
async fn step_that_the_lock_file_does_not_name_is_refused() {
    let mut fixture = Fixture::new().await;
    let (url, first) = (fixture.public(), git(&fixture.work(), &["rev-parse", "HEAD"]));
    write_lock_file(&fixture, &[(source(&url, "v1"), &first)]);
    for reference in [format!("{url}@main"), format!("{url}@{first}")] {
        let log = fixture.fail(json!(reference)).await;
        let message = format!("{reference}: {LOCK_FILE} does not name this step; run `muster step lock` and commit");
        assert!(log.contains("step \"remote\": failed to load") && log.contains(&message), "{log}");
        assert!(!log.contains("<top>"), "{log}");
    }
    let list = json!([{"name": "remote", "step": "${{vars.STEP}}"}]);
    let (log, _) = fixture.run_list(list, &[variable("STEP", &format!("{url}@main"))]).await;
    assert!(log.contains("does not name this step"), "{log}");
}

#[tokio::test]
async fn lock_file_must_also_name_remote_steps_of_remote_steps() {
    let mut fixture = Fixture::new().await;
    let url = fixture.public();
    let caller = format!("{{}}\n---\nrun: [{{name: inner, step: '{url}@v1'}}]\n");
    fixture.push("refs/tags/v1");
    fs::create_dir_all(fixture.work().join("steps/caller")).unwrap();
    fs::write(fixture.work().join("steps/caller/step.yml"), caller).unwrap();
    let second = fixture.commit("caller");
    fixture.push("refs/heads/main");
    write_lock_file(&fixture, &[(source(&url, "main"), &second)]);
    let log = fixture.fail(json!(format!("{url}/-/caller@main"))).await;
    assert!(log.contains("step \"inner\": ") && log.contains(&format!("{url}@v1: {LOCK_FILE} does not name")), "{log}");
}

#[tokio::test]
async fn locked_commit_that_the_server_does_not_have_is_named() {
    let mut fixture = Fixture::new().await;
    let url = fixture.public();
    let gone = "0123456789".repeat(4);
    write_lock_file(&fixture, &[(source(&url, "main"), &gone)]);
    let log = fixture.fail(json!(format!("{url}@main"))).await;
    assert!(log.contains(&format!("{url}@main: cannot find version \"{gone}\"")), "{log}");
}

#[tokio::test]
async fn steps_cannot_change_the_lock_file_of_their_job() {
    let mut fixture = Fixture::new().await;
    let (url, first) = (fixture.public(), git(&fixture.work(), &["rev-parse", "HEAD"]));
    write_lock_file(&fixture, &[(source(&url, "v1"), &first)]);
    let list = json!([
        {"name": "remove", "script": format!("rm {LOCK_FILE}")},
        {"name": "remote", "step": format!("{url}@main")},
    ]);
    let (log, _) = fixture.run_list(list, &[]).await;
    assert!(log.contains("does not name this step"), "{log}");
}

#[tokio::test]
async fn invalid_lock_file_fails_the_job() {
    let mut fixture = Fixture::new().await;
    fs::create_dir_all(fixture.agent.project()).unwrap();
    for (text, part) in [("version = 7\n", "unsupported format version 7"), ("x", "failed to parse muster-steps.lock")]
    {
        fs::write(fixture.agent.project().join(LOCK_FILE), text).unwrap();
        let (log, _) = fixture.run_list(json!([{"name": "a", "script": "echo never"}]), &[]).await;
        assert!(log.contains(part) && log.contains("`muster step lock`"), "{log}");
        assert!(!log.contains("\nnever\n"), "{log}");
    }
}

#[tokio::test]
async fn digest_in_the_lock_file_is_not_used_as_a_path() {
    let mut fixture = Fixture::new().await;
    let (url, first) = (fixture.public(), git(&fixture.work(), &["rev-parse", "HEAD"]));
    fixture.pass(json!(format!("{url}@main"))).await;
    let victim = fixture.agent.dir.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("file"), "").unwrap();
    let digest = format!("{first}/../../../victim");
    write_lock_file(&fixture, &[(source(&url, "main"), &digest)]);
    let log = fixture.fail(json!(format!("{url}@main"))).await;
    assert!(log.contains(&format!("cannot find version {digest:?}")), "{log}");
    assert!(victim.join("file").exists());
}

#[tokio::test]
async fn lock_file_of_the_checkout_does_not_apply_to_steps_of_the_operator() {
    let mut fixture = Fixture::new().await;
    write_lock_file(&fixture, &[]);
    let list = json!([{"name": "audit", "step": format!("{}@main", fixture.public())}]);
    let mut audit = step("operator_after_audit", When::Finally, Call::Run(list));
    audit.policy.by_operator = true;
    let (log, result) = fixture.agent.complete(&fixture.agent.plan(vec![audit])).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("<top>"), "{log}");
}
