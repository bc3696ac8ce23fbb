//! Paths in a job's environment, as text: they are on another machine or in a container.

/// Returns whether `path` is `directory` or below it. Both are absolute and have no `.` or `..`.
#[must_use]
pub fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_the_same_beginning_is_not_below_a_directory() {
        for directory in ["/builds", "/builds/", "/"] {
            assert!(is_below("/builds", directory) && is_below("/builds/group", directory), "{directory}");
        }
        assert!(!is_below("/buildsx", "/builds") && !is_below("/", "/builds"));
    }
}
