//! What only the start of a service needs. The one unsafe call of this room.
#![expect(
    unsafe_code,
    reason = "the address space is the process's own, and only what the file still holds is given back"
)]

use std::fs;

/// Gives the pages of the program's own code back: parsing arguments and configuration touches much that a service that
/// runs for months never needs again. What it does need comes back from the file, mostly from memory, when it is used.
/// Does nothing where the system does not tell what is mapped.
pub(crate) fn give_back_code() {
    let (Ok(maps), Ok(executable)) = (fs::read_to_string("/proc/self/maps"), fs::read_link("/proc/self/exe")) else {
        return;
    };
    for (start, length) in maps.lines().filter_map(|line| code(line, &executable.to_string_lossy())) {
        // SAFETY: the mapping is private, of a file, executable and not writable: its pages are what the file holds, and are
        // read from there again. Relocations are in other mappings. A failure changes nothing.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED) };
    }
}

/// Start and length of a mapping of the code of `executable`.
fn code(line: &str, executable: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, permissions) = (words.next()?, words.next()?);
    if permissions != "r-xp" || words.nth(3)? != executable {
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
    fn only_the_code_of_the_program_itself_is_meant() {
        let line = |permissions: &str, file: &str| format!("7f00-9f00 {permissions} 00001000 fe:00 12   {file}");
        assert_eq!(code(&line("r-xp", "/opt/muster"), "/opt/muster"), Some((0x7f00, 0x2000)));
        for (permissions, file) in [
            ("r--p", "/opt/muster"),
            ("rw-p", "/opt/muster"),
            ("r-xp", "/lib/libc.so"),
            ("r-xp", "[vdso]"),
            ("r-xp", ""),
        ] {
            assert_eq!(code(&line(permissions, file), "/opt/muster"), None, "{permissions} {file}");
        }
    }

    #[test]
    fn the_program_goes_on_with_what_it_needs() {
        let resident = || fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        give_back_code();
        assert!(resident().contains("Rss:"));
    }
}
