//! The file itself, and the process around it (C031 to C041).

use super::super::problem::Problem;
use super::Check;

pub(super) fn check(check: &mut Check<'_>) {
    place(check);
}

fn place(check: &mut Check<'_>) {
    if let Some(system) = &check.facts.system_config {
        let message = format!(
            "running as {} with the user's own configuration; {} is not used",
            check.facts.user,
            system.display()
        );
        check.add(
            Problem::new("C031", message).help("run as root, or name the file with --config, if that one is meant"),
        );
    }
    let others = check.facts.mode.filter(|mode| mode & 0o077 != 0 && !check.runners.is_empty());
    if let Some(mode) = others {
        let message = format!("the file has mode {mode:04o}; it holds tokens, and others may read it");
        check.add(Problem::new("C033", message).help("chmod 0600"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean_with, found_with};

    #[test]
    fn c031_a_user_who_has_no_root_rights_uses_the_own_file() {
        let told = found_with("C031", "", |facts| {
            facts.user = "ann".to_owned();
            facts.system_config = Some("/etc/gitlab-runner/config.toml".into());
        });
        assert!(
            told.contains("running as ann") && told.contains("/etc/gitlab-runner/config.toml is not used"),
            "{told}"
        );
        clean_with("C031", "", |facts| facts.system_config = None);
    }

    #[test]
    fn c033_tokens_that_others_may_read() {
        let text = "[[runners]]\ntoken = \"t\"\n";
        assert!(found_with("C033", text, |facts| facts.mode = Some(0o644)).contains("mode 0644"));
        clean_with("C033", text, |facts| facts.mode = Some(0o600));
        clean_with("C033", "concurrent = 1", |facts| facts.mode = Some(0o644));
    }
}
