//! Inputs for steps of the operator that replace the checkout (docs/reference/replaceable-steps.md).

use muster_agent_api::builtin::Checkout;
use muster_steps::builtin::Offer;
use serde_json::json;

use crate::context::Context;
use crate::offer::{certificates, map};

/// Returns the inputs of `builtin://checkout`.
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
    // A URL without a password is not secret, and masking it would make the log hard to read.
    let sensitive = urls.filter(|url| password(url).is_some()).flat_map(|url| [Some(url.clone()), password(url)]);
    Offer { inputs, sensitive: sensitive.flatten().collect() }
}

/// Returns the password in a URL. `None` means that it has none.
fn password(url: &str) -> Option<String> {
    let authority = url.split_once("://")?.1.split('/').next()?;
    let (user, _) = authority.rsplit_once('@')?;
    let (_, password) = user.split_once(':')?;
    (!password.is_empty()).then(|| password.to_owned())
}
