//! Steps in Git repositories.

use muster_job::{PolicyRule, StepPolicy};

use super::*;

#[tokio::test]
async fn c089_reference_as_text_names_a_step_of_a_repository() {
    let mut fixture = Fixture::new().await;
    let url = fixture.public();
    for (reference, word) in [
        (format!("{url}@main"), "<top>"),
        (format!("{url}/-/sub@main"), "<sub>"),
        (format!("{url}/-/other.yml@main"), "<top>"),
        (format!("{url}/-/sub/step.yml@main"), "<sub>"),
        (format!("http://gitlab-ci-token:{TOKEN}@{}/g/steps.git@main", fixture.server.address), "<top>"),
    ] {
        let log = fixture.pass(json!(reference)).await;
        assert!(log.contains(word) && !log.contains(TOKEN), "{reference}: {log}");
    }
}

#[tokio::test]
async fn c090_mapping_names_directory_file_and_revision() {
    let mut fixture = Fixture::new().await;
    let (url, sha) = (fixture.public(), fixture.commit("second"));
    fixture.push("refs/heads/main");
    for (location, word) in [
        (json!({"url": url, "rev": "main"}), "<root>"),
        (json!({"url": url, "rev": "main", "dir": "steps/sub"}), "<sub>"),
        (json!({"url": url, "rev": "main", "dir": "/steps/", "file": "other.yml"}), "<top>"),
        (json!({"url": url, "rev": sha, "dir": "steps"}), "<top>"),
        (json!({"url": url, "rev": &sha[..8], "dir": "steps"}), "<top>"),
    ] {
        let log = fixture.pass(json!({"git": location})).await;
        assert!(log.contains(word) && log.contains(&format!("({sha})")), "{location}: {log}");
    }
}

#[tokio::test]
async fn c092_tag_branch_and_hash_denote_a_commit() {
    let mut fixture = Fixture::new().await;
    let (url, first) = (fixture.public(), git(&fixture.work(), &["rev-parse", "HEAD"]));
    git(&fixture.bare(), &["tag", "light"]);
    let bare = fixture.bare();
    git(&bare, &["tag", "-a", "annotated", "-m", "text"]);
    fixture.write_step("steps", "second");
    fixture.commit("second");
    fixture.push("refs/heads/main");
    // These revisions denote a commit that is no longer the tip of a branch.
    for revision in ["light", "annotated", &first, &first[..8]] {
        let log = fixture.pass(json!(format!("{url}@{revision}"))).await;
        assert!(log.contains("<top>") && log.contains(&format!("({first})")), "{revision}: {log}");
    }
    let log = fixture.pass(json!(format!("{url}@main"))).await;
    assert!(log.contains("<second>"), "{log}");
    for revision in ["light", "annotated"] {
        git(&bare, &["tag", "-d", revision]);
    }
    git(&bare, &["reflog", "expire", "--all", "--expire=now"]);
    let log = fixture.pass(json!(format!("{url}@{}", &first[..8]))).await;
    assert!(log.contains("<top>"), "the commit must be found in the history: {log}");
    let log = fixture.fail(json!(format!("{url}@none"))).await;
    assert!(log.contains(&format!("{url}@none: cannot find version \"none\": the server has no such tag")), "{log}");
    let log = fixture.fail(json!(format!("{url}@.git"))).await;
    assert!(log.contains(".git version not allowed"), "{log}");
}

#[tokio::test]
async fn c092_new_tag_and_moved_branch_are_seen_by_the_next_job() {
    let mut fixture = Fixture::new().await;
    let url = fixture.public();
    assert!(fixture.pass(json!(format!("{url}@main"))).await.contains("<top>"));
    fixture.write_step("steps", "second");
    fixture.commit("second");
    fixture.push("refs/heads/main");
    fixture.push("refs/tags/v2");
    for revision in ["v2", "main"] {
        let log = fixture.pass(json!(format!("{url}@{revision}"))).await;
        assert!(log.contains("<second>"), "{revision}: {log}");
    }
}

#[tokio::test]
async fn notices_of_a_repository_are_printed_for_their_version() {
    let mut fixture = Fixture::new().await;
    let (url, first) = (fixture.public(), git(&fixture.work(), &["rev-parse", "HEAD"]));
    git(&fixture.bare(), &["tag", "v1"]);
    assert!(!fixture.pass(json!(format!("{url}@v1"))).await.contains("WARNING"));
    fixture.publish_notices("[[notice]]\nversion = 'v1'\ndeprecated = 'use v2'\ndefective = 'loses words'\n");
    let log = fixture.pass(json!(format!("{url}@v1"))).await;
    for warning in ["is deprecated: use v2", "is defective: loses words"] {
        assert!(log.contains(&format!("WARNING: the step {url}@v1 {warning}")), "{warning}: {log}");
    }
    assert!(log.contains("<top>") && log.contains(&format!("({first})")), "notices must not change the commit: {log}");
    assert!(!fixture.pass(json!(format!("{url}@main"))).await.contains("WARNING"));
    fixture.publish_notices(&format!("[[notice]]\nversion = '{first}'\ndefective = 'in every branch'\n"));
    assert!(fixture.pass(json!(format!("{url}@main"))).await.contains("is defective: in every branch"));
    fixture.publish_notices("[[notice]]\nno version\n");
    let log = fixture.pass(json!(format!("{url}@v1"))).await;
    assert!(
        log.contains("<top>") && !log.contains("WARNING"),
        "an invalid file of notices must not fail the job: {log}"
    );
}

#[tokio::test]
async fn c092_host_without_dot_is_refused_in_the_legacy_dialect() {
    let mut fixture = Fixture::new().await;
    let list = json!([{"name": "remote", "step": "localhost/g/steps@main"}]);
    let (log, _) = fixture.run_list(list, &[variable("CI_STEPS_DIALECT", "legacy")]).await;
    assert!(log.contains("escaping path: malformed module path \"localhost/g/steps\""), "{log}");
}

#[tokio::test]
async fn job_token_is_sent_only_to_its_server() {
    let mut fixture = Fixture::new().await;
    let own = format!("http://{}/g/steps.git", fixture.server.address);
    let log = fixture.pass(json!(format!("{own}@main"))).await;
    assert!(log.contains("<top>") && !log.contains(TOKEN), "{log}");
    assert!(fixture.server.take_requests().iter().all(|(_, authorization)| authorization.is_some()));

    let other = GitServer::start(&fixture.agent.dir.path().join("served")).await;
    let log = fixture.pass(json!(format!("http://{}/public/g/steps.git@main", other.address))).await;
    assert!(log.contains("<top>"), "{log}");
    let log = fixture.fail(json!(format!("http://{}/g/steps.git@main", other.address))).await;
    let message = "the server answered 401 Unauthorized: check the name of the repository";
    assert!(log.contains(message) && log.contains("https://USER:TOKEN@HOST/PATH"), "{log}");
    let requests = other.take_requests();
    assert!(requests.len() >= 2 && requests.iter().all(|(_, authorization)| authorization.is_none()), "{requests:?}");
}

#[tokio::test]
async fn failures_name_the_reference_the_answer_and_the_remedy() {
    let mut fixture = Fixture::new().await;
    let wrong = format!("http://u:wr0ng-password@{}/g/steps.git", fixture.server.address);
    let log = fixture.fail(json!(format!("{wrong}@main"))).await;
    assert!(
        log.contains(&format!("http://{}/g/steps.git@main: the server answered 401", fixture.server.address)),
        "{log}"
    );
    assert!(!log.contains("wr0ng-password"), "{log}");
    let log = fixture.fail(json!(format!("{}x@main", fixture.public()))).await;
    assert!(log.contains("the server answered 404 Not Found; check the URL"), "{log}");
    let log = fixture.fail(json!("http://127.0.0.1:1/g/steps.git@main")).await;
    assert!(log.contains("Connection refused") && log.contains("; check the URL"), "{log}");
    let log = fixture.fail(json!(format!("{}/-/none@main", fixture.public()))).await;
    assert!(log.contains("/steps/none/step.yml\": reading file: No such file"), "{log}");
}

#[tokio::test]
async fn steps_of_a_repository_call_each_other() {
    let mut fixture = Fixture::new().await;
    let caller = "{}\n---\nrun:\n- {name: a, step: ../sub}\n- {name: b, step: './other.yml'}\n";
    fs::create_dir_all(fixture.work().join("steps/caller")).unwrap();
    fs::write(fixture.work().join("steps/caller/step.yml"), caller).unwrap();
    fs::write(fixture.work().join("steps/caller/other.yml"), "{}\n---\nexec: {command: [echo, beside]}\n").unwrap();
    fixture.commit("caller");
    fixture.push("refs/heads/main");
    let log = fixture.pass(json!(format!("{}/-/caller@main", fixture.public()))).await;
    assert!(log.contains("<sub>\nbeside\n"), "{log}");
}

/// The author of the job chooses the input. It must not lead to a step outside of the repository.
#[tokio::test]
async fn step_of_an_allowed_repository_needs_a_rule_for_steps_outside_of_it() {
    let mut fixture = Fixture::new().await;
    let caller = "spec: {inputs: {next: {type: string}}}\n---\nrun:\n- {name: next, step: './${{inputs.next}}'}\n";
    fs::create_dir_all(fixture.work().join("steps/caller")).unwrap();
    fs::write(fixture.work().join("steps/caller/step.yml"), caller).unwrap();
    fixture.commit("caller");
    fixture.push("refs/heads/main");
    let elsewhere = fixture.agent.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("step.yml"), "{}\n---\nexec: {command: [echo, evaded]}\n").unwrap();
    let outside = format!("{}{}", "../".repeat(30), elsewhere.display());
    for (next, word) in [("../sub", "<sub>"), (&outside, &*format!("does not allow `local:{}`", elsewhere.display()))] {
        let reference = format!("{}/-/caller@main", fixture.public());
        let list = json!([{"name": "caller", "step": reference, "inputs": {"next": next}}]);
        let mut plan = fixture.agent.plan(vec![step("step_script", When::OnSuccess, Call::Run(list))]);
        let rule = PolicyRule { pattern: "git:**".to_owned(), is_allowed: true, ..Default::default() };
        plan.step_policy = Some(StepPolicy { rules: vec![rule], denied_by_default: Some(1), ..Default::default() });
        let (log, _) = fixture.agent.complete(&plan).await;
        assert!(log.contains(word) && !log.contains("evaded"), "{next}: {log}");
    }
}

#[tokio::test]
async fn fetch_from_a_server_that_does_not_answer_can_be_canceled() {
    let mut fixture = Fixture::new().await;
    let list = json!([{"name": "remote", "step": format!("http://{}/slow.git@main", fixture.server.address)}]);
    let plan = fixture.agent.plan(vec![
        step("before", When::OnSuccess, Call::Run(json!([{"name": "a", "script": "echo started"}]))),
        step("step_script", When::OnSuccess, Call::Run(list)),
    ]);
    fixture.agent.run("1-1", &plan, &[]).await;
    fixture.agent.log_until("1-1", "started").await;
    fixture.agent.cancel("1-1").await;
    let result = fixture.agent.wait("1-1").await;
    assert_eq!(failure(&result).0, "job_canceled");
}
