//! Checks of text values: labels, periods, time zones, expressions (checks C006, C011, C015 to C017, C019, C087).

use super::super::problem::{Problem, shown_name};
use super::super::runners::labels;
use super::super::schema::{Entry, Kind};
use super::super::tree::{Node, Table, Value, visit};
use super::{Check, cron};

/// Maximum number of labels of a runner, including the global ones.
const MAX_LABELS: usize = 32;

pub(super) fn check(check: &mut Check<'_>) {
    check_expressions(check);
    check_labels(check);
    for runner in check.runners {
        let table = &runner.table;
        let index = runner.index;
        check_periods(check, index, table.tables("machine.autoscaling"), "runners.machine.autoscaling", "Periods", 7);
        check_periods(
            check,
            index,
            table.tables("monitoring.job_queuing_durations"),
            "runners.monitoring.job_queuing_durations",
            "periods",
            7,
        );
        check_periods(check, index, table.tables("autoscaler.policy"), "runners.autoscaler.policy", "periods", 5);
        check_periods(
            check,
            index,
            table.tables("kubernetes.autoscaler.policy"),
            "runners.kubernetes.autoscaler.policy",
            "periods",
            5,
        );
        check_off_peak(check, table);
    }
}

fn check_expressions(check: &mut Check<'_>) {
    let mut invalid = Vec::new();
    visit(check.tree, "", &mut |path: &str, entry: Entry, node: &Node| {
        if let (Entry::Key(key), Value::Str(text)) = (entry, &node.value)
            && key.kind == Kind::Regex
            && let Err(error) = regex::Regex::new(text)
        {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            invalid.push(
                Problem::new("C019", format!("`{path}` is not a valid regular expression: {reason}")).at(&node.span),
            );
        }
    });
    invalid.into_iter().for_each(|problem| check.add(problem));
}

fn check_labels(check: &mut Check<'_>) {
    check_label_table(check, check.tree);
    let global: Vec<_> = labels(check.tree).collect();
    for runner in check.runners {
        check_label_table(check, &runner.table);
        let merged: std::collections::BTreeMap<_, _> = global.iter().cloned().chain(labels(&runner.table)).collect();
        if merged.len() > MAX_LABELS {
            let message = format!(
                "the runner has {} labels including the global ones; at most {MAX_LABELS} are allowed",
                merged.len()
            );
            check.report(runner, "labels", "C006", message, "remove some of them");
        }
    }
}

fn check_label_table(check: &mut Check<'_>, table: &Table) {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    for (name, node) in table.table("labels").map(Table::entries).into_iter().flatten() {
        let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !(starts_well && (3..=65).contains(&name.len()) && name.bytes().all(is_allowed)) {
            let message = format!("`{}` is not a valid label name", shown_name(name));
            let help = "use 3 to 65 letters, digits, `.`, `_` and `-`, and do not begin with `.` or `-`";
            check.add(Problem::new("C006", message).at(&node.key).help(help));
        }
        if let Value::Str(value) = &node.value
            && !((1..=256).contains(&value.len()) && value.bytes().all(is_allowed))
        {
            let message = format!("the value of label `{}` is not valid", shown_name(name));
            check.add(
                Problem::new("C006", message).at(&node.span).help("use 1 to 256 letters, digits, `.`, `_` and `-`"),
            );
        }
    }
}

fn check_periods(check: &mut Check<'_>, runner: usize, tables: &[Table], path: &str, key: &str, fields: usize) {
    let name = check.runners.get(runner).map(|runner| runner.name.clone()).unwrap_or_default();
    for table in tables {
        for (pattern, node) in table.strings(key) {
            if let Some(reason) = cron::pattern_error(pattern, fields) {
                check.add(Problem::new("C015", format!("`{path}.{key}`: {reason}")).of(runner, &name).at(&node.span));
            } else if cron::never_matches(pattern, fields) {
                let message = format!("`{path}.{key}`: `{}` never matches", shown_name(pattern));
                let help = "day, month and weekday must all match, and `/n` keeps only values that are divisible by n";
                check.add(Problem::new("C087", message).of(runner, &name).at(&node.span).help(help));
            }
        }
        let zone = if key == "Periods" { "Timezone" } else { "timezone" };
        if let Some(text) = table.str(zone).filter(|text| !check.facts.zone_exists(text)) {
            let message = format!("time zone `{}` does not exist on this machine", shown_name(text));
            let help = "fix the name (for example `Europe/Berlin`); if it is correct, install tzdata or set ZONEINFO to its directory";
            check.add(Problem::new("C016", message).of(runner, &name).at(&table.span_of(zone)).help(help));
        }
    }
    let lists: Vec<Vec<&str>> = tables.iter().map(|table| patterns(table, key, fields)).collect();
    let zones: Vec<_> = tables.iter().map(|table| table.str("timezone").or_else(|| table.str("Timezone"))).collect();
    for (index, table) in tables.iter().enumerate() {
        let covers = |later: &usize| {
            let (Some(own), Some(other)) = (lists.get(index), lists.get(*later)) else { return false };
            let same_zone =
                zones.get(index) == zones.get(*later) || other.iter().any(|pattern| cron::always_matches(pattern));
            same_zone && cron::is_covered(own, other)
        };
        if let Some(later) = (index + 1..tables.len()).find(covers) {
            let message = format!(
                "[[{path}]] entry {} is always overridden by entry {}: the last matching entry applies",
                index + 1,
                later + 1
            );
            let help = "put the general entry first, and the specific ones after it";
            check.add(Problem::new("C017", message).of(runner, &name).at(&table.header).help(help));
        }
    }
}

/// Returns the patterns of a table. The tables whose patterns have 5 fields are policies of autoscalers.
/// A policy without `periods` always matches.
fn patterns<'a>(table: &'a Table, key: &str, fields: usize) -> Vec<&'a str> {
    match (table.node(key), fields) {
        (None, 5) => vec!["* * * * *"],
        _ => table.strings(key).map(|(pattern, _)| pattern).collect(),
    }
}

/// Check C011. `OffPeak*` keys have had no effect since 14.0.
fn check_off_peak(check: &mut Check<'_>, table: &Table) {
    let machine = table.table("machine").map(Table::entries).into_iter().flatten();
    let off_peak: Vec<_> =
        machine.filter(|(name, _)| name.starts_with("OffPeak")).map(|(name, node)| (name.to_owned(), node)).collect();
    if let Some((name, node)) = off_peak.first() {
        let message = format!("`{name}` was removed in GitLab Runner 14.0; the value is ignored");
        check.add(Problem::new("C011", message).at(&node.key).help("use [[runners.machine.autoscaling]] with Periods"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, clean_with, found, found_with};

    #[test]
    fn c006_invalid_labels_are_reported() {
        for text in [
            "labels = { ab = \"x\" }",
            "labels = { -abc = \"x\" }",
            "labels = { abc = \"\" }",
            "labels = { abc = \"a b\" }",
        ] {
            assert!(found("C006", text).contains("fatal"), "{text}");
        }
        clean("C006", "labels = { abc = \"x\", _b.c-d = \"1.0\" }".replace("_b.c-d", "\"_b.c-d\"").as_str());
        let many = |count: usize| (0..count).map(|index| format!("label{index} = \"x\"\n")).collect::<String>();
        found("C006", &format!("[labels]\n{}[[runners]]\n[runners.labels]\nother = \"x\"\n", many(32)));
        clean("C006", &format!("[labels]\n{}[[runners]]\n[runners.labels]\nlabel3 = \"y\"\n", many(32)));
    }

    #[test]
    fn c010_unknown_key_is_reported_with_suggestion() {
        let output = found("C010", "[[runners]]\nbuids_dir = \"/x\"\n[runners.custom_buid_dir]\nenabled = true\n");
        assert!(
            output
                .contains("2:1 warning[C010]: unknown key `runners.buids_dir` is ignored; did you mean `builds_dir`?"),
            "{output}"
        );
        assert!(output.contains("did you mean `custom_build_dir`?"), "{output}");
        assert!(found("C010", "[[runner]]\nname = \"a\"\n").contains("did you mean `runners`?"));
        assert!(found("C010", "limit = 3\nLimit = 4\n").contains("unknown key `limit`"));
        assert!(found("C010", "concurrent = 3\nConcurrent = 4\n").contains("same key as `concurrent`"));
        clean("C010", "CONCURRENT = 3\n[[Runners]]\nBUILDS_DIR = \"/x\"\n");
    }

    #[test]
    fn c011_removed_keys_are_reported_with_replacements() {
        assert!(
            found("C011", "metrics_server = \":9\"")
                .contains("removed in GitLab Runner 12.0; the value is ignored; use `listen_address`")
        );
        found("C011", "[[runners]]\npre_clone_script = \"x\"");
        found("C011", "[[runners]]\n[runners.kubernetes]\nterminationGracePeriodSeconds = 3");
        found("C011", "[[runners]]\n[runners.referees.metrics]\nmetric_queries = []");
        found("C011", "[[runners]]\n[runners.machine]\nOffPeakPeriods = [\"* * 8 * * * *\"]");
        clean(
            "C011",
            "listen_address = \":9\"\n[[runners]]\npre_get_sources_script = \"x\"\n[runners.machine]\nIdleCount = 1",
        );
    }

    #[test]
    fn c013_integer_duration_is_in_nanoseconds() {
        let output = found("C013", "[[runners]]\nunhealthy_interval = 60\n");
        assert!(
            output.contains("`runners.unhealthy_interval = 60` is 60 nanoseconds; write a string such as \"60s\""),
            "{output}"
        );
        clean("C013", "[[runners]]\nunhealthy_interval = \"60s\"\n");
        clean("C013", "connection_max_age = 0");
    }

    #[test]
    fn c014_wrong_kind_is_reported_with_line() {
        let output = found("C014", "\n\nconcurrent = \"4\"\n");
        assert!(
            output.contains("3:14 fatal[C014]: `concurrent` needs an integer, found a string; remove the quotes"),
            "{output}"
        );
        clean("C014", "concurrent = 4");
    }

    #[test]
    fn c015_table_decides_whether_cron_patterns_have_5_or_7_fields() {
        let machine =
            |pattern: &str| format!("[[runners]]\n[[runners.machine.autoscaling]]\nPeriods = [\"{pattern}\"]\n");
        let policy = |pattern: &str| format!("[[runners]]\n[[runners.autoscaler.policy]]\nperiods = [\"{pattern}\"]\n");
        let monitoring = |pattern: &str| {
            format!("[[runners]]\n[[runners.monitoring.job_queuing_durations]]\nperiods = [\"{pattern}\"]\n")
        };
        assert!(found("C015", &machine("* 8 * * *")).contains("5 fields found, 7 expected (with seconds"));
        assert!(found("C015", &policy("* * 8 * * * *")).contains("7 fields found, 5 expected (without"));
        found("C015", &monitoring("* 8 * * *"));
        clean("C015", &machine("* * 8 * * * *"));
        clean("C015", &policy("* 8 * * *"));
        clean("C015", &monitoring("* * 8 * * * *"));
    }

    #[test]
    fn c016_time_zone_must_exist_on_this_machine() {
        let zones = tempfile::tempdir().unwrap();
        std::fs::create_dir(zones.path().join("Europe")).unwrap();
        std::fs::write(zones.path().join("Europe/Berlin"), "").unwrap();
        let facts = |facts: &mut super::super::super::HostFacts| facts.zones = vec![zones.path().to_owned()];
        let text = |zone: &str| format!("[[runners]]\n[[runners.autoscaler.policy]]\ntimezone = \"{zone}\"\n");
        assert!(found_with("C016", &text("Europe/Berlni"), facts).contains("`Europe/Berlni`"));
        found_with("C016", &text("../etc/passwd"), facts);
        for zone in ["Europe/Berlin", "UTC", "Local", ""] {
            clean_with("C016", &text(zone), facts);
        }
    }

    #[test]
    fn c017_last_matching_period_wins() {
        let entry = |period: &str| format!("[[runners.autoscaler.policy]]\nperiods = [\"{period}\"]\n");
        let (day, always) = (entry("* 8-18 * * *"), entry("* * * * *"));
        assert!(
            found("C017", &format!("[[runners]]\n{day}{always}")).contains("entry 1 is always overridden by entry 2")
        );
        found("C017", &format!("[[runners]]\n{day}{day}"));
        clean("C017", &format!("[[runners]]\n{always}{day}"));
    }

    #[test]
    fn c087_period_that_never_matches_is_reported() {
        let policy = |period: &str| format!("[[runners]]\n[[runners.autoscaler.policy]]\nperiods = [\"{period}\"]\n");
        let output = found("C087", &policy("* * 30 2 *"));
        assert!(output.starts_with("3:12 warning") && output.contains("`* * 30 2 *` never matches"), "{output}");
        found("C087", "[[runners]]\n[[runners.machine.autoscaling]]\nPeriods = [\"* * * 31 4 * *\"]\n");
        clean("C087", &policy("* * 29 2 *"));
    }

    #[test]
    fn c018_key_after_table_belongs_to_that_table() {
        let output = found("C018", "[[runners]]\nname = \"a\"\n[runners.docker]\nimage = \"b\"\nlimit = 3\n");
        assert!(
            output.contains("5:1 warning[C018]: `limit` belongs to [[runners]] but was read in [runners.docker]"),
            "{output}"
        );
        assert!(found("C018", "[session_server]\nconcurrent = 3").contains("belongs to the global section"));
        clean("C018", "concurrent = 3\n[[runners]]\nlimit = 3\n[runners.docker]\nimage = \"b\"\n");
    }

    #[test]
    fn c019_invalid_regular_expression_is_reported() {
        found("C019", "[[runners]]\n[[runners.monitoring.job_queuing_durations]]\njobs_running_for_project = \"(\"\n");
        clean(
            "C019",
            "[[runners]]\n[[runners.monitoring.job_queuing_durations]]\njobs_running_for_project = \"^Inf\"\n",
        );
    }
}
