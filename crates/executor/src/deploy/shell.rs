//! The commands on an instance: text that any POSIX shell takes, and any login shell passes on.
//!
//! ```text
//! ~/.muster/bin/<sha256>    the executable: placed at once, by its hash, and kept
//! ~/.muster/agent/          the agent's socket, spool, lock and log
//! ```
//!
//! Each answers with a line that begins with [`MARK`]; what a profile prints before does not matter.

use super::executable::Known;

/// What an answer begins with.
pub const MARK: &str = "muster: ";
/// The SHA-256 of the input, before a blank. OpenSSL has the processor's own instructions where coreutils often has not; one that
/// cannot do this reads nothing.
const SUM: &str = r#"{ openssl dgst -sha256 -r || sha256sum; } 2>/dev/null"#;
/// The answer of an instance that has not the executable; what its `uname -sm` prints follows.
pub(super) const ABSENT: &str = "absent";
/// The answer of an instance that has got it.
pub(super) const PLACED: &str = "placed";
/// The answer of a relay that speaks to the agent; the home directory follows. From then on the bytes are the agent's.
pub const CONNECTED: &str = "connected ";
/// The same of one that speaks to an agent of another executable, which has jobs.
pub const OLDER: &str = "connected to an older one ";
/// The answer of a relay that cannot; why follows.
pub const FAILED: &str = "failed ";

/// What [`Known::inode`] is, in the words of `stat`.
const INODE: &str = "%d:%i:%s:%Y:%Z";

/// Starts a relay to the agent, and the agent where there is none. `at` is a path where the file may be found too.
///
/// An instance that shares the manager's disk has the very file there, which its inode tells at no cost. Elsewhere, while an
/// agent listens, the executable is only the relay; before it becomes an agent its hash is looked at.
pub(super) fn connect(known: &Known, at: &str) -> String {
    let at = if is_plain(at) { at } else { "/nonexistent" };
    let Known { hash, inode } = known;
    wrapped(&format!(
        r#"u=$(umask); umask 077; d=$HOME/.muster; f=$d/bin/{hash}; same() {{ test -x "$1" && test "$(stat -L -c {INODE} "$1" 2>/dev/null)" = {inode}; }}; ok() {{ test -x "$1" && s=$({SUM} <"$1") && test "${{s%% *}}" = {hash}; }}; have() {{ ok "$1" && mkdir -p "$d/bin" && ln -sf "$1" "$f"; }}; if same {at}; then f={at}; umask "$u"; exec "$f" agent connect --dir "$d/agent"; elif test -S "$d/agent/agent.sock" && test -x "$f" || ok "$f" || have "$(command -v muster-agent)" || have "$(command -v muster)" || have {at}; then umask "$u"; exec "$f" agent connect --dir "$d/agent"; else echo "{MARK}{ABSENT} $(uname -sm)"; fi"#
    ))
}

/// Takes the executable, packed, from its input. What others left half done for an hour is removed.
pub(super) fn place(hash: &str) -> String {
    wrapped(&format!(
        r#"umask 077; d=$HOME/.muster/bin; mkdir -p "$d" && find "$d" -name ".part-*" -mmin +60 -exec rm -f {{}} +; t=$(mktemp "$d/.part-XXXXXX") || exit 1; trap "rm -f $t" EXIT; gzip -dc >"$t" && s=$({SUM} <"$t") && if test "${{s%% *}}" = {hash}; then chmod 700 "$t" && mv -f "$t" "$d/{hash}" && echo "{MARK}{PLACED}"; else echo "what arrived is not what was sent" >&2; exit 1; fi"#
    ))
}

/// For `sh`, whatever the login shell is: without quotes, exclamation marks and line breaks inside.
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
    fn a_path_that_a_shell_would_read_is_not_looked_at() {
        let known = Known { hash: "ab".to_owned(), inode: "1:2:3:4:5".to_owned() };
        assert!(connect(&known, "/usr/bin/muster").contains("have /usr/bin/muster"));
        for odd in ["/opt/$(reboot)", "muster", "/a b", "/a'b", ""] {
            assert!(connect(&known, odd).contains("have /nonexistent"), "{odd}");
        }
    }
}
