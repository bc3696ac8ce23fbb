//! What a reload cannot do: keys that changed and need a restart (C035).

use super::load::Config;
use super::problem::Problem;
use super::runners::Runner;
use super::schema::{Entry, Reload, schema};
use super::tree::Table;

/// One problem for each key that differs and only counts after a restart. Runners are compared by their identity; new and
/// removed ones need no restart.
#[must_use]
pub fn restart_needed(old: &Config, new: &Config) -> Vec<Problem> {
    let mut changed = Vec::new();
    differences(&old.tree, &new.tree, "", &mut |key| changed.push(problem(&key)));
    for runner in &new.runners {
        if let Some(before) = old.runners.iter().find(|before| is_same(before, runner)) {
            differences(&before.table, &runner.table, "runners", &mut |key| {
                changed.push(problem(&key).of(runner.index, &runner.name))
            });
        }
    }
    changed
}

fn problem(key: &str) -> Problem {
    Problem::new("C035", format!("`{key}` changed; a restart is needed"))
        .help("the old value is in use until then; no job is lost by a restart")
}

fn is_same(one: &Runner, other: &Runner) -> bool {
    one.url == other.url && if one.id > 0 { one.id == other.id } else { one.token == other.token }
}

fn differences(old: &Table, new: &Table, path: &str, tell: &mut dyn FnMut(String)) {
    for entry in schema().entries(path) {
        let name = entry.name();
        let full = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let differs = old.node(name) != new.node(name);
        match entry {
            _ if !differs || full == "runners" => {}
            Entry::Key(key) if key.reload == Reload::Restart => tell(full),
            Entry::Table(table) if table.array && table.reload == Reload::Restart => tell(full),
            Entry::Table(table) if !table.array => {
                let empty = Table::default();
                differences(old.table(name).unwrap_or(&empty), new.table(name).unwrap_or(&empty), &full, tell);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Facts, parse};
    use super::*;

    fn changed(old: &str, new: &str) -> Vec<String> {
        let config = |text: &str| parse(text, &Facts::default()).config.unwrap();
        restart_needed(&config(old), &config(new)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn c035_keys_that_need_a_restart_are_told_when_they_change() {
        let runner = |more: &str| {
            format!("[[runners]]\nname = \"a\"\nurl = \"https://g.example\"\nid = 7\ntoken = \"t\"\n{more}")
        };
        let old = format!(
            "listen_address = \":1\"\nconcurrent = 2\n{}",
            runner("limit = 1\n[runners.autoscaler]\nmax_instances = 2\n")
        );
        let new = format!(
            "listen_address = \":2\"\nconcurrent = 3\n{}",
            runner(
                "limit = 2\n[runners.autoscaler]\nmax_instances = 3\n[[runners.autoscaler.policy]]\nidle_count = 1\n"
            )
        );
        let told = changed(&old, &new);
        assert_eq!(told.len(), 2, "{told:#?}");
        assert!(
            told[0].contains("`listen_address` changed")
                && told[1].contains("runner a: `runners.autoscaler.max_instances` changed"),
            "{told:#?}"
        );
        assert!(
            changed("", "[session_server]\nlisten_address = \"x:1\"\n")[0].contains("`session_server.listen_address`")
        );
        assert!(changed(&old, &old).is_empty());
        assert!(changed(&old, &format!("# moved\n\n{old}")).is_empty(), "places do not count");
        assert!(
            changed("", &runner("[runners.autoscaler]\nmax_instances = 3\n")).is_empty(),
            "a new runner starts with its values"
        );
    }
}
