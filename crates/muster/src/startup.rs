//! What only the start of a service needs. The one unsafe call of this room.
#![expect(
    unsafe_code,
    reason = "the address space is the process's own, and only what the file still holds is given back"
)]

use std::fs;
use std::time::Duration;

/// A service has started by then: it has read its configuration, made its clients and asked for the first time.
const STARTED: Duration = Duration::from_secs(2);

/// Gives pages of the executable back once the service has started; ends then.
pub(crate) async fn give_back_when_started() {
    tokio::time::sleep(STARTED).await;
    give_back_pages();
}

/// Gives the pages of the program's own code and constants back: starting touches much that a service that runs for months
/// never needs again. What it does need comes back from the file, mostly from memory, when it is used. Does nothing where
/// the system does not tell what is mapped.
fn give_back_pages() {
    let (Ok(maps), Ok(executable)) = (fs::read_to_string("/proc/self/maps"), fs::read_link("/proc/self/exe")) else {
        return;
    };
    for (start, length) in maps.lines().filter_map(|line| as_in_file(line, &executable.to_string_lossy())) {
        // SAFETY: the mapping is private, of a file, and was never writable: its pages are what the file holds, and are read
        // from there again. A failure changes nothing.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED) };
    }
}

/// Start and length of a mapping of `executable` that is as the file is: its code, and what the file begins with. Other
/// constants may have been relocated before they became read-only.
fn as_in_file(line: &str, executable: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, permissions, offset) = (words.next()?, words.next()?, words.next()?);
    let is_start = permissions == "r--p" && offset.bytes().all(|digit| digit == b'0');
    if !(permissions == "r-xp" || is_start) || words.nth(2)? != executable {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_as_in_the_programs_own_file_is_meant() {
        let line =
            |permissions: &str, offset: &str, file: &str| format!("7f00-9f00 {permissions} {offset} fe:00 12   {file}");
        for (permissions, offset) in [("r-xp", "00001000"), ("r--p", "00000000")] {
            assert_eq!(as_in_file(&line(permissions, offset, "/opt/muster"), "/opt/muster"), Some((0x7f00, 0x2000)));
        }
        for (permissions, offset, file) in [
            ("r--p", "00001000", "/opt/muster"),
            ("rw-p", "00000000", "/opt/muster"),
            ("r-xp", "00001000", "/lib/libc.so"),
            ("r--p", "00000000", "/lib/libc.so"),
            ("r-xp", "00000000", "[vdso]"),
            ("r-xp", "00000000", ""),
        ] {
            assert_eq!(
                as_in_file(&line(permissions, offset, file), "/opt/muster"),
                None,
                "{permissions} {offset} {file}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_program_goes_on_with_what_it_needs() {
        let resident = || fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        give_back_when_started().await;
        assert!(resident().contains("Rss:"));
    }
}
