//! Checks of the file itself and of the process (checks C014, C027, C031, C033, C037, C038, C041 and C042).

use muster_job::GoDuration::{Negative, NonNegative};
use muster_job::is_loopback;

use super::super::codes::Severity;
use super::super::problem::{Problem, shown_name};
use super::super::runtime::shared_system_id;
use super::Check;
use crate::{LOG_FORMATS, ListenAddress};

pub(super) fn check(check: &mut Check<'_>) {
    if let Some(id) = check.facts.other_machine_system_id.as_ref().filter(|_| !check.runners.is_empty()) {
        check.add(shared_system_id(id));
    }
    check_location_and_mode(check);
    check_addresses(check);
    check_log_level(check);
    check_log_format(check);
    check_timeouts(check);
}

fn check_location_and_mode(check: &mut Check<'_>) {
    if let Some(system) = &check.facts.system_config {
        let message = format!(
            "running as {} with the user's own configuration; {} is not used",
            check.facts.user,
            system.display()
        );
        check.add(Problem::new("C031", message).help("to use that file, run as root or pass it with --config"));
    }
    let mode = check.facts.mode.filter(|mode| mode & 0o077 != 0 && !check.runners.is_empty());
    if let Some(mode) = mode {
        let message = format!("the file has mode {mode:04o}, so other users can access the tokens in it");
        check.add(Problem::new("C033", message).help("run chmod 0600 on it"));
    }
}

/// Checks C014, C037 and C038.
fn check_addresses(check: &mut Check<'_>) {
    let invalid = check.tree.str("listen_address").filter(|address| !address.is_empty());
    let invalid = invalid.and_then(|address| address.parse::<ListenAddress>().err());
    if let Some(error) = invalid {
        let at = check.tree.span_of("listen_address");
        check.add(
            Problem::new("C014", error.to_string()).at(&at).help("set it to the host:port on which to serve metrics"),
        );
    }
    let environment = check.facts.env.get("LISTEN_ADDRESS").map(String::as_str).filter(|address| !address.is_empty());
    let from_file = || check.tree.str("listen_address").filter(|address| address.parse::<ListenAddress>().is_ok());
    if let Some(address) = environment.or_else(from_file).filter(|address| !is_loopback(address)) {
        let origin = if environment.is_some() { " (environment variable LISTEN_ADDRESS)" } else { "" };
        let message = format!("metrics are served without authentication on {}{origin}", shown_name(address));
        check.report_global(
            "listen_address",
            "C037",
            message,
            "set the host to 127.0.0.1, or protect the port with a firewall",
        );
    }
    let Some(session) = check.tree.table("session_server") else { return };
    let (listen, advertise) = (session.str("listen_address"), session.str("advertise_address"));
    if advertise.is_some_and(|address| address.contains("://")) {
        let message = "advertise_address must be host:port, without http:// or https://";
        let problem = Problem::new("C038", message).severity(Severity::Fatal).at(&session.span_of("advertise_address"));
        return check.add(problem.help("remove the scheme"));
    }
    let key = if advertise.is_some() { "session_server.advertise_address" } else { "session_server.listen_address" };
    let Some(address) = advertise.or(listen).filter(|_| listen.is_some()) else { return };
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    if port.parse::<u16>().is_err() {
        check.report_global(
            key,
            "C038",
            "the session server's address has no port",
            "set it to a host:port that GitLab can reach",
        );
    } else if matches!(host, "" | "0.0.0.0" | "[::]") || is_loopback(host) {
        let message = "GitLab cannot reach the session server at this address: terminals will not open";
        check.report_global(
            key,
            "C038",
            message,
            "set advertise_address to this machine's name and the published port",
        );
    }
}

fn check_log_level(check: &mut Check<'_>) {
    let Some(level) = check.tree.str("log_level") else { return };
    match level {
        "debug" | "trace" => {
            check.report_global(
                "log_level",
                "C037",
                format!("log_level = \"{level}\": a debug log can contain secrets of jobs"),
                "use info in production",
            );
        }
        "info" | "warn" | "warning" | "error" | "fatal" | "panic" => {}
        other => {
            let message = format!("`{}` is not a valid log_level", shown_name(other));
            let problem = Problem::new("C014", message).severity(Severity::Error).at(&check.tree.span_of("log_level"));
            check.add(problem.help("use panic, fatal, error, warn, info, debug or trace"));
        }
    }
}

/// Check C014. An unknown format is an error, because gitlab-runner does not start with it.
fn check_log_format(check: &mut Check<'_>) {
    let Some(format) =
        check.tree.str("log_format").filter(|format| !format.is_empty() && !LOG_FORMATS.contains(format))
    else {
        return;
    };
    let message = format!("`{}` is not a valid log_format", shown_name(format));
    let problem = Problem::new("C014", message).severity(Severity::Error).at(&check.tree.span_of("log_format"));
    check.add(problem.help("use runner, text or json"));
}

/// Checks C014, C041 and C042.
fn check_timeouts(check: &mut Check<'_>) {
    /// Below this `shutdown_timeout`, gitlab-runner warns.
    const MIN_DRAIN_SECONDS: i64 = 300;
    let seconds = check.tree.int("shutdown_timeout").filter(|seconds| *seconds > 0).unwrap_or(30);
    if let Some(negative) = check.tree.int("shutdown_timeout").filter(|seconds| *seconds < 0) {
        let message = format!("shutdown_timeout = {negative} is treated as 30");
        let problem = Problem::new("C014", message).severity(Severity::Warning);
        check.add(problem.at(&check.tree.span_of("shutdown_timeout")).help("set it to a number of seconds above 0"));
    }
    let removes_machines = check.tree.bool("machine.shutdown_drain.enabled") == Some(true);
    let deletes_instances =
        check.runners.iter().any(|runner| runner.table.bool("autoscaler.delete_instances_on_shutdown") == Some(true));
    if (removes_machines || deletes_instances) && seconds < MIN_DRAIN_SECONDS {
        let message = format!("shutdown_timeout = {seconds} s may be too short to remove all machines");
        check.report_global("shutdown_timeout", "C041", message, &format!("set it to {MIN_DRAIN_SECONDS} or more"));
    }
    for runner in check.runners {
        for key in ["prepare_timeout", "get_sources_timeout"] {
            match runner.table.duration(key) {
                Some(Negative) => {}
                Some(NonNegative(limit)) if limit.is_zero() => {}
                _ => continue,
            }
            let message = format!("{key} is not above 0: it is ignored, and the job's timeout applies");
            check.report(runner, key, "C042", message, "write a duration such as \"10m\", or remove the key");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::HostFacts;
    use super::super::testing::{clean, clean_with, found, found_with};

    #[test]
    fn c014_invalid_values_of_global_keys_are_reported() {
        assert!(found("C014", "listen_address = \":notaport\"").contains("fatal"));
        assert!(found("C014", "log_format = \"xml\"").contains("error[C014]: `xml` is not a valid log_format"));
        assert!(found("C014", "shutdown_timeout = -5").contains("is treated as 30"));
        let fine = "listen_address = \"127.0.0.1:9252\"\nlog_format = \"json\"\nshutdown_timeout = 0";
        clean("C014", fine);
        clean("C014", "listen_address = \"\"");
    }

    #[test]
    fn c027_system_id_of_other_machine_is_reported() {
        let other_machine = |facts: &mut super::super::super::facts::HostFacts| {
            facts.other_machine_system_id = Some("s_0123456789ab".to_owned());
        };
        let output = found_with("C027", "[[runners]]\nurl = \"https://g.example\"\ntoken = \"t\"\n", other_machine);
        assert!(output.contains("s_0123456789ab was created on another machine"), "{output}");
        clean_with("C027", "concurrent = 2\n", other_machine);
    }

    #[test]
    fn c031_user_without_root_uses_own_file() {
        let output = found_with("C031", "", |facts| {
            facts.user = "ann".to_owned();
            facts.system_config = Some("/etc/gitlab-runner/config.toml".into());
        });
        assert!(
            output.contains("running as ann") && output.contains("/etc/gitlab-runner/config.toml is not used"),
            "{output}"
        );
        clean_with("C031", "", |facts| facts.system_config = None);
    }

    #[test]
    fn c033_tokens_readable_by_others_are_reported() {
        let text = "[[runners]]\ntoken = \"t\"\n";
        assert!(found_with("C033", text, |facts| facts.mode = Some(0o644)).contains("mode 0644"));
        clean_with("C033", text, |facts| facts.mode = Some(0o600));
        clean_with("C033", "concurrent = 1", |facts| facts.mode = Some(0o644));
    }

    #[test]
    fn c037_public_metrics_and_debug_logs_are_reported() {
        for address in [":9252", "0.0.0.0:9252", "10.0.0.1:9252", "9252"] {
            assert!(found("C037", &format!("listen_address = \"{address}\"")).contains("without authentication"));
        }
        for address in ["127.0.0.1:9252", "localhost:9252", "[::1]:9252", "localhost"] {
            clean("C037", &format!("listen_address = \"{address}\""));
        }
        let set = |address: &str| {
            let env = [("LISTEN_ADDRESS".to_owned(), address.to_owned())];
            move |facts: &mut HostFacts| facts.env = env.into()
        };
        assert!(found_with("C037", "", set(":9252")).contains("on :9252 (environment variable LISTEN_ADDRESS)"));
        clean_with("C037", "listen_address = \":9252\"", set("localhost:9252"));
        found("C037", "log_level = \"debug\"");
        clean("C037", "log_level = \"info\"");
    }

    #[test]
    fn unknown_log_level_is_reported() {
        assert!(found("C014", "log_level = \"verbose\"").contains("use panic, fatal"));
    }

    #[test]
    fn c038_session_server_needs_reachable_address() {
        let text = |listen: &str, advertise: &str| {
            format!("[session_server]\nlisten_address = \"{listen}\"\nadvertise_address = \"{advertise}\"\n")
        };
        assert!(found("C038", &text("0.0.0.0:8093", "https://runner.example:8093")).contains("fatal"));
        assert!(found("C038", &text("0.0.0.0:8093", "runner.example")).contains("no port"));
        found("C038", &text("0.0.0.0:8093", ""));
        found("C038", &text("0.0.0.0:8093", "127.0.0.1:8093"));
        clean("C038", &text("0.0.0.0:8093", "runner.example:8093"));
        clean("C038", "[session_server]\nsession_timeout = 3\n");
    }

    #[test]
    fn c041_removing_machines_takes_longer_than_the_default() {
        let text = "[machine.shutdown_drain]\nenabled = true\n";
        assert!(found("C041", text).contains("shutdown_timeout = 30 s"));
        found("C041", "[[runners]]\n[runners.autoscaler]\ndelete_instances_on_shutdown = true\n");
        clean("C041", &format!("shutdown_timeout = 300\n{text}"));
        clean("C041", "shutdown_timeout = 10\n");
    }

    #[test]
    fn c042_stage_timeout_must_be_positive() {
        found("C042", "[[runners]]\nprepare_timeout = \"0s\"\n");
        found("C042", "[[runners]]\nget_sources_timeout = \"-5m\"\n");
        clean("C042", "[[runners]]\nprepare_timeout = \"5m\"\n");
    }
}
