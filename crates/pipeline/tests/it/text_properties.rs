//! Property tests of globs, durations, patterns, slugs and variable expansion: no panic, and guarantees about the
//! results.

use muster_job::Variable;
use muster_pipeline::context::Context;
use muster_pipeline::expand::{self, Unknown};
use muster_pipeline::glob::Glob;
use muster_pipeline::ref_match::RefPattern;
use muster_pipeline::{duration, layers, regexp, slug};
use proptest::prelude::*;

proptest! {
    #[test]
    fn globs_never_panic(pattern in "[a-c*?/{},\\[\\]!^\\\\é-]{0,24}", path in "[a-cé/\n]{0,12}") {
        if let Ok(glob) = Glob::new(&pattern) {
            let _ = glob.is_match(&path);
            let _ = glob.exists_in(&[path.clone()].into());
        }
        if let Ok(glob) = Glob::of_include(&pattern) {
            let _ = glob.is_match(&path);
        }
    }

    #[test]
    fn path_matches_itself_and_the_wildcard_of_its_directory(path in "[a-z.]{1,5}(/[a-z.]{1,5}){0,3}") {
        prop_assert!(Glob::new(&path).is_ok_and(|glob| glob.is_match(&path)));
        prop_assert!(Glob::new("**/*").is_ok_and(|glob| glob.is_match(&path)));
        let directory = path.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
        let star = format!("{directory}*");
        prop_assert!(Glob::new(&star).is_ok_and(|glob| glob.is_match(&path)));
    }

    #[test]
    fn durations_never_panic(text in "\\PC{0,40}", amount in any::<u64>(), unit in "s|min|h|day|weeks|mo|yr") {
        let _ = duration::parse(&text);
        let _ = duration::parse(&format!("{amount} {unit} and {amount}{unit}"));
    }

    #[test]
    fn whole_units_are_converted_exactly(weeks in 0u64..1000, hours in 0u64..1000, seconds in 0u64..1000) {
        let expected = weeks * 604_800 + hours * 3600 + seconds;
        let parsed = duration::parse(&format!("{weeks} weeks, {hours}h and {seconds} sec"));
        prop_assert_eq!(parsed.map(|duration| duration.as_secs()), Ok(expected));
    }

    #[test]
    fn slugs_have_valid_lengths_and_characters(text in "\\PC{0,90}") {
        let has_valid_chars = |slug: &str| slug.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        let plain = slug::slug(&text);
        prop_assert!(plain.len() <= 63 && has_valid_chars(&plain) && !plain.starts_with('-') && !plain.ends_with('-'), "{}", plain);
        let environment = slug::environment_slug(&text);
        prop_assert!(environment.len() <= 24 && has_valid_chars(&environment), "{}", environment);
        prop_assert!(environment.starts_with(|char: char| char.is_ascii_lowercase()), "{}", environment);
    }

    #[test]
    fn expansion_never_panics_and_keeps_unknown_references(text in "[$%{}A-C_é ]{0,30}") {
        prop_assert_eq!(expand::expand_text(&text, &|_| None, Unknown::Keep), text.clone());
        prop_assert!(expand::expand_text(&text, &|_| None, Unknown::Empty).len() <= text.len());
        let has_reference = expand::references(&text).next().is_some();
        prop_assert_eq!(has_reference, expand::expand_text(&text, &|_| None, Unknown::Empty) != text);
    }

    #[test]
    fn expanding_any_set_of_variables_terminates(values in prop::collection::vec("[$%{}A-F ]{0,12}", 0..6)) {
        let names = ["A", "B", "C", "D", "E", "F"];
        let mut variables: Vec<Variable> =
            names.iter().zip(values).map(|(name, value)| Variable::public(*name, value)).collect();
        expand::expand_all(&mut variables);
    }

    #[test]
    fn patterns_and_refs_never_panic(text in "[a-c(){}\\[\\]|*+?.\\\\^$&~:pP0-9,@/-]{0,24}") {
        let _ = regexp::compile(&text);
        if let Ok(pattern) = RefPattern::parse(&text) {
            let _ = pattern.matches(&Context::default());
        }
        let _ = layers::scope_matches(&text, "review/a");
    }
}
