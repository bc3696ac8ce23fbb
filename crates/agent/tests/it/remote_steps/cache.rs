//! Cache of remote steps.

use super::*;

fn entries(agent: &Agent) -> Vec<PathBuf> {
    let entries = fs::read_dir(agent.dir.path().join("spool/.steps")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| !path.ends_with(".incomplete")).collect()
}

/// Returns the number of connections since the last call. A job opens one connection, and a second connection for a
/// download.
fn connections(server: &GitServer) -> usize {
    server.take_requests().iter().filter(|(path, _)| path.ends_with("/info/refs")).count()
}

#[tokio::test]
async fn commit_is_downloaded_once_but_every_job_needs_access() {
    let mut fixture = Fixture::new().await;
    let own = format!("http://{}/g/steps.git@main", fixture.server.address);
    for _ in 0..2 {
        fixture.pass(json!(own)).await;
    }
    assert_eq!(connections(&fixture.server), 3, "only the first job may download the step");
    let sha = git(&fixture.work(), &["rev-parse", "HEAD"]);
    let reference = format!("http://{}/g/steps.git@{sha}", fixture.server.address);
    let (log, _) = fixture.run_list(json!([{"name": "a", "step": reference}]), &[]).await;
    assert!(log.contains("the server answered 401"), "the cache must not grant access: {log}");
}

#[tokio::test]
async fn content_of_one_repository_is_not_available_through_another_one() {
    let mut fixture = Fixture::new().await;
    fixture.pass(json!(format!("http://{}/g/steps.git@main", fixture.server.address))).await;
    let private = git(&fixture.work(), &["rev-parse", "HEAD"]);
    let other = fixture.agent.dir.path().join("served/g/other.git");
    git(fixture.agent.dir.path(), &["init", "--quiet", "--bare", &text(&other)]);
    let work = fixture.agent.dir.path().join("other");
    fs::create_dir(&work).unwrap();
    git(&work, &["init", "--quiet"]);
    git(&work, &["commit", "--quiet", "--allow-empty", "-m", "empty"]);
    git(&work, &["push", "--quiet", &text(&other), "HEAD:refs/heads/main"]);
    let reference = format!("http://{}/public/g/other.git@{private}", fixture.server.address);
    let (log, _) = fixture.run_list(json!([{"name": "a", "step": reference}]), &[]).await;
    assert!(!log.contains("<top>") && log.contains("failed to load"), "{log}");
}

#[tokio::test]
async fn files_of_the_job_do_not_get_into_a_fetched_step() {
    let mut fixture = Fixture::new().await;
    let reference = format!("{}@main", fixture.public());
    let planted = "{}\n---\nexec: {command: [echo, planted]}\n";
    let plant = format!(
        "for number in 0 1 2; do dir=$CI_PROJECT_DIR.tmp/remote-steps/$number/steps; mkdir -p $dir; printf '%b' '{}' >$dir/func.yml; done",
        planted.replace('\n', "\\n")
    );
    let list = Call::Run(json!([{"name": "a", "step": reference}]));
    let steps = vec![script(&[&plant]), step("step_run", When::OnSuccess, list)];
    let (log, result) = fixture.agent.complete(&fixture.agent.plan(steps)).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("<top>") && !log.contains("\nplanted\n"), "{log}");
}

#[tokio::test]
async fn content_that_a_job_changed_is_not_used() {
    let mut fixture = Fixture::new().await;
    let reference = json!(format!("{}@main", fixture.public()));
    fixture.pass(reference.clone()).await;
    let [entry] = entries(&fixture.agent).try_into().unwrap();
    let pack = fs::read_dir(entry.join("objects/pack")).unwrap().map(|entry| entry.unwrap().path());
    let pack = pack.into_iter().find(|path| path.extension().is_some_and(|it| it == "pack")).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[12..middle] {
        *byte ^= 0x55;
    }
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, bytes).unwrap();
    assert!(fixture.pass(reference).await.contains("<top>"));
    assert_eq!(connections(&fixture.server), 4, "both jobs must download the step");
}

#[tokio::test]
async fn object_with_another_content_is_not_used() {
    let mut fixture = Fixture::new().await;
    let reference = json!(format!("{}@main", fixture.public()));
    fixture.pass(reference.clone()).await;
    let [entry] = entries(&fixture.agent).try_into().unwrap();
    // Unpacks the objects, and replaces an object with another valid object.
    let packs = fixture.agent.dir.path().join("packs");
    fs::rename(entry.join("objects/pack"), &packs).unwrap();
    fs::create_dir(entry.join("objects/pack")).unwrap();
    for pack in fs::read_dir(&packs).unwrap().map(|entry| entry.unwrap().path()) {
        if pack.extension().is_some_and(|it| it == "pack") {
            let command = format!("git unpack-objects -q < '{}'", pack.display());
            let status = std::process::Command::new("sh").args(["-c", &command]).current_dir(&entry).status().unwrap();
            assert!(status.success());
        }
    }
    let good = git(&fixture.work(), &["rev-parse", "HEAD:steps/print"]);
    fs::write(fixture.work().join("evil"), "#!/bin/sh\necho evil\n").unwrap();
    let evil = git(&fixture.work(), &["hash-object", "-w", "evil"]);
    let path = |id: &str| format!("objects/{}/{}", &id[..2], &id[2..]);
    fs::remove_file(entry.join(path(&good))).unwrap();
    fs::copy(fixture.work().join(".git").join(path(&evil)), entry.join(path(&good))).unwrap();
    let log = fixture.pass(reference).await;
    assert!(log.contains("<top>") && !log.contains("evil"), "{log}");
}

#[tokio::test]
async fn jobs_can_change_their_own_copy_of_a_step() {
    let mut fixture = Fixture::new().await;
    let reference = json!(format!("{}@main", fixture.public()));
    let step =
        "{}\n---\nrun:\n- {name: s, script: 'echo broken > \"${{step_dir}}/print\"; echo \"changed ${{step_dir}}\"'}\n";
    fs::write(fixture.work().join("steps/change.yml"), step).unwrap();
    fixture.commit("change");
    fixture.push("refs/heads/main");
    let log = fixture.pass(json!(format!("{}/-/change.yml@main", fixture.public()))).await;
    assert!(log.contains("changed /"), "{log}");
    assert!(fixture.pass(reference).await.contains("<top>"));
}

#[tokio::test]
async fn two_jobs_that_fetch_the_same_step_download_it_once() {
    let mut fixture = Fixture::new().await;
    let list = json!([{"name": "remote", "step": format!("{}@main", fixture.public())}]);
    let plan = |name: &str| {
        let mut plan = fixture.agent.plan(vec![step("step_script", When::OnSuccess, Call::Run(list.clone()))]);
        plan.project_dir = text(&fixture.agent.dir.path().join("builds").join(name));
        plan
    };
    let plans = [plan("one"), plan("two")];
    for (id, plan) in ["1-1", "2-1"].into_iter().zip(&plans) {
        fixture.agent.run(id, plan, &[]).await;
    }
    for id in ["1-1", "2-1"] {
        assert!(fixture.agent.log(id).await.contains("<top>"));
        fixture.agent.wait(id).await;
    }
    assert_eq!(connections(&fixture.server), 3, "only one job may download the step");
}

#[tokio::test]
async fn fetched_steps_are_removed_after_the_job() {
    let mut fixture = Fixture::new().await;
    fixture.pass(json!(format!("{}@main", fixture.public()))).await;
    assert_eq!(fixture.agent.temporary_files(), Vec::<String>::new());
}
