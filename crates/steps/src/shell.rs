//! Message about a missing shell.

use crate::process::search_path;

/// Returns the message that no shell with one of these names exists. `image` is the image of the steps' container.
/// Empty means this machine.
#[must_use]
pub fn shell_not_found(names: &[&str], image: &str) -> String {
    let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ");
    let directories: Vec<_> = search_path().iter().map(|directory| directory.display().to_string()).collect();
    let directories = directories.join(", ");
    if image.is_empty() {
        return format!("shell not found: this machine has no {names} in {directories}; install it");
    }
    format!(
        "shell not found: the image {image} has no {names} in {directories}; use an image with a shell, or replace the script by `run:` \
         with steps that have `exec:`, which need no shell"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_the_place_of_the_search_and_the_remedy() {
        let machine = shell_not_found(&["pwsh"], "");
        assert!(machine.starts_with("shell not found: this machine has no `pwsh` in /"), "{machine}");
        assert!(machine.ends_with("/busybox; install it"), "{machine}");
        let image = shell_not_found(&["bash", "sh"], "registry.example/tool:1");
        assert!(image.contains("the image registry.example/tool:1 has no `bash` or `sh` in /"), "{image}");
        assert!(image.contains("; use an image with a shell, or replace the script by `run:`"), "{image}");
        assert_eq!(image.matches("/usr/bin,").count(), 1, "each directory must be named once: {image}");
    }
}
