//! Git configuration of one job (docs/spec/job-execution.md, sections 2.3 and 2.6).
//!
//! The configuration is a file in the job's temporary directory. The repository only includes it, so credentials are
//! never written to the repository.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_agent_api::builtin::{Checkout, GLOBAL_GIT_CONFIG};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use crate::blocking::blocking;
use crate::context::Context;
use crate::git_http::without_credentials;
use crate::private_file;

pub(super) const TOKEN_USER: &str = "gitlab-ci-token";
/// Credential helper that returns the job token from the environment.
const HELPER: &str = "!f(){ test \"$1\" = get && printf 'password=%s\\n' \"$CI_JOB_TOKEN\"; }; f";

/// Returns the path of the file that repositories include.
pub(crate) fn external_path(temp_dir: &Path) -> PathBuf {
    temp_dir.join(".gitlab-runner.ext.conf")
}

/// Writes the git configuration of the job. Returns the path of the file that repositories include.
pub(super) async fn write(context: &Arc<Context>, checkout: &Checkout, stop: &StopToken) -> Result<PathBuf, Failure> {
    write_blocking(context, checkout, stop, |context, checkout| {
        let external = external_path(&context.temp_dir);
        private_file::write(&external, external_text(&context.temp_dir, checkout).as_bytes())?;
        if checkout.credential_helper {
            private_file::write(&context.temp_dir.join(GLOBAL_GIT_CONFIG), global_text(context, &external).as_bytes())?;
        }
        Ok(external)
    })
    .await
}

/// Writes the template directory for `git init`, and returns its path.
pub(super) async fn write_template(
    context: &Arc<Context>,
    checkout: &Checkout,
    stop: &StopToken,
) -> Result<PathBuf, Failure> {
    write_blocking(context, checkout, stop, |context, checkout| {
        let template = context.temp_dir.join("git-template");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&template)?;
        private_file::write(
            &template.join("config"),
            template_text(checkout, &external_path(&context.temp_dir)).as_bytes(),
        )?;
        Ok(template)
    })
    .await
}

async fn write_blocking(
    context: &Arc<Context>,
    checkout: &Checkout,
    stop: &StopToken,
    write: fn(&Context, &Checkout) -> io::Result<PathBuf>,
) -> Result<PathBuf, Failure> {
    let (shared, checkout) = (Arc::clone(context), checkout.clone());
    blocking(&**context, "writing the git configuration", stop, move || {
        write(&shared, &checkout).map_err(Failure::io("failed to write the git configuration"))
    })
    .await
}

pub(crate) fn user_agent() -> String {
    let (version, os, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    format!("gitlab-runner {version} {os}/{arch}")
}

/// Returns the configuration of a new repository.
pub(crate) fn template_text(checkout: &Checkout, external: &Path) -> String {
    format!(
        "[init]\n\tdefaultBranch = none\n[fetch]\n\trecurseSubmodules = false\n[credential]\n\tinteractive = never\n\
         [gc]\n\tautoDetach = false\n[remote \"origin\"]\n\turl = {}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\
         [include]\n\tpath = {}\n",
        quoted(&without_credentials(&checkout.repo_url)),
        quoted(&external.to_string_lossy())
    )
}

/// Returns the content of the file that repositories include.
pub(crate) fn external_text(temp_dir: &Path, checkout: &Checkout) -> String {
    let mut text = String::new();
    let plain = without_credentials(&checkout.repo_url);
    let host = host(&plain);
    if checkout.credential_helper {
        if let Some(host) = &host {
            text.push_str(&format!(
                "[credential {}]\n\thelper =\n\thelper = {}\n\tusername = {TOKEN_USER}\n",
                quoted(host),
                quoted(HELPER)
            ));
        }
    } else {
        for (to, from) in rewrites(checkout, &plain) {
            text.push_str(&format!("[url {}]\n\tinsteadOf = {}\n", quoted(&to), quoted(&from)));
        }
        // The empty `helper` disables the helpers of the machine, which would store the job token.
        if let Some(host) = &host {
            text.push_str(&format!("[credential {}]\n\thelper =\n", quoted(host)));
        }
    }
    if checkout.bundle_uris {
        text.push_str("[transfer]\n\tbundleURI = true\n");
    }
    let tls = [("sslCAInfo", &checkout.tls.ca), ("sslCert", &checkout.tls.certificate), ("sslKey", &checkout.tls.key)];
    for (key, variable) in tls {
        if let (Some(variable), Some(host)) = (variable, &host) {
            let file = temp_dir.join(variable);
            text.push_str(&format!("[http {}]\n\t{key} = {}\n", quoted(host), quoted(&file.to_string_lossy())));
        }
    }
    text
}

/// Returns pairs `(to, from)`: in URLs, git replaces the prefix `from` with `to`, which has credentials
/// (docs/spec/job-execution.md, section 2.6).
///
/// Each `from` occurs once.
pub(super) fn rewrites(checkout: &Checkout, plain: &str) -> Vec<(String, String)> {
    let mut all = vec![(checkout.repo_url.clone(), plain.to_owned())];
    all.extend(checkout.rewrites.iter().map(|rewrite| (rewrite.to.clone(), rewrite.from.clone())));
    if let (Some(with), Some(without)) = (host(&checkout.repo_url), host(plain)) {
        all.push((with, without));
    }
    // Without the slash, `https://host.example.org` would get the credentials of `https://host`.
    let with_slash = |(to, from): (String, String)| {
        if host(&from).as_ref() == Some(&from) {
            (format!("{}/", to.trim_end_matches('/')), format!("{from}/"))
        } else {
            (to, from)
        }
    };
    let mut seen: Vec<(String, String)> = Vec::new();
    for (to, from) in all.into_iter().map(with_slash).filter(|(to, from)| to != from) {
        if !seen.iter().any(|(_, known)| *known == from) {
            seen.push((to, from));
        }
    }
    seen
}

/// Returns the global configuration for a job with the credential helper: the user's configuration, then the job's.
fn global_text(context: &Context, external: &Path) -> String {
    let home = context.environment_value("HOME").map(PathBuf::from);
    let user_files = home.into_iter().flat_map(|home| [home.join(".config/git/config"), home.join(".gitconfig")]);
    let all = user_files.filter(|file| file.is_file()).chain([external.to_owned()]);
    all.map(|file| format!("[include]\n\tpath = {}\n", quoted(&file.to_string_lossy()))).collect()
}

/// Returns scheme, user and host of an HTTP URL. `None` means that the URL is not HTTP.
pub(super) fn host(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    matches!(scheme, "http" | "https").then(|| format!("{scheme}://{}", rest.split('/').next().unwrap_or_default()))
}

/// Quotes a value, or the name of a subsection, for a git configuration file.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
