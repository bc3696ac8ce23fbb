use std::os::unix::fs::PermissionsExt as _;

use super::*;

const SAMPLE: &str = r#"# our runners
concurrent = 4
future_key = "stays"   # unknown to us

# the first one
[[runners]]
  name = "one"
  url = "https://gitlab.example"
  token = "$RUNNER_TOKEN" # from the vault
  executor = "shell"
  [runners.docker]
    image = "alpine"

# the second one
[[runners]]
  name = "two"
  Token = "glrt-two"
  executor = "shell"

[session_server]
  session_timeout = 1800
"#;

struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn new(text: &str) -> Self {
        let home = Self { directory: tempfile::tempdir().unwrap() };
        std::fs::write(home.path(), text).unwrap();
        home
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("config.toml")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut ConfigFile)) -> String {
        let mut file = ConfigFile::open(&self.path()).unwrap();
        change(&mut file);
        file.save().unwrap();
        self.text()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn new_token(token: &str) -> NewToken {
    let at = time::macros::datetime!(2026-11-21 14:00:00.5 UTC);
    NewToken { token: Secret::new(token), id: Some(7), obtained_at: Some(at), expires_at: None }
}

#[test]
fn added_runner_changes_no_other_byte() {
    let home = Home::new(SAMPLE);
    let entry =
        "name = \"three\"\ntoken = \"glrt-three\"\n[docker]\nimage = \"busybox\"\n".parse::<DocumentMut>().unwrap();
    let text = home.change(|file| assert_eq!(file.add_runner(entry.as_table().clone()), 2));
    let (before, rest) = SAMPLE.split_at(SAMPLE.find("\n[session_server]").unwrap());
    let added = text.strip_prefix(before).and_then(|text| text.strip_suffix(rest)).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        added.trim(),
        "[[runners]]\nname = \"three\"\ntoken = \"glrt-three\"\n[runners.docker]\nimage = \"busybox\""
    );
}

#[test]
fn removed_runner_changes_no_other_byte() {
    let home = Home::new(SAMPLE);
    let text = home.change(|file| file.remove_runner(0).unwrap());
    let start = SAMPLE.find("\n# the first one").unwrap();
    let end = SAMPLE.find("\n# the second one").unwrap();
    assert_eq!(text, format!("{}{}", &SAMPLE[..start], &SAMPLE[end..]));
    let mut file = ConfigFile::open(&home.path()).unwrap();
    assert!(matches!(file.remove_runner(1), Err(EditError::NoRunner { index: 1 })));
}

#[test]
fn c023_replaced_token_reference_is_reported() {
    let home = Home::new(SAMPLE);
    let text = home.change(|file| {
        let warning = file.set_token(0, &new_token("glrt-new")).unwrap().unwrap();
        assert_eq!(warning.code, "C023");
        assert!(warning.message.contains("$RUNNER_TOKEN") && !warning.message.contains("glrt-new"), "{warning}");
        assert!(file.set_token(1, &new_token("glrt-other")).unwrap().is_none());
    });
    assert!(text.contains("token = \"glrt-new\" # from the vault"), "{text}");
    assert!(text.contains("Token = \"glrt-other\""), "{text}");
    assert!(text.contains("token_obtained_at = 2026-11-21T14:00:00Z"), "{text}");
    assert!(text.contains("future_key = \"stays\"   # unknown to us"), "{text}");
}

#[test]
fn other_changes_keep_environment_references() {
    let home = Home::new(SAMPLE);
    let text = home.change(|file| file.remove_runner(1).unwrap());
    assert!(text.contains("token = \"$RUNNER_TOKEN\" # from the vault"), "{text}");
}

#[test]
fn inline_entries_and_keys_in_upper_or_lower_case_are_edited() {
    let home = Home::new("Runners = [{ name = \"a\", token = \"x\" }, { name = \"b\" }]\n");
    let text = home.change(|file| {
        file.set_token(0, &NewToken { obtained_at: None, id: None, ..new_token("y") }).unwrap();
        file.remove_runner(1).unwrap();
        file.add_runner("name = \"c\"".parse::<DocumentMut>().unwrap().as_table().clone());
    });
    assert_eq!(text, "Runners = [{ name = \"a\", token = \"y\" }, { name = \"c\" }]\n");
}

#[test]
fn modes_are_kept_and_new_files_are_private() {
    let home = Home::new(SAMPLE);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
    home.change(|file| file.remove_runner(0).unwrap());
    assert_eq!(mode(&home.path()), 0o640);
    let new = home.directory.path().join("deep/er/config.toml");
    let mut file = ConfigFile::open(&new).unwrap();
    file.add_runner(Table::new());
    file.save().unwrap();
    assert_eq!((mode(&new), mode(new.parent().unwrap())), (0o600, 0o700));
    assert!(std::fs::read_to_string(&new).unwrap().starts_with("concurrent = 1\n"));
}

#[test]
fn symlink_is_kept_and_its_target_edited() {
    let home = Home::new(SAMPLE);
    let link = home.directory.path().join("link.toml");
    std::os::unix::fs::symlink("config.toml", &link).unwrap();
    let mut file = ConfigFile::open(&link).unwrap();
    file.remove_runner(0).unwrap();
    file.save().unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(!home.text().contains("\"one\""));
}

#[test]
fn symlink_loop_is_reported() {
    let home = Home::new(SAMPLE);
    let link = home.path().with_file_name("a.toml");
    std::os::unix::fs::symlink("a.toml", &link).unwrap();
    for error in [lock_for_manager(&link).unwrap_err(), ConfigFile::open(&link).unwrap_err()] {
        let EditError::Io { source, path, .. } = &error else { panic!("{error}") };
        assert_eq!(path, &link);
        assert!(
            error.to_string().contains("the symbolic links form a loop; let the link point to the file"),
            "{error}"
        );
        assert!(source.to_string().contains("symbolic links"), "{source}");
    }
}

#[test]
fn errors_say_whether_the_file_is_unchanged_and_what_to_fix() {
    use std::io::ErrorKind;
    for (doing, kind, end) in [
        ("write", ErrorKind::StorageFull, "; the file is unchanged: free some space on its disk"),
        ("read", ErrorKind::PermissionDenied, "; the file is unchanged: fix its permissions or run as its owner"),
        (
            "replace",
            ErrorKind::PermissionDenied,
            "; the file is unchanged: fix the permissions of its directory or run as its owner",
        ),
        ("replace", ErrorKind::Other, ""),
        (
            OVERWRITE,
            ErrorKind::StorageFull,
            "; the file may be incomplete, and a hidden file beside it has the complete new text: free some space on its disk",
        ),
        (
            OVERWRITE,
            ErrorKind::Other,
            "; the file may be incomplete, and a hidden file beside it has the complete new text",
        ),
    ] {
        let error = EditError::Io { doing, path: PathBuf::from("/c.toml"), source: kind.into() };
        assert_eq!(error.to_string(), format!("failed to {doing} `/c.toml`{end}"));
    }
}

#[test]
fn second_writer_waits_and_then_names_lock_holder() {
    let home = Home::new(SAMPLE);
    let first = ConfigFile::open(&home.path()).unwrap();
    let error = ConfigFile::open_within(&home.path(), Duration::from_millis(50)).unwrap_err();
    assert!(error.to_string().contains(&format!("in use by process {}", std::process::id())), "{error}");
    drop(first);
    ConfigFile::open(&home.path()).unwrap();
}

#[test]
fn c030_second_manager_is_refused_but_writers_are_not() {
    let home = Home::new(SAMPLE);
    let lock = lock_for_manager(&home.path()).unwrap();
    let error = lock_for_manager(&home.path()).unwrap_err();
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    home.change(|file| file.remove_runner(0).unwrap());
    assert!(lock_for_manager(&home.path()).is_err(), "a save must not release the manager's lock");
    drop(lock);
    lock_for_manager(&home.path()).unwrap();
}

#[test]
fn concurrent_changes_are_not_overwritten() {
    let home = Home::new(SAMPLE);
    let mut file = ConfigFile::open(&home.path()).unwrap();
    file.remove_runner(0).unwrap();
    std::fs::write(home.path(), "concurrent = 9\n").unwrap();
    assert!(matches!(file.save(), Err(EditError::ModifiedConcurrently { .. })));
    assert_eq!(home.text(), "concurrent = 9\n");
    assert_eq!(home.names(), [".config.toml.lock", "config.toml"], "no other file may remain");
}

#[test]
fn invalid_file_is_not_edited_and_secrets_are_not_shown() {
    let broken = "[[runners]]\ntoken = \"glrt-verysecret\nname = \"x\"\n";
    let home = Home::new(broken);
    let error = ConfigFile::open(&home.path()).unwrap_err().to_string();
    assert!(error.contains("config.toml:2:") && error.contains("TOML"), "{error}");
    assert!(!error.contains("verysecret"), "{error}");
    assert_eq!(home.text(), broken);
}

#[test]
fn leftovers_of_killed_save_are_removed() {
    let home = Home::new(SAMPLE);
    for name in [".config.toml.new-30070-0", ".config.toml.new-1-12", ".config.toml.new-of-mine", "config.toml.new-1-0"]
    {
        std::fs::write(home.directory.path().join(name), "token").unwrap();
    }
    home.change(|file| file.remove_runner(0).unwrap());
    let names = home.names();
    assert!(!names.iter().any(|name| name.starts_with(".config.toml.new-1") || name.contains("30070")), "{names:?}");
    assert!([".config.toml.new-of-mine", "config.toml.new-1-0"].iter().all(|name| names.iter().any(|n| n == name)));
}
