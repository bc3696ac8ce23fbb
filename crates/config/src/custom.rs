//! Reads `[runners.custom]`, with gitlab-runner's defaults.

use std::time::Duration;

use super::tree::Table;
use crate::settings::{CustomProgram, CustomSettings, MAX_WAIT};

/// Default timeout of each program except `run_exec`, which has none.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(3600);
/// Default time between TERM and KILL.
const GRACEFUL_KILL_TIMEOUT: Duration = Duration::from_secs(600);

/// Reads the settings of the custom executor. Returns `None` if the entry has no `[runners.custom]`.
pub(super) fn read(runner: &Table) -> Option<CustomSettings> {
    let table = runner.table("custom")?;
    let program = |name: &str, default_timeout: Option<Duration>| {
        let program = table.str(&format!("{name}_exec")).filter(|path| !path.is_empty())?;
        Some(CustomProgram {
            program: program.to_owned(),
            args: table.strings(&format!("{name}_args")).map(|(argument, _)| argument.to_owned()).collect(),
            timeout: default_timeout.map(|default| seconds(table, &format!("{name}_exec_timeout"), default)),
        })
    };
    Some(CustomSettings {
        config: program("config", Some(PROGRAM_TIMEOUT)),
        prepare: program("prepare", Some(PROGRAM_TIMEOUT)),
        run: program("run", None),
        cleanup: program("cleanup", Some(PROGRAM_TIMEOUT)),
        graceful_kill_timeout: seconds(table, "graceful_kill_timeout", GRACEFUL_KILL_TIMEOUT),
    })
}

/// Reads a number of seconds. A missing value and, as in gitlab-runner, one that is not positive mean the default.
fn seconds(table: &Table, name: &str, default: Duration) -> Duration {
    let value = table.int(name).and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
    value.map_or(default, |value| Duration::from_secs(value).min(MAX_WAIT))
}
