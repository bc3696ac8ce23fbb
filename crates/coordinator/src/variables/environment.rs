//! The `CI_ENVIRONMENT_*` variables of a job.

use muster_job::Variable;
use muster_pipeline::model::Environment;
use muster_pipeline::slug::environment_slug;

/// Returns the variables of an environment whose name is already expanded.
///
/// The URL is returned as written. Variables in it are expanded together with all others.
pub(super) fn predefined(environment: &Environment) -> Vec<Variable> {
    let action = if environment.action.is_empty() { "start" } else { &environment.action };
    let tier = environment.deployment_tier.as_deref().unwrap_or_else(|| guess_tier(&environment.name));
    let mut variables = vec![
        Variable::public("CI_ENVIRONMENT_NAME", &environment.name),
        Variable::public("CI_ENVIRONMENT_SLUG", environment_slug(&environment.name)),
        Variable::public("CI_ENVIRONMENT_ACTION", action),
        Variable::public("CI_ENVIRONMENT_TIER", tier),
    ];
    if let Some(url) = &environment.url {
        variables.push(Variable::public("CI_ENVIRONMENT_URL", url));
    }
    variables
}

/// Returns the tier of an environment without `deployment_tier`, from its name.
///
/// This is the first tier with a word that the name contains, also inside of another word, or else `other`.
pub(crate) fn guess_tier(name: &str) -> &'static str {
    const WORDS: [(&str, &[&str]); 4] = [
        ("development", &["dev", "review", "trunk"]),
        ("testing", &["test", "tst", "int", "acpt", "accept", "qa", "qc", "control", "quality"]),
        ("staging", &["stg", "stag", "modl", "model", "pre", "demo", "non"]),
        ("production", &["prod", "prd", "live"]),
    ];
    let name = name.to_lowercase();
    WORDS.iter().find(|(_, words)| words.iter().any(|word| name.contains(word))).map_or("other", |(tier, _)| tier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tier_is_derived_from_the_name() {
        for (name, tier) in [
            ("review/feat-1", "development"),
            ("Production", "production"),
            ("pre-prod", "staging"),
            ("staging", "staging"),
            ("qa/eu", "testing"),
            ("acceptance", "testing"),
            ("canary", "other"),
        ] {
            assert_eq!(guess_tier(name), tier, "{name}");
        }
    }
}
