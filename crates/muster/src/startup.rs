//! Releases memory that only the start of a service needs.
#![expect(
    unsafe_code,
    reason = "releases only unmodified file-backed pages of this process, which the kernel reads again on access"
)]

use std::fs;
use std::time::Duration;

/// Time after which a service is assumed to have started.
const STARTUP_TIME: Duration = Duration::from_secs(2);

pub(crate) async fn release_pages_after_start() {
    tokio::time::sleep(STARTUP_TIME).await;
    release_startup_pages();
}

/// Releases the pages of the program's code and constants. The kernel reads a page from the file again if the program
/// uses it.
///
/// Does nothing if `/proc` is not available.
fn release_startup_pages() {
    let (Ok(maps), Ok(executable)) = (fs::read_to_string("/proc/self/maps"), fs::read_link("/proc/self/exe")) else {
        return;
    };
    for (start, length) in maps.lines().filter_map(|line| unmodified_mapping(line, &executable.to_string_lossy())) {
        // SAFETY: the mapping is private, file-backed, and was never writable. Its pages equal the file's content and are read from it
        // again on access. A failure changes nothing.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED) };
    }
}

/// Parses a line of `/proc/self/maps`. Returns the address and length of a mapping of `executable` that was never
/// modified.
///
/// Only code and the beginning of the file qualify: relocations may have modified other read-only mappings.
fn unmodified_mapping(line: &str, executable: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let is_start = permissions == "r--p" && offset.bytes().all(|digit| digit == b'0');
    if !(permissions == "r-xp" || is_start) || fields.nth(2)? != executable {
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
    fn unmodified_mappings_of_the_executable_are_found() {
        let line =
            |permissions: &str, offset: &str, file: &str| format!("7f00-9f00 {permissions} {offset} fe:00 12   {file}");
        for (permissions, offset) in [("r-xp", "00001000"), ("r--p", "00000000")] {
            assert_eq!(
                unmodified_mapping(&line(permissions, offset, "/opt/muster"), "/opt/muster"),
                Some((0x7f00, 0x2000))
            );
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
                unmodified_mapping(&line(permissions, offset, file), "/opt/muster"),
                None,
                "{permissions} {offset} {file}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn program_continues_after_releasing_pages() {
        let resident = || fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        release_pages_after_start().await;
        assert!(resident().contains("Rss:"));
    }
}
