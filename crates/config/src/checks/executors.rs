//! Checks of executors and their settings (checks C014, C100 to C103, C106, C107).

use super::super::codes::Severity;
use super::super::problem::{Problem, shown_name};
use super::super::runners::Runner;
use super::Check;

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        match runner.executor.as_str() {
            "custom" => check_custom(check, runner),
            "ssh" => check_ssh(check, runner),
            "shell" => check_shell(check, runner),
            _ => {}
        }
        check_values(check, runner);
        check_output_limit(check, runner);
        check_environment(check, runner);
    }
}

/// Check C100.
fn check_custom(check: &mut Check<'_>, runner: &Runner) {
    if runner.table.str("custom.run_exec").is_none() {
        let help = "set it in [runners.custom] to the program that runs a job's stages";
        check.report(runner, "custom.run_exec", "C100", "custom executor: run_exec is mandatory", help);
    }
    // The configuration stage may set the directories.
    if runner.table.str("custom.config_exec").is_some() {
        return;
    }
    for key in ["builds_dir", "cache_dir"] {
        if runner.table.str(key).is_none() {
            let message = format!("custom executor: {key} is mandatory");
            check.report(
                runner,
                key,
                "C100",
                message,
                "set it, or set config_exec to a program that prints it as JSON",
            );
        }
    }
}

/// Checks C014 and C101.
fn check_ssh(check: &mut Check<'_>, runner: &Runner) {
    let mut error = |key: &str, message: String, help: &str| {
        let problem = Problem::new("C014", message).severity(Severity::Error).of(runner.index, &runner.name);
        check.add(problem.at(&runner.table.span_of(key)).help(help));
    };
    if runner.table.table("ssh").is_none() {
        let message = "ssh executor: the table [runners.ssh] is missing; this runner requests no jobs".to_owned();
        return error("executor", message, "add it with host, user, and identity_file or password");
    }
    let is_set = |key: &str| runner.table.str(key).is_some_and(|text| !text.is_empty());
    if !is_set("ssh.identity_file") && !is_set("ssh.password") {
        let message = "ssh executor: no credentials are set; this runner requests no jobs".to_owned();
        error("ssh", message, "set identity_file or password in [runners.ssh]");
    }
    if let Some(port) = runner.table.str("ssh.port").filter(|port| !port.is_empty() && !is_port(port)) {
        let message = format!("ssh executor: port `{port}` is not a valid port; this runner requests no jobs");
        error("ssh.port", message, "write a number from 1 to 65535 as a string");
    }
    if runner.table.bool("ssh.disable_strict_host_key_checking") == Some(true) {
        let help = "add the host's key to known_hosts with ssh-keyscan, and remove disable_strict_host_key_checking";
        return check.report(
            runner,
            "ssh.disable_strict_host_key_checking",
            "C101",
            "host keys are not verified",
            help,
        );
    }
    let configured = runner.table.str("ssh.known_hosts_file").map(std::path::PathBuf::from);
    let path = configured.or_else(|| check.facts.home.as_ref().map(|home| home.join(".ssh/known_hosts")));
    if let Some(path) = path.filter(|path| check.facts.is_missing(path)) {
        let message = format!("known_hosts {} is missing: jobs will fail", path.display());
        check.report(runner, "ssh.known_hosts_file", "C101", message, "create it with ssh-keyscan");
    }
}

fn is_port(text: &str) -> bool {
    text.trim().parse::<u16>().is_ok_and(|port| port > 0)
}

/// Check C102.
fn check_shell(check: &mut Check<'_>, runner: &Runner) {
    let user = if check.facts.user.is_empty() { "the manager's user" } else { &check.facts.user };
    if check.facts.job_user.is_none() {
        let message = format!("jobs run as {user} on this host, with all permissions of this user");
        check.report(
            runner,
            "executor",
            "C102",
            message,
            "start with --user, or keep this runner for trusted projects",
        );
    }
}

/// Check C014 of the shell, and of values below the minimum.
fn check_values(check: &mut Check<'_>, runner: &Runner) {
    let shells = ["bash", "sh", "pwsh", "powershell"];
    if let Some(shell) = runner.table.str("shell").filter(|shell| !shell.is_empty() && !shells.contains(shell)) {
        let message = format!("shell `{}` is not supported; every job fails", shown_name(shell));
        let problem = Problem::new("C014", message).severity(Severity::Error).of(runner.index, &runner.name);
        check.add(problem.at(&runner.table.span_of("shell")).help("use bash, sh, pwsh or powershell"));
    }
    let mut warn = |key: &str, message: String, help: &str| {
        let problem = Problem::new("C014", message).severity(Severity::Warning).of(runner.index, &runner.name);
        check.add(problem.at(&runner.table.span_of(key)).help(help));
    };
    if let Some(count) = runner.table.int("request_concurrency").filter(|count| *count < 1) {
        warn("request_concurrency", format!("request_concurrency = {count} is treated as 1"), "write 1 or more");
    }
    if let Some(limit) = runner.table.int("limit").filter(|limit| *limit < 0) {
        warn("limit", format!("limit = {limit} is treated as no limit"), "write 0 for no limit, or 1 or more");
    }
    if let Some(limit) = runner.table.int("output_limit").filter(|limit| *limit < 0) {
        warn("output_limit", format!("output_limit = {limit} is treated as not set"), "write a number of KiB above 0");
    }
    for name in ["max_bytes", "max_entries", "max_ratio", "max_header_bytes"] {
        let key = format!("unpack.{name}");
        if let Some(limit) = runner.table.int(&key).filter(|limit| *limit < 1) {
            warn(
                &key,
                format!("{name} = {limit} is treated as not set"),
                "write 1 or more; a large number means no limit",
            );
        }
    }
}

/// Check C103.
fn check_output_limit(check: &mut Check<'_>, runner: &Runner) {
    /// From this number on, the operator probably meant bytes.
    const MANY_KIB: i64 = 1_000_000;
    if let Some(kib) = runner.table.int("output_limit").filter(|kib| *kib >= MANY_KIB) {
        let message = format!("output_limit = {kib} KiB is {} MiB", kib / 1024);
        check.report(runner, "output_limit", "C103", message, "the unit is KiB: write 4096 for 4 MiB");
    }
}

/// Checks C106 and C107.
fn check_environment(check: &mut Check<'_>, runner: &Runner) {
    for (index, (entry, node)) in runner.table.strings("environment").enumerate() {
        if !entry.contains('=') {
            let message = format!("environment entry {} is not KEY=VALUE and is ignored", index + 1);
            check.add(
                Problem::new("C106", message).of(runner.index, &runner.name).at(&node.span).help("write KEY=VALUE"),
            );
        }
    }
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
    let is_set = |name: &&&str| check.facts.env.get(**name).is_some_and(|value| !value.is_empty());
    let in_jobs = |name: &str| {
        runner
            .table
            .strings("environment")
            .any(|(entry, _)| entry.split('=').next().unwrap_or_default().eq_ignore_ascii_case(name))
    };
    // Jobs of the shell executor have the manager's environment.
    if let Some(name) = proxies.iter().find(is_set).filter(|name| !in_jobs(name) && runner.executor != "shell") {
        let message = format!("{} is set for the manager only; jobs do not get it", shown_name(name));
        check.report(runner, "environment", "C107", message, &format!("add \"{name}=...\" to environment"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, clean_with, found, found_with};

    fn runner(executor: &str, more: &str) -> String {
        format!("[[runners]]\nname = \"a\"\nexecutor = \"{executor}\"\n{more}\n")
    }

    #[test]
    fn c100_custom_executor_needs_program_and_directories() {
        let rendered = found("C100", &runner("custom", "builds_dir = \"/b\""));
        assert!(
            rendered.contains("run_exec is mandatory")
                && rendered.contains("cache_dir is mandatory")
                && !rendered.contains("builds_dir"),
            "{rendered}"
        );
        let directories = "builds_dir = \"/b\"\ncache_dir = \"/c\"";
        clean("C100", &runner("custom", &format!("{directories}\n[runners.custom]\nrun_exec = \"/x\"")));
        clean("C100", &runner("custom", "[runners.custom]\nrun_exec = \"/x\"\nconfig_exec = \"/y\""));
    }

    #[test]
    fn c101_unverified_or_unknown_host_keys_are_reported() {
        found("C101", &runner("ssh", "[runners.ssh]\ndisable_strict_host_key_checking = true"));
        let home = tempfile::tempdir().unwrap();
        let text = runner("ssh", "[runners.ssh]\nhost = \"h\"");
        let facts = |facts: &mut super::super::super::HostFacts| {
            facts.home = Some(home.path().to_owned());
            facts.files_checked = true;
        };
        assert!(found_with("C101", &text, facts).contains("known_hosts is missing"));
        std::fs::create_dir(home.path().join(".ssh")).unwrap();
        std::fs::write(home.path().join(".ssh/known_hosts"), "h ssh-ed25519 x").unwrap();
        clean_with("C101", &text, facts);
    }

    #[test]
    fn c014_ssh_machine_has_valid_port_and_credentials() {
        let ssh = |keys: &str| runner("ssh", &format!("[runners.ssh]\n{keys}"));
        assert!(found("C014", &runner("ssh", "")).contains("[runners.ssh] is missing"));
        assert!(found("C014", &ssh("host = \"h\"")).contains("no credentials"));
        assert!(found("C014", &ssh("password = \"p\"\nport = \"0\"")).contains("port `0` is not a valid port"));
        clean("C014", &ssh("identity_file = \"/k\"\nport = \"2222\""));
    }

    #[test]
    fn c102_shell_executor_runs_jobs_as_manager_user() {
        assert!(
            found_with("C102", &runner("shell", ""), |facts| facts.user = "root".to_owned())
                .contains("jobs run as root on this host")
        );
        clean_with("C102", &runner("shell", ""), |facts| facts.job_user = Some("builder".to_owned()));
        clean("C102", &runner("docker", ""));
    }

    #[test]
    fn c014_unknown_shell_and_values_below_the_minimum_are_reported() {
        assert!(found("C014", &runner("shell", "shell = \"cmd\"")).contains("error"));
        assert!(found("C014", &runner("shell", "request_concurrency = 0")).contains("is treated as 1"));
        assert!(found("C014", &runner("shell", "limit = -1")).contains("is treated as no limit"));
        clean("C014", &runner("shell", "shell = \"pwsh\"\nrequest_concurrency = 2"));
        let unpack = |limit| runner("shell", &format!("[runners.unpack]\nmax_bytes = {limit}"));
        assert!(found("C014", &unpack(0)).contains("max_bytes = 0 is treated as not set"));
        clean("C014", &unpack(1));
    }

    #[test]
    fn c103_output_limit_is_in_kib() {
        assert!(found("C103", &runner("shell", "output_limit = 4194304")).contains("4096 MiB"));
        clean("C103", &runner("shell", "output_limit = 16384"));
    }

    #[test]
    fn c106_environment_is_key_and_value() {
        let rendered = found("C106", &runner("shell", "environment = [\"A=b\", \"TOKENVALUE\"]"));
        assert!(rendered.contains("entry 2") && !rendered.contains("TOKENVALUE"), "{rendered}");
        clean("C106", &runner("shell", "environment = [\"A=b\", \"C=\"]"));
    }

    #[test]
    fn c107_proxy_for_manager_only() {
        let proxy = |facts: &mut super::super::super::HostFacts| {
            drop(facts.env.insert("HTTPS_PROXY".to_owned(), "http://p:3128".to_owned()))
        };
        assert!(found_with("C107", &runner("docker", ""), proxy).contains("HTTPS_PROXY is set for the manager only"));
        clean_with("C107", &runner("docker", "environment = [\"https_proxy=http://p:3128\"]"), proxy);
        clean("C107", &runner("docker", ""));
    }
}
