//! Commands that get the sources, as `builtin://checkout` does (docs/spec/job-execution.md, sections 2.2 to 2.6).

use muster_agent_api::builtin::{Checkout, GLOBAL_GIT_CONFIG};
use muster_steps::failure::Failure;

use super::frame::{Body, command};
use super::{Target, path, submodules};
use crate::checkout::config::{external_path, external_text, template_text};
use crate::checkout::remote::{options, regex_escaped};
use crate::checkout::short_sha;
use crate::git_http::without_credentials;
use crate::shell_text::{push_commands, quote};

/// Command that unsets variables that select another repository.
const UNSET: &str = "unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR GIT_NAMESPACE";
/// Commands that remove lock files and hooks of an earlier job.
const REMOVE_LEFTOVERS: &str = "rm -f .git/index.lock .git/shallow.lock .git/HEAD.lock .git/hooks/post-checkout .git/config.lock\n\
     if [ -d .git/refs ]; then find .git/refs -name '*.lock' -exec rm -f {} +; fi";

/// Commands that do the same as `remove_config` of `builtin://checkout`.
pub(super) const REMOVE_CONFIG: &str = "if [ ! -d .git ] || [ -L .git ]; then rm -f .git; fi\n\
     rm -r -f .git/config .git/config.worktree .git/commondir .git/hooks\n\
     if [ -d .git/modules ]; then\n\
     find .git/modules -type f '(' -name config -o -name config.worktree -o -name commondir ')' -exec rm -f {} +\n\
     find .git/modules -type d -name hooks -prune -exec rm -r -f {} +\nfi";

/// Adds the commands of a checkout.
///
/// # Errors
/// [`Failure::Step`] if the submodule strategy is invalid.
pub(super) fn push(body: &mut Body, target: &Target<'_>, checkout: &Checkout) -> Result<(), Failure> {
    body.is_traced = checkout.shell.debug;
    let project = target.project_dir.to_string_lossy();
    body.line("export GIT_TERMINAL_PROMPT=0 GCM_INTERACTIVE=Never");
    body.line(UNSET);
    configure(body, target, checkout);
    match checkout.strategy.as_str() {
        "none" => {
            skipped(body, "Skipping Git repository setup");
            body.run(&["mkdir", "-p", &project]);
            return Ok(());
        }
        "empty" => {
            skipped(body, "Skipping Git repository setup and creating an empty build directory");
            remove(body, &project);
            body.run(&["mkdir", "-p", &project]);
            return Ok(());
        }
        _ => {}
    }
    hook(body, &project, checkout, ("pre_clone_script", &checkout.pre_script));
    if checkout.strategy == "clone" {
        remove(body, &project);
    }
    body.run(&["mkdir", "-p", &project]);
    body.run(&["cd", &project]);
    fetch(body, target, checkout);
    if checkout.checkout {
        check_out_files(body, checkout);
    } else {
        body.notice("Skipping Git checkout");
    }
    if matches!(checkout.submodules.as_str(), "" | "none") {
        body.notice("Skipping Git submodules setup");
    } else {
        submodules::push(body, target, checkout)?;
    }
    hook(body, &project, checkout, ("post_clone_script", &checkout.post_script));
    Ok(())
}

pub(super) fn clear(body: &mut Body, target: &Target<'_>) {
    body.notice("Deleting tracked and untracked files...");
    let project = target.project_dir.to_string_lossy();
    body.line(&format!("if [ -d {0} ]; then cd {0}", quote(&project)));
    body.line("git rm -rf --ignore-unmatch --quiet . || true\ngit clean -ffdx -q || true\nfi");
}

/// Adds commands that remove a directory, even if its content is write-protected.
pub(super) fn remove(body: &mut Body, directory: &str) {
    let directory = quote(directory);
    body.line(&format!("if [ -e {directory} ]; then chmod -R u+rwX {directory}; rm -r -f {directory}; fi"));
}

fn skipped(body: &mut Body, reason: &str) {
    for notice in [reason, "Skipping Git checkout", "Skipping Git submodules setup"] {
        body.notice(notice);
    }
}

fn hook(body: &mut Body, project: &str, checkout: &Checkout, hook: (&str, &Vec<String>)) {
    if hook.1.is_empty() {
        return;
    }
    body.run(&["mkdir", "-p", project]);
    body.run(&["cd", project]);
    push_commands(&mut body.text, &checkout.shell, &[(hook.0, hook.1)]);
}

fn configure(body: &mut Body, target: &Target<'_>, checkout: &Checkout) {
    let external = external_path(target.temp_dir).to_string_lossy().into_owned();
    body.write_file(&external, &external_text(target.temp_dir, checkout));
    if checkout.credential_helper {
        let file = path(target.temp_dir, GLOBAL_GIT_CONFIG);
        body.write_file(&file, "");
        // `GIT_CONFIG_GLOBAL` replaces the user's files, so this file includes them.
        let file = quote(&file);
        body.line(&format!(
            "for _runner_file in \"$HOME/.config/git/config\" \"$HOME/.gitconfig\"; do\n\
             if [ -f \"$_runner_file\" ]; then git config --file {file} --add include.path \"$_runner_file\"; fi\ndone\n\
             git config --file {file} --add include.path {}",
            quote(&external)
        ));
    }
}

fn fetch(body: &mut Body, target: &Target<'_>, checkout: &Checkout) {
    let project = target.project_dir.to_string_lossy();
    let external = external_path(target.temp_dir);
    body.line(REMOVE_LEFTOVERS);
    if checkout.clean_config {
        body.line(REMOVE_CONFIG);
    }
    body.notice(&match checkout.depth {
        depth @ 1.. => format!("Fetching changes with git depth set to {depth}..."),
        _ => "Fetching changes...".to_owned(),
    });
    if checkout.safe_directory {
        let pattern = format!("^{}$", regex_escaped(&project));
        body.run(&["git", "config", "--global", "--replace-all", "safe.directory", &project, &pattern]);
    }
    let template = path(target.temp_dir, "git-template");
    body.run(&["mkdir", "-p", &template]);
    body.write_file(&format!("{template}/config"), &template_text(checkout, &external));
    let mut init = vec!["git", "init", "--quiet", "--template", &template];
    if !matches!(checkout.object_format.as_str(), "" | "sha1") {
        init.extend(["--object-format", &checkout.object_format]);
    }
    let init = command(&init);
    body.line(&format!("if [ ! -e .git ]; then\n{init}"));
    body.notice("Created fresh repository.");
    body.line("else");
    if checkout.clean_config {
        body.line(&init);
    }
    body.run(&["git", "config", "--replace-all", "remote.origin.url", &without_credentials(&checkout.repo_url)]);
    body.run(&["git", "config", "--replace-all", "include.path", &external.to_string_lossy()]);
    body.line("fi");
    let depth = checkout.depth.to_string();
    let mut words = git(checkout);
    words.extend(["fetch", "origin", "--no-recurse-submodules"].map(str::to_owned));
    words.extend(checkout.refspecs.iter().cloned());
    let flags = command(&checkout.fetch_flags);
    let fetch = command(&words);
    if checkout.depth > 0 {
        body.line(&format!("{fetch} --depth {depth} {flags}"));
    } else {
        body.line(&format!("if [ -f .git/shallow ]; then {fetch} --unshallow {flags}; else {fetch} {flags}; fi"));
    }
}

fn check_out_files(body: &mut Body, checkout: &Checkout) {
    let sha = &checkout.sha;
    body.notice(&format!("Checking out {} as detached HEAD (ref is {})...", short_sha(sha), checkout.ref_name));
    let mut words = git(checkout);
    words.extend(["-c", "submodule.recurse=false", "checkout", "-f", "-q", sha].map(str::to_owned));
    // The checkout does not download LFS files, because `git lfs pull` follows. If `skip_lfs` is set, the job itself
    // has set this variable.
    let without_lfs = if checkout.skip_lfs { "" } else { "GIT_LFS_SKIP_SMUDGE=1 " };
    body.line(&format!("{without_lfs}{}", command(&words)));
    if let Some(flags) = &checkout.clean_flags {
        body.line(&format!("git clean {}", command(flags)));
    }
    if !checkout.skip_lfs {
        body.line("if git lfs version >/dev/null 2>&1; then git lfs pull; echo; fi");
    }
}

fn git(checkout: &Checkout) -> Vec<String> {
    ["git".to_owned()].into_iter().chain(options(checkout)).collect()
}
