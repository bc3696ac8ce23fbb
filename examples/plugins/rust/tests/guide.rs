//! The guide `docs/how-to/write-a-plugin.md`, word for word: its files are this project's, its commands run, and what comes
//! out makes machines.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::process::Command;

use muster_fleeting::conformance::{self, Outcome, Plan};
use muster_fleeting::connector::{Exit, KnownHosts, Run, Target, dial};
use muster_fleeting::host::{Group, PluginSpec};

const PLUGIN: &str = env!("CARGO_BIN_EXE_fleeting-plugin-sshd");
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The first code block of a language after a text.
fn block(guide: &str, after: &str, language: &str) -> String {
    let rest = guide.split_once(after).unwrap().1;
    let start = format!("```{language}\n");
    rest.split_once(&start).unwrap().1.split_once("\n```").unwrap().0.to_owned() + "\n"
}

fn guide() -> String {
    std::fs::read_to_string(Path::new(HERE).join("../../../docs/how-to/write-a-plugin.md")).unwrap()
}

#[test]
fn the_files_of_the_guide_are_these() {
    for (step, language, file) in [("**1.**", "toml", "Cargo.toml"), ("**2.**", "rust", "src/main.rs")] {
        let text = std::fs::read_to_string(Path::new(HERE).join(file)).unwrap();
        assert_eq!(block(&guide(), step, language), text, "{file} and the guide differ");
        assert!(text.lines().count() < 150, "R022");
    }
}

#[test]
fn the_commands_of_the_guide_run() {
    let commands = block(&guide(), "**3.**", "sh");
    let mut said = Vec::new();
    // Cargo built it to get here.
    for line in commands.lines().filter(|line| line.starts_with("fleeting-plugin-sshd")) {
        let output = Command::new(PLUGIN).args(line.split(' ').skip(1)).output().unwrap();
        assert!(output.status.success(), "{line}");
        said.push(String::from_utf8(output.stdout).unwrap());
    }
    assert!(said[0].contains("Name:         fleeting-plugin-sshd"), "{said:?}");
    assert!(said[1].contains("| `max_size` | integer | `10` | The most instances. |"), "{said:?}");
}

fn has_sshd() -> bool {
    if !Path::new("/usr/sbin/sshd").exists() {
        eprintln!("skipped: there is no /usr/sbin/sshd (Debian: openssh-server)");
        return false;
    }
    // sshd wants it, where it runs as root.
    let _ = std::fs::create_dir("/run/sshd");
    true
}

/// As `muster plugin test` does.
#[tokio::test]
async fn the_plugin_of_the_guide_passes_the_kit() {
    if !has_sshd() {
        return;
    }
    let report = conformance::run(&Plan::new(PLUGIN), &mut |_| {}).await;
    for verdict in &report.verdicts {
        // It cannot suspend, and its instances end with it.
        let fine = verdict.outcome == Outcome::Pass || ["P11", "L11"].contains(&verdict.case.id);
        assert!(fine, "{verdict:?}");
    }
}

#[tokio::test]
async fn the_plugin_of_the_guide_makes_machines() {
    if !has_sshd() {
        return;
    }
    let mut spec = PluginSpec::new(PLUGIN);
    spec.config = serde_json::json!({"max_size": 3});
    let group = Group::start(spec).await.unwrap();
    assert_eq!(group.increase(5).await.unwrap(), 3);
    let ids: Vec<_> = group.update().await.unwrap().instances.into_keys().collect();
    assert_eq!(ids.len(), 3);
    let info = group.connect_info(&ids[0]).await.unwrap();
    let target = Target { instance: ids[0].clone(), info, use_external_addr: false };
    let session = dial(&target, &KnownHosts::default()).await.unwrap();
    assert_eq!(session.run(Run::new("exit 3")).await.unwrap().exit, Exit::Code(3));
    assert_eq!(group.decrease(&ids).await.unwrap().len(), 3);
    assert!(group.update().await.unwrap().instances.is_empty());
    group.stop().await;
}
