//! Images with bash, with only `sh`, and without any shell.

use muster_agent_api::builtin::{DockerContainer, ImageSpec};
use muster_agent_api::plan::{Call, Step};
use muster_agent_api::result::Outcome;
use muster_test_prerequisites::{bash_root, shellless_root};
use serde_json::json;

use super::harness::{Host, failure_of, job, script};

const NO_SHELL: &str = "muster-test/shellless:1";

/// Command that writes a step that prints the ID of its user.
const WRITE_ID: &str = r"printf 'spec: {}\n---\nexec: {command: [/usr/bin/id, -u]}\n' > id/step.yml";
/// Command that writes a step that calls the step of [`WRITE_TOUCH`].
const WRITE_MAKE: &str = r#"printf 'spec: {inputs: {file: {type: string}}}\n---\nrun: [{name: touch, step: ./touch, inputs: {file: "${{ inputs.file }}"}}]\n' > make/step.yml"#;
/// Command that writes a step that creates a file.
const WRITE_TOUCH: &str = r#"printf 'spec: {inputs: {file: {type: string}}}\n---\nexec: {command: [touch, "${{ inputs.file }}"]}\n' > make/touch/step.yml"#;

fn job_with_root(host: &Host, name: &str, image: &str, root: &[u8]) -> DockerContainer {
    host.docker.import_image(image, root, &[]);
    let mut job = job(name);
    job.build.image =
        ImageSpec { name: image.to_owned(), pull_policies: vec!["never".to_owned()], ..ImageSpec::default() };
    job
}

#[tokio::test]
async fn script_runs_in_bash_if_the_image_has_it_and_otherwise_in_sh() {
    let Some(root) = bash_root() else { return };
    for host in Host::start_on_each_engine().await {
        let which = "if [ -n \"$BASH_VERSION\" ]; then echo \"in bash of $(command -v bash)\"; else echo in sh; fi";
        let job = job_with_root(&host, "bash", "muster-test/bash:1", &root);
        let (log, result) = host.run(&job, vec![script(&[which])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains("\nin bash of /bin/bash\n"), "{log}");
        host.close_job().await;
        let (log, result) = host.run(&super::harness::job("only-sh"), vec![script(&[which])]).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains("\nin sh\n"), "{log}");
    }
}

#[tokio::test]
async fn script_in_an_image_without_a_shell_fails_and_the_error_names_the_image_and_the_remedy() {
    let Some(root) = shellless_root() else { return };
    for host in Host::start_on_each_engine().await {
        let job = job_with_root(&host, "no-shell", NO_SHELL, &root);
        let (log, result) = host.run(&job, vec![script(&["echo never"])]).await;
        assert_eq!(failure_of(&result).0, "runner_configuration_error", "{log}");
        for part in [
            "shell not found: the image muster-test/shellless:1 has no `bash` or `sh` in ",
            "/usr/bin, ",
            "; use an image with a shell, or replace the script by `run:` with steps that have `exec:`",
        ] {
            assert!(result.message.contains(part), "{part:?} is missing in {}", result.message);
        }
        host.close_job().await;
        let list = Call::Run(json!([{ "name": "shell", "script": "echo never" }]));
        let (log, result) = host.run(&job, vec![Step::new("step_run", "", list)]).await;
        assert_eq!(failure_of(&result).0, "script_failure", "{log}");
        let message = &result.message;
        assert!(message.contains("the image muster-test/shellless:1 has no `bash` or `sh` in "), "{message}");
        assert_eq!(host.objects("no-shell"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn steps_that_execute_programs_run_in_an_image_without_a_shell() {
    let Some(root) = shellless_root() else { return };
    let list = json!([
        { "name": "who", "step": "./id" },
        { "name": "works", "step": "./make", "inputs": { "file": "made" } },
        { "name": "denied", "step": "./make/touch", "inputs": { "file": "/etc/made" } }
    ]);
    for host in Host::start_on_each_engine().await {
        // A job with a shell leaves steps in the checkout, which the job without a shell runs.
        let mut with_shell = job("exec");
        with_shell.volumes[0].temporary = false;
        let commands = ["rm -rf *; mkdir -p id make/touch", WRITE_ID, WRITE_MAKE, WRITE_TOUCH];
        for (user, is_read_only, denied) in [
            ("", false, None),
            ("1000", false, Some("Permission denied")),
            ("1000", true, Some("Read-only file system")),
        ] {
            let (log, result) = host.run(&with_shell, vec![script(&commands)]).await;
            assert_eq!(result.outcome, Outcome::Success, "{log}");
            host.close_job().await;
            let mut job = job_with_root(&host, "exec", NO_SHELL, &root);
            job.volumes[0].temporary = false;
            user.clone_into(&mut job.build.user);
            job.build.host_config.insert("ReadonlyRootfs".to_owned(), json!(is_read_only));
            job.directories = vec!["/builds".to_owned()];
            let (log, result) = host.run(&job, vec![Step::new("step_run", "", Call::Run(list.clone()))]).await;
            let id = if user.is_empty() { "0\n" } else { "1000\n" };
            assert!(log.contains(id), "{log}");
            match denied {
                None => assert_eq!(result.outcome, Outcome::Success, "{log}"),
                Some(reason) => {
                    assert_eq!(failure_of(&result), ("script_failure".to_owned(), Some(1)), "{log}");
                    assert!(log.contains(&format!("/etc/made: {reason}")), "only the last step must fail: {log}");
                }
            }
            host.close_job().await;
            let (log, result) = host.run(&with_shell, vec![script(&["test -f made"])]).await;
            assert_eq!(result.outcome, Outcome::Success, "{log}");
            host.close_job().await;
        }
        assert_eq!(host.docker.call("DELETE", "/volumes/exec-builds", &[]).0, 204);
        assert_eq!(host.objects("exec"), "", "no object of the job must be left");
    }
}
