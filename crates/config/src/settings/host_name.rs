//! Name of this machine.

/// Returns the name of this machine, for messages. `this machine` if the name is unknown.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "this machine".to_owned() } else { name.to_owned() }
}
