//! Cases 106, 110 and 117: ends of processes, and the bytes of the log.

use muster_agent_api::result::StepStatus;

use super::harness::Project;

#[tokio::test]
async fn c106_failed_command_is_named_with_its_exit_status() {
    let outcome = Project::new().run("- {name: bash, script: exit 127}").await;
    let node = &outcome.nodes[0];
    assert_eq!((node.name.as_str(), node.status, node.exit_code), ("bash", StepStatus::Failure, Some(127)));
    assert_eq!(node.message, "exec: exit status 127");
}

#[tokio::test]
async fn c110_killed_process_is_a_failure() {
    for (signal, text) in [(9, "killed"), (10, "user defined signal 1"), (14, "alarm clock"), (30, "power failure")] {
        let step = format!("{{}}\n---\nexec: {{command: [sh, -c, 'kill -{signal} $$']}}");
        let outcome = Project::new().step("kill", &step).run("- {name: a, step: ./kill}").await;
        assert_eq!(outcome.nodes[0].status, StepStatus::Failure);
        outcome.assert_error(&format!("exec: signal: {text}"));
    }
}

#[tokio::test]
async fn c117_log_has_every_byte_of_the_output() {
    let step = "{}\n---\nexec:\n  command:\n  - sh\n  - -c\n  - |\n    \
                printf 'a\\n\\n\\nb\\r\\nc\\r'; head -c 70000 /dev/zero | tr '\\0' y; printf '\\nend'\n";
    let expected = format!("a\n\n\nb\r\nc\r{}\nend", "y".repeat(70_000));
    // With a sensitive value, the log passes through a masker.
    let masked =
        "spec: {inputs: {s: {type: string, default: not-in-the-log, sensitive: true}}}\n---\nexec: {command: ['true']}";
    let project = Project::new().step("print", step).step("masked", masked);
    for items in ["- {name: a, step: ./print}", "- {name: m, step: ./masked}\n- {name: a, step: ./print}"] {
        assert!(project.run(items).await.log() == expected, "{items}");
    }
}
