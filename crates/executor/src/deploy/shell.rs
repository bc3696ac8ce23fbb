//! Scripts that run in a POSIX shell on a machine, wrapped in command lines that any login shell can start.
//!
//! ```text
//! ~/.muster/bin/<sha256>    the executable: placed atomically under its hash, and cached
//! ~/.muster/agent/          the agent's socket, spool, lock and log
//! ```
//!
//! Each command answers with a line that begins with [`ANSWER_PREFIX`]. Earlier lines, such as those of a profile, are
//! ignored.

use super::executable::FileIdentity;

/// Prefix of each answer.
pub const ANSWER_PREFIX: &str = "muster: ";
/// Prints the SHA-256 of its input, followed by a space.
///
/// OpenSSL uses the processor's SHA instructions, unlike many builds of coreutils. If OpenSSL is missing, `sha256sum`
/// gets the whole input.
const SHA256_COMMAND: &str = r"{ openssl dgst -sha256 -r || sha256sum; } 2>/dev/null";
/// Answer if the executable is missing on the machine. The output of `uname -sm` follows.
pub(super) const ABSENT: &str = "absent";
pub(super) const PLACED: &str = "placed";
/// Answer of a relay that is connected to the agent. The home directory follows; all later lines are the agent's.
pub const CONNECTED: &str = "connected ";
/// Answer of a relay that is connected to an agent that runs another executable and still has jobs.
pub const OUTDATED: &str = "connected to an outdated agent ";
/// Answer of a relay that cannot connect. The reason follows.
pub const FAILED: &str = "failed ";

const STAT_FORMAT: &str = "%d:%i:%s:%Y:%Z";

/// Returns the command that starts a relay to the agent, and the agent if none runs.
///
/// `at` is the path of the executable on the manager's machine. A machine that shares the manager's disk has the same
/// inode there. On other machines, the hash of a cached executable is checked before it is started as the agent. While
/// an agent listens, the hash is not checked, because the executable is then only the relay.
pub(super) fn relay_command(identity: &FileIdentity, at: &str) -> String {
    let at = if is_plain(at) { at } else { "/nonexistent" };
    let FileIdentity { hash, inode } = identity;
    wrapped(&format!(
        r#"u=$(umask); umask 077; d=$HOME/.muster; f=$d/bin/{hash}; same() {{ test -x "$1" && test "$(stat -L -c {STAT_FORMAT} "$1" 2>/dev/null)" = {inode}; }}; ok() {{ test -x "$1" && s=$({SHA256_COMMAND} <"$1") && test "${{s%% *}}" = {hash}; }}; have() {{ ok "$1" && mkdir -p "$d/bin" && ln -sf "$1" "$f"; }}; if same {at}; then f={at}; umask "$u"; exec "$f" agent connect --dir "$d/agent"; elif test -S "$d/agent/agent.sock" && test -x "$f" || ok "$f" || have "$(command -v muster-agent)" || have "$(command -v muster)" || have {at}; then umask "$u"; exec "$f" agent connect --dir "$d/agent"; else echo "{ANSWER_PREFIX}{ABSENT} $(uname -sm)"; fi"#
    ))
}

/// Returns the command that installs the executable, which it reads compressed from its standard input.
///
/// The command also deletes incomplete transfers that are older than an hour.
pub(super) fn install_command(hash: &str) -> String {
    wrapped(&format!(
        r#"umask 077; d=$HOME/.muster/bin; mkdir -p "$d" && find "$d" -name ".part-*" -mmin +60 -exec rm -f {{}} +; t=$(mktemp "$d/.part-XXXXXX") || exit 1; trap "rm -f $t" EXIT; gzip -dc >"$t" && s=$({SHA256_COMMAND} <"$t") && if test "${{s%% *}}" = {hash}; then chmod 700 "$t" && mv -f "$t" "$d/{hash}" && echo "{ANSWER_PREFIX}{PLACED}"; else echo "the transferred file has another hash" >&2; exit 1; fi"#
    ))
}

/// Wraps a script for `sh`. It must not contain single quotes, exclamation marks or line breaks.
fn wrapped(script: &str) -> String {
    debug_assert!(!script.contains(['\'', '!', '\n']), "{script}");
    format!("exec sh -c '{script}'")
}

fn is_plain(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_is_relative_or_has_special_characters_is_not_used() {
        let identity = FileIdentity { hash: "ab".to_owned(), inode: "1:2:3:4:5".to_owned() };
        assert!(relay_command(&identity, "/usr/bin/muster").contains("have /usr/bin/muster"));
        for path in ["/opt/$(reboot)", "muster", "/a b", "/a'b", ""] {
            assert!(relay_command(&identity, path).contains("have /nonexistent"), "{path}");
        }
    }
}
