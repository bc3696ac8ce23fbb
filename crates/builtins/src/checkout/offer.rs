//! Inputs for steps of the operator that replace the checkout (docs/reference/replaceable-steps.md).

use muster_agent_api::builtin::Checkout;
use muster_steps::builtin::Offer;
use serde_json::json;

use crate::context::Context;
use crate::offer::{certificates, map};

pub(super) fn checkout(context: &Context, step: &Checkout) -> Offer {
    let Checkout { strategy, repo_url, object_format, ref_name, sha, refspecs, depth, .. } = step;
    let rewrites = step.rewrites.iter().map(|rewrite| json!({ "from": rewrite.from, "to": rewrite.to }));
    let mut inputs = map([
        ("strategy", json!(strategy)),
        ("url", json!(repo_url)),
        ("object_format", json!(object_format)),
        ("ref", json!(ref_name)),
        ("sha", json!(sha)),
        ("refspecs", json!(refspecs)),
        ("depth", json!(depth)),
        ("checkout", json!(step.checkout)),
        ("clean", json!(step.clean_flags.is_some())),
        ("clean_flags", json!(step.clean_flags.as_deref().unwrap_or_default())),
        ("fetch_flags", json!(step.fetch_flags)),
        ("submodules", json!(if step.submodules.is_empty() { "none" } else { &step.submodules })),
        ("submodule_paths", json!(step.submodule_paths)),
        ("submodule_depth", json!(step.submodule_depth)),
        ("submodule_flags", json!(step.submodule_flags)),
        ("lfs", json!(!step.skip_lfs)),
        ("rewrites", rewrites.collect()),
        ("pre_script", json!(step.pre_script)),
        ("post_script", json!(step.post_script)),
    ]);
    inputs.extend(certificates(context, &step.tls));
    let urls = step.rewrites.iter().map(|rewrite| &rewrite.to).chain([repo_url]);
    // Masking a URL without credentials would make the log hard to read.
    let sensitive = urls.filter_map(|url| Some([url.clone(), credential(url)?]));
    Offer { inputs, sensitive: sensitive.flatten().collect() }
}

/// Returns the secret in a URL, if it has one: the password, or the user of an HTTP URL such as `https://TOKEN@host/`.
fn credential(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user_info, _) = authority.rsplit_once('@')?;
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let is_http = ["http", "https"].iter().any(|http| scheme.eq_ignore_ascii_case(http));
    let secret = match password {
        // Some servers document `x-oauth-basic` as the password beside a token.
        "" | "x-oauth-basic" if is_http => user,
        password => password,
    };
    (!secret.is_empty()).then(|| secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_urls_are_secret() {
        for (url, expected) in [
            ("https://gitlab-ci-token:s3cret@host:8080/a@b", Some("s3cret")),
            ("https://user:p:a@ss@host", Some("p:a@ss")),
            ("https://t0ken@host/a.git", Some("t0ken")),
            ("HTTP://t0ken@host?a=b/c@d", Some("t0ken")),
            ("https://t0ken:@host/", Some("t0ken")),
            ("https://t0ken:x-oauth-basic@host/", Some("t0ken")),
            ("https://host/a@b", None),
            ("https://host?user:pass@b", None),
            ("https://@host/", None),
            ("ssh://git@host/a.git", None),
            ("ssh://git:s3cret@host/a.git", Some("s3cret")),
            ("git@host:a/b.git", None),
            ("/srv/a@b.git", None),
        ] {
            assert_eq!(credential(url).as_deref(), expected, "{url}");
        }
    }
}
