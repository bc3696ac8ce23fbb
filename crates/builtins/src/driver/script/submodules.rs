//! Commands that update submodules (docs/spec/job-execution.md, section 2.7).

use muster_agent_api::builtin::Checkout;
use muster_steps::failure::Failure;

use super::Target;
use super::frame::{Body, command};
use crate::checkout::config::external_path;

/// Adds commands that update the submodules.
///
/// # Errors
/// [`Failure::Step`] if the strategy is invalid.
pub(super) fn push(body: &mut Body, target: &Target<'_>, checkout: &Checkout) -> Result<(), Failure> {
    let recursive = match checkout.submodules.as_str() {
        "normal" => "",
        "recursive" => " --recursive",
        _ => return Err(Failure::Step("unknown GIT_SUBMODULE_STRATEGY".to_owned())),
    };
    let depth = checkout.submodule_depth;
    body.notice(&format!(
        "Updating/initializing submodules{}{}...",
        if recursive.is_empty() { "" } else { " recursively" },
        if depth > 0 { format!(" with git depth set to {depth}") } else { String::new() }
    ));
    let external = external_path(target.temp_dir).to_string_lossy().into_owned();
    let include = command(&["-c".to_owned(), format!("include.path={external}")]);
    let paths = match checkout.submodule_paths.as_slice() {
        [] => String::new(),
        paths => format!(" -- {}", command(paths)),
    };
    let depth = if depth > 0 { format!(" --depth {depth}") } else { String::new() };
    let flags = match checkout.submodule_flags.as_slice() {
        [] => String::new(),
        flags => format!(" {}", command(flags)),
    };
    let sync = format!("git submodule sync{recursive}{paths}");
    let update = format!("git {include} submodule update --init{recursive}{depth}{flags}{paths}");
    let foreach = format!("git submodule foreach{recursive}");
    let reset = format!("{foreach} git reset --hard");
    let clean = match checkout.clean_flags.as_deref() {
        None | Some([]) => format!("{foreach} git clean -ffdx"),
        Some(flags) => format!("{foreach} git clean {}", command(flags)),
    };
    for line in ["git submodule init", &sync, &clean, &reset] {
        body.line(line);
    }
    body.line(&format!("if {update}; then"));
    body.notice("Updated submodules");
    body.line(&format!("{sync}\nelse"));
    body.warning("Updating submodules failed. Retrying...");
    if checkout.submodule_flags.iter().any(|flag| flag == "--remote") {
        body.line(&format!("{foreach} git {include} fetch origin '+refs/heads/*:refs/remotes/origin/*'"));
    }
    body.line(&format!("{sync}\n{update}\n{reset}\nfi\n{clean}"));
    let configure = command(&["git", "config", "--replace-all", "include.path", &external]);
    body.line(&format!("git submodule foreach --recursive {configure}"));
    if !checkout.skip_lfs {
        body.line(&format!("if git lfs version >/dev/null 2>&1; then {foreach} git lfs pull; fi"));
    }
    Ok(())
}
