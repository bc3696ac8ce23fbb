//! Checks for what Muster does not support: executors (check C008, for each runner), and keys (check C009, once for all
//! runners).

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::codes::Severity;
use super::super::problem::{Problem, shown_name};
use super::super::schema::{Entry, Key, KeySupport};
use super::super::tree::{Node, Value, visit};
use super::super::unknown::header;
use super::Check;

/// Executors of gitlab-runner, and whether Muster supports them.
pub const EXECUTORS: [(&str, bool); 11] = [
    ("shell", true),
    ("docker", true),
    ("docker-windows", false),
    ("docker+machine", true),
    ("docker-autoscaler", true),
    ("instance", true),
    ("kubernetes", false),
    ("ssh", true),
    ("parallels", false),
    ("virtualbox", false),
    ("custom", true),
];

pub(super) fn check(check: &mut Check<'_>) {
    check_executors(check);
    check_unsupported_keys(check);
}

fn check_executors(check: &mut Check<'_>) {
    for runner in check.runners {
        let span = runner.table.node("executor").map_or(&runner.table.header, |node| &node.span);
        let known = EXECUTORS.iter().find(|(name, _)| *name == runner.executor);
        let name = shown_name(&runner.executor);
        let message = match known {
            Some((_, true)) => continue,
            Some(("docker-windows", false)) => {
                "executor `docker-windows` is not supported, because Muster runs jobs in Linux containers only; \
                 this runner requests no jobs"
                    .to_owned()
            }
            Some(("parallels" | "virtualbox", false)) => format!(
                "executor `{name}` is not supported; use a fleeting plugin that creates the virtual machines, with the executor `instance` \
                 or `docker-autoscaler`; this runner requests no jobs"
            ),
            Some((_, false)) => format!("executor `{name}` is not supported yet; this runner requests no jobs"),
            None if name.is_empty() => "executor is mandatory; this runner requests no jobs".to_owned(),
            None => format!("executor `{name}` does not exist; this runner requests no jobs"),
        };
        let names: Vec<_> = EXECUTORS.iter().filter(|(_, supported)| *supported).map(|(name, _)| *name).collect();
        let help = format!("Muster supports: {}", names.join(", "));
        let problem = Problem::new("C008", message).of(runner.index, &runner.name).at(span).help(help);
        check.add(if known.is_some() { problem.unsupported() } else { problem });
    }
}

/// The unsupported keys and tables to report, by their path in the schema, such as `runners.docker.isolation`.
///
/// The parts of a value: where the file first has the key or table, the reason, and the names of the keys that are set
/// in the table.
type UnsupportedTables = BTreeMap<String, (Range<usize>, &'static str, Vec<String>)>;

fn check_unsupported_keys(check: &mut Check<'_>) {
    let mut unsupported: UnsupportedTables = BTreeMap::new();
    visit(check.tree, "", &mut |path: &str, entry: Entry, node: &Node| {
        let (span, status) = match entry {
            Entry::Key(key) => (node.key.clone(), key.status),
            Entry::Table(table) => (node.key.clone(), table.status),
        };
        let KeySupport::Unsupported(reason) = status else { return };
        if matches!(entry, Entry::Key(key) if is_default(key, node)) {
            return;
        }
        // A key has no problem of its own if a table around it is unsupported for the same reason. The problem of the
        // outermost such table then names the key.
        let enclosing = unsupported
            .iter()
            .find(|(table, (_, table_reason, _))| *table_reason == reason && path.starts_with(&format!("{table}.")));
        match enclosing.map(|(table, _)| table.clone()) {
            Some(table) => {
                let name = path.get(table.len() + 1..).unwrap_or_default().to_owned();
                if let (Entry::Key(_), Some((.., names))) = (entry, unsupported.get_mut(&table))
                    && !names.contains(&name)
                {
                    names.push(name);
                }
            }
            None => {
                unsupported.entry(path.to_owned()).or_insert((span, reason, Vec::new()));
            }
        }
    });
    for (path, (span, reason, names)) in unsupported {
        let is_table = super::super::schema::schema().table(&path).is_some();
        if is_table && names.is_empty() {
            continue;
        }
        let names_in_parentheses = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        let name_in_file = if header(&path).contains('[') && is_table { header(&path) } else { format!("`{path}`") };
        let problem = Problem::new("C009", format!("{name_in_file} is not supported{names_in_parentheses}: {reason}"));
        check.add(problem.severity(Severity::Info).at(&span).unsupported());
    }
}

/// Returns whether a value is the default of its key. gitlab-runner writes many defaults into the file.
fn is_default(key: &Key, node: &Node) -> bool {
    match &node.value {
        Value::Int(number) => number.to_string() == key.default,
        Value::Bool(truth) => truth.to_string() == key.default,
        Value::Str(text) => text.is_empty() || text == key.default,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, count, found};

    #[test]
    fn unknown_executor_is_reported_with_supported_ones() {
        let text = |executor: &str| {
            format!("[[runners]]\nname=\"a\"\nurl=\"https://g.example\"\ntoken=\"t\"\nexecutor=\"{executor}\"\n")
        };
        assert!(found("C008", &text("kubernetes")).contains("not supported yet"));
        assert!(found("C008", &text("sehll")).contains("does not exist"));
        assert!(found("C008", &text("docker-windows")).contains("Linux containers only"));
        for executor in ["parallels", "virtualbox"] {
            let rendered = found("C008", &text(executor));
            assert!(rendered.contains("fleeting plugin") && rendered.contains("`docker-autoscaler`"), "{rendered}");
        }
        for executor in ["shell", "docker", "docker-autoscaler", "docker+machine", "ssh", "custom"] {
            clean("C008", &text(executor));
        }
        let facts = crate::HostFacts::default();
        for (executor, unsupported) in [("kubernetes", true), ("docker-windows", true), ("instanc", false), ("", false)]
        {
            let problems = crate::parse(&text(executor), &facts).problems;
            let problem = problems.iter().find(|problem| problem.code == "C008").unwrap();
            assert_eq!(
                problem.unsupported, unsupported,
                "{executor}: only missing features must be marked as unsupported"
            );
        }
        let isolated = format!("{}[runners.autoscaler.vm_isolation]\nenabled = true\n", text("instance"));
        clean("C008", &isolated);
    }

    #[test]
    fn unsupported_key_is_reported_once_with_reason() {
        let runner = "[[runners]]\nstep_runner_image = \"a\"\n[runners.virtualbox]\nbase_name = \"a\"\nbase_folder = \"b\"\n[runners.docker]\nisolation = \"process\"\n";
        let text = format!("concurrent = 2\n{runner}{runner}");
        assert_eq!(count("C009", &text), 3);
        let output = found("C009", &format!("{runner}{runner}"));
        assert!(output.contains("[runners.virtualbox] is not supported (base_name, base_folder): "), "{output}");
        assert!(output.contains("`runners.docker.isolation` is not supported: it concerns Windows"), "{output}");
        assert!(output.contains("`runners.step_runner_image` is not supported: "), "{output}");
        clean("C009", "concurrent = 2\n[[runners]]\nlimit = 3\n");
    }

    #[test]
    fn connector_keys_without_effect_on_virtual_machines_are_reported() {
        let text = |table: &str, key: &str| {
            format!(
                "[[runners]]\nexecutor = \"instance\"\n[runners.autoscaler.{table}connector_config]\n{key} = true\n"
            )
        };
        for key in ["use_static_credentials", "use_external_addr", "allow_unencrypted"] {
            let output = found("C009", &text("vm_isolation.", key));
            assert!(output.contains(&format!("vm_isolation.connector_config.{key}` is not supported")), "{output}");
            clean("C009", &text("", key));
        }
    }

    #[test]
    fn defaults_written_by_gitlab_runner_are_not_reported() {
        let cache = "[runners.cache]\nMaxUploadedArchiveSize = 0\n[runners.cache.s3]\n[runners.cache.gcs]\n[runners.cache.azure]\n";
        let text = format!("[session_server]\nsession_timeout = 1800\n[[runners]]\nname = \"a\"\n{cache}");
        clean("C009", &text);
        assert!(
            found("C009", &text.replace("1800", "60")).contains("[session_server] is not supported (session_timeout)")
        );
        let roles = text.replace("[runners.cache.s3]\n", "[runners.cache.s3]\nAssumeRoleMaxConcurrency = 5\n");
        clean("C009", &roles);
        assert!(found("C009", &roles.replace("= 5", "= 6")).contains("AssumeRoleMaxConcurrency"));
    }
}
