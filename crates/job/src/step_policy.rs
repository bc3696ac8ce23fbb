//! Policy of an operator: which steps a job may call, and what limits apply to them.

use serde::{Deserialize, Serialize};

use crate::StepReference;

/// Rules for the steps of jobs. The first rule that matches a step decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepPolicy {
    /// Path of the policy file, for messages.
    pub file: String,
    /// Rules in the order of the file.
    pub rules: Vec<PolicyRule>,
    /// Number of the policy file's line with `default = "deny"`, which denies the steps that no rule matches. `None`
    /// means that these steps are allowed.
    pub denied_by_default: Option<u64>,
    /// Limits of the processes of jobs.
    pub limits: StepLimits,
}

/// A rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyRule {
    /// Line in the policy file.
    pub line: u64,
    /// Pattern over the text of a [`StepReference`]. `*` does not match a slash, `**` does.
    pub pattern: String,
    /// Whether the rule allows the step.
    pub is_allowed: bool,
    /// Reason that the author of the job sees. Empty means that no reason is given.
    pub reason: String,
    /// Limits of the allowed steps and of the steps that they call, in addition to those of the policy.
    #[serde(skip_serializing_if = "StepLimits::is_empty")]
    pub limits: StepLimits,
}

/// Limits of the processes that run code of a job's author.
///
/// The agent measures disk space. The kernel enforces the other limits. A job does not start on a machine whose kernel
/// cannot enforce them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepLimits {
    /// Whether the processes have no network except a separate loopback interface.
    pub no_network: bool,
    /// CPU time of all processes of the job together, in thousandths of a CPU. `None` means no limit.
    pub cpu_milli: Option<u32>,
    /// Memory in bytes, for all processes of the job together. `None` means no limit.
    pub memory_bytes: Option<u64>,
    /// Maximum size in bytes of each file that a process writes. `None` means no limit.
    pub file_bytes: Option<u64>,
    /// Disk space in bytes of the job's directory and its temporary directory together. `None` means no limit.
    pub disk_bytes: Option<u64>,
}

impl StepLimits {
    /// Returns the stricter value of each limit of `self` and `other`.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        fn lower<T: Ord + Copy>(own: Option<T>, other: Option<T>) -> Option<T> {
            own.into_iter().chain(other).min()
        }
        Self {
            no_network: self.no_network || other.no_network,
            cpu_milli: lower(self.cpu_milli, other.cpu_milli),
            memory_bytes: lower(self.memory_bytes, other.memory_bytes),
            file_bytes: lower(self.file_bytes, other.file_bytes),
            disk_bytes: lower(self.disk_bytes, other.disk_bytes),
        }
    }

    /// Returns whether no limit is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A step that the policy does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the step policy of the runner does not allow `{step}`: {rule} at {file}:{line}{reason}; call another step, or ask the operator of the runner to allow it"
)]
pub struct PolicyViolation {
    step: String,
    rule: String,
    file: String,
    line: u64,
    reason: String,
}

impl StepPolicy {
    /// Checks a step that Muster itself puts into jobs, such as `checkout`.
    /// For steps that an author calls, use [`Self::check_call`].
    ///
    /// # Errors
    /// [`PolicyViolation`] if the step is not allowed.
    pub fn check(&self, step: &StepReference) -> Result<(), PolicyViolation> {
        // Built-in steps need no rule, because every job consists of them.
        self.check_with_default(step, matches!(step, StepReference::Builtin { .. }))
    }

    /// Checks a step that an author calls in the `run:` list of a job or in a step file.
    ///
    /// # Errors
    /// [`PolicyViolation`] if the step is not allowed.
    pub fn check_call(&self, step: &StepReference) -> Result<(), PolicyViolation> {
        // Services and uploads need a rule: a service runs commands of the author, and an upload takes files that the
        // author chooses.
        let needs_no_rule = matches!(
            step,
            StepReference::Builtin { name } if !matches!(name.as_str(), "service" | "artifacts/upload")
        );
        self.check_with_default(step, needs_no_rule)
    }

    fn check_with_default(&self, step: &StepReference, needs_no_rule: bool) -> Result<(), PolicyViolation> {
        let text = step.to_string();
        let violation = |rule: String, line: u64, reason: &str| PolicyViolation {
            step: text.clone(),
            rule,
            file: self.file.clone(),
            line,
            reason: if reason.is_empty() { String::new() } else { format!(" ({reason})") },
        };
        match self.rules.iter().find(|rule| rule.matches(&text)) {
            Some(rule) if rule.is_allowed => Ok(()),
            Some(rule) => Err(violation(format!("`deny = {:?}`", rule.pattern), rule.line, &rule.reason)),
            None if needs_no_rule => Ok(()),
            None => match self.denied_by_default {
                Some(line) => Err(violation("no rule matches, and `default = \"deny\"`".to_owned(), line, "")),
                None => Ok(()),
            },
        }
    }
}

impl StepPolicy {
    /// Returns the limits of the rule that allows a step, with the index of the rule. `None` means no limits.
    #[must_use]
    pub fn limits_of(&self, step: &StepReference) -> Option<(usize, &StepLimits)> {
        let text = step.to_string();
        let (position, rule) = self.rules.iter().enumerate().find(|(_, rule)| rule.matches(&text))?;
        (rule.is_allowed && !rule.limits.is_empty()).then_some((position, &rule.limits))
    }
}

impl PolicyRule {
    fn matches(&self, text: &str) -> bool {
        matches_pattern(&self.pattern, text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Char(char),
    /// Any characters except slashes.
    Star,
    /// Any characters.
    DoubleStar,
}

/// Returns whether a text matches a pattern. `*` does not match a slash, `**` does.
///
/// The author of a job chooses the text, so the time is at most proportional to the product of the lengths.
#[must_use]
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let tokens = tokens(pattern);
    // Entry `i` shows whether the first `i` tokens match the text so far.
    let mut reached = vec![false; tokens.len() + 1];
    if let Some(first) = reached.first_mut() {
        *first = true;
    }
    skip_stars(&mut reached, &tokens);
    for character in text.chars() {
        let mut next = vec![false; reached.len()];
        for (index, token) in tokens.iter().enumerate().filter(|(index, _)| reached.get(*index) == Some(&true)) {
            let target = match token {
                Token::Char(expected) if *expected == character => index + 1,
                Token::Star if character != '/' => index,
                Token::DoubleStar => index,
                Token::Char(_) | Token::Star => continue,
            };
            if let Some(entry) = next.get_mut(target) {
                *entry = true;
            }
        }
        skip_stars(&mut next, &tokens);
        reached = next;
    }
    reached.last() == Some(&true)
}

fn tokens(pattern: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for character in pattern.chars() {
        match (character, tokens.last_mut()) {
            ('*', Some(last @ Token::Star)) => *last = Token::DoubleStar,
            ('*', _) => tokens.push(Token::Star),
            (other, _) => tokens.push(Token::Char(other)),
        }
    }
    tokens
}

/// Marks the entry after a reached star, which also matches an empty text.
fn skip_stars(reached: &mut [bool], tokens: &[Token]) {
    for (index, token) in tokens.iter().enumerate() {
        let can_skip = !matches!(token, Token::Char(_)) && reached.get(index) == Some(&true);
        if let Some(next) = reached.get_mut(index + 1).filter(|_| can_skip) {
            *next = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(line: u64, is_allowed: bool, pattern: &str) -> PolicyRule {
        PolicyRule { line, pattern: pattern.to_owned(), is_allowed, ..PolicyRule::default() }
    }

    fn decided(policy: &StepPolicy, reference: &str) -> String {
        let step = StepReference::parse(reference).unwrap();
        policy.check(&step).map_or_else(|violation| violation.to_string(), |()| "allowed".to_owned())
    }

    #[test]
    fn first_matching_rule_decides_and_is_named() {
        let mirror = PolicyRule { reason: "use the mirror".to_owned(), ..rule(3, false, "git:github.com/**") };
        let rules = vec![mirror, rule(7, true, "git:git.example.com/**@v*"), rule(9, true, "local:./**")];
        let policy =
            StepPolicy { file: "/etc/p.toml".to_owned(), rules, denied_by_default: Some(1), ..Default::default() };
        assert_eq!(decided(&policy, "git.example.com/a/b@v2"), "allowed");
        assert_eq!(decided(&policy, "./ci/build"), "allowed");
        let denied = decided(&policy, "github.com/a/b@v2");
        assert!(
            denied.contains(
                "`git:github.com/a/b@v2`: `deny = \"git:github.com/**\"` at /etc/p.toml:3 (use the mirror); "
            ),
            "{denied}"
        );
        for other in ["git.example.com/a/b@main", "http://git.example.com/a/b@v2", "../x", "registry.example.com/a:1"] {
            let denied = decided(&policy, other);
            assert!(denied.contains("no rule matches, and `default = \"deny\"` at /etc/p.toml:1"), "{other}: {denied}");
        }
    }

    #[test]
    fn builtin_steps_need_no_rule_except_calls_of_services_and_uploads() {
        let builtin = |name: &str| StepReference::Builtin { name: name.to_owned() };
        let policy = StepPolicy {
            rules: vec![rule(1, false, "builtin:cache/*")],
            denied_by_default: Some(1),
            ..Default::default()
        };
        assert!(policy.check(&builtin("script")).is_ok());
        assert!(policy.check(&builtin("cache/save")).is_err());
        // A script of a `run:` list is not a built-in step, and a service or an upload needs a rule if a list calls it.
        assert!(policy.check(&StepReference::Script).is_err());
        for (name, is_allowed) in [("service", false), ("artifacts/upload", false), ("artifacts/download", true)] {
            assert_eq!(policy.check_call(&builtin(name)).is_ok(), is_allowed, "{name}");
            assert!(policy.check(&builtin(name)).is_ok(), "{name} is allowed as a step of the job itself");
        }
        let rules = vec![rule(1, true, "builtin:artifacts/*")];
        let policy = StepPolicy { rules, ..policy };
        assert!(policy.check_call(&builtin("artifacts/upload")).is_ok());
    }

    #[test]
    fn limits_are_those_of_the_first_matching_rule() {
        let limits = StepLimits { no_network: true, file_bytes: Some(7), ..StepLimits::default() };
        let rules = vec![
            rule(1, true, "local:./trusted"),
            PolicyRule { limits: limits.clone(), ..rule(2, true, "local:**") },
            PolicyRule { limits: limits.clone(), ..rule(3, false, "script") },
        ];
        let policy = StepPolicy { rules, ..StepPolicy::default() };
        let found = |text: &str| policy.limits_of(&StepReference::parse(text).unwrap());
        assert_eq!(found("./trusted"), None);
        assert_eq!(found("./other"), Some((1, &limits)));
        assert_eq!(found("dist://script"), None, "a denied step has no limits");
        let other = StepLimits { file_bytes: Some(5), memory_bytes: Some(3), ..StepLimits::default() };
        let both = StepLimits { no_network: true, file_bytes: Some(5), memory_bytes: Some(3), ..limits.clone() };
        assert_eq!((limits.and(&other), other.and(&limits)), (both.clone(), both));
    }

    #[test]
    fn stars_match_within_and_across_slashes() {
        for (pattern, text, expected) in [
            ("git:host/**@v*", "git:host/a/b@v1.2", true),
            ("git:host/**@v*", "git:host/a/b@main", false),
            ("git:host/*@v1", "git:host/a/b@v1", false),
            ("oci:host/*:1.*", "oci:host/a:1.2", true),
            ("oci:host/*:1.*", "oci:host/a:1", false),
            ("local:./**", "local:./a", true),
            ("local:./**", "local:./", true),
            ("local:./**", "local:/a", false),
            ("**", "", true),
            ("script", "script", true),
            ("script", "scripts", false),
            ("a[b]?", "a[b]?", true),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
        assert!(
            !matches_pattern(&"**a".repeat(50), &"a".repeat(10_000).replace('a', "b")),
            "a long text must be compared in bounded time"
        );
    }
}
