//! Commands that clean up after a job (docs/spec/job-execution.md, section 2.8).

use muster_agent_api::builtin::{Cleanup, GLOBAL_GIT_CONFIG};
use muster_agent_api::step_runner::Variable;

use super::frame::{Body, command};
use super::{Target, path, sources};
use crate::shell_text::{can_be_set, quote};

/// Files in the temporary directory besides file variables.
const FILES: [&str; 4] = ["gitlab_runner_env", "masking.db", ".gitlab-runner.ext.conf", GLOBAL_GIT_CONFIG];

pub(super) fn push(body: &mut Body, target: &Target<'_>, cleanup: &Cleanup, variables: &[Variable]) {
    let project = target.project_dir.to_string_lossy();
    let with_submodules = !matches!(cleanup.submodules.as_str(), "" | "none");
    // Files with secrets are removed first, because a failed command ends the script. An invalid variable name is
    // skipped, because it could be the path of another file.
    let files = variables.iter().filter(|variable| variable.file && can_be_set(&variable.key));
    let files = files.map(|variable| variable.key.as_str());
    let mut words = ["rm", "-f"].map(str::to_owned).to_vec();
    words.extend(files.chain(FILES).map(|name| path(target.temp_dir, name)));
    body.run(&words);
    body.run(&["rm", "-r", "-f", &path(target.temp_dir, "git-template")]);
    match cleanup.checkout.as_str() {
        "" => {}
        "none" => body.notice("Skipping build directory cleanup step"),
        "fetch" => {
            if let Some(flags) = &cleanup.clean_flags {
                let clean = format!("git clean {}", command(flags));
                body.line(&format!("if [ -e {0}/.git ]; then cd {0}", quote(&project)));
                body.line(&format!("{clean}\ngit reset --hard"));
                if with_submodules {
                    let recursive = if cleanup.submodules == "recursive" { " --recursive" } else { "" };
                    body.line(&format!("git submodule foreach{recursive} {clean}"));
                    body.line(&format!("git submodule foreach{recursive} git reset --hard"));
                }
                body.line("cd /\nfi");
            }
        }
        _ => sources::remove(body, &project),
    }
    if cleanup.clean_config {
        body.line(&format!("if [ -d {0} ]; then cd {0}", quote(&project)));
        body.line(sources::REMOVE_CONFIG);
        body.line("cd /\nfi");
    }
    body.run(&["rmdir", &target.temp_dir.to_string_lossy()]);
    // `rmdir` fails if the job has left files.
    if let Some(line) = body.text.strip_suffix('\n') {
        body.text = format!("{line} 2>/dev/null || true\n");
    }
}
