//! Fuzzing with the stable toolchain: parsers of untrusted bytes must not panic on random changes of samples.
//!
//! `scripts/fuzz` runs all tests that are named `fuzz_...`. By default, a test runs one batch of [`CASES`] cases. If
//! `MUSTER_TEST_FUZZ_SECONDS` is set, the test runs batches until this time has passed. `MUSTER_TEST_SEED=n` sets the
//! seed of the first batch.

use std::fmt::Write;
use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Number of cases per batch. Each batch has its own seed.
const CASES: u32 = 256;
const MAX_BYTES: usize = 16 * 1024;
const MAX_CHANGES: usize = 12;
const MAX_SHRINK_STEPS: u32 = 4096;

const SECONDS: &str = "MUSTER_TEST_FUZZ_SECONDS";
const SEED: &str = "MUSTER_TEST_SEED";

/// Samples and words from which inputs are created.
#[derive(Debug, Clone, Copy)]
pub struct Corpus<'a> {
    /// Valid inputs.
    pub samples: &'a [&'a [u8]],
    /// Texts with a meaning for the parser, such as keywords and brackets.
    pub words: &'a [&'a str],
}

/// Change of a sample. [`apply`] takes the position and the argument modulo the number of choices.
#[derive(Debug, Clone, Copy)]
struct Change {
    kind: u8,
    at: u32,
    argument: u32,
}

/// Calls `entry` with inputs that are created from the corpus.
///
/// # Panics
/// If `entry` panics. The message contains the smallest such input.
#[expect(clippy::print_stdout, reason = "a test prints its seed")]
pub fn fuzz(name: &str, corpus: Corpus<'_>, entry: impl Fn(&[u8])) {
    let seconds = env_number(SECONDS).map(Duration::from_secs);
    let first = env_number(SEED).unwrap_or_else(|| rand::random::<u32>().into());
    println!("{name}: {SEED}={first}");
    let start = Instant::now();
    let slowest = std::cell::Cell::new((Duration::ZERO, 0));
    let mut seed = first;
    loop {
        let run = |input: &[u8]| {
            let entry_start = Instant::now();
            entry(input);
            if entry_start.elapsed() > slowest.get().0 {
                slowest.set((entry_start.elapsed(), input.len()));
            }
        };
        if let Some((reason, input)) = run_batch(seed, corpus, run) {
            panic!("{name}: {reason}\nset {SEED}={seed} to repeat it; the smallest input is:\n{}", literal(&input));
        }
        seed = seed.wrapping_add(1);
        if seconds.is_none_or(|seconds| start.elapsed() >= seconds) {
            break;
        }
    }
    let (longest, bytes) = slowest.get();
    let cases = seed.wrapping_sub(first).saturating_mul(CASES.into());
    println!("{name}: {cases} cases, the slowest took {} ms ({bytes} bytes)", longest.as_millis());
}

fn env_number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

fn run_batch(seed: u64, corpus: Corpus<'_>, entry: impl Fn(&[u8])) -> Option<(String, Vec<u8>)> {
    let config =
        Config { cases: CASES, failure_persistence: None, max_shrink_iters: MAX_SHRINK_STEPS, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let change = (0..KINDS, proptest::num::u32::ANY, proptest::num::u32::ANY);
    let change = change.prop_map(|(kind, at, argument)| Change { kind, at, argument });
    let changes = proptest::collection::vec(change, 0..=MAX_CHANGES);
    let inputs = (proptest::num::u32::ANY, changes);
    let result = runner.run(&inputs, |(sample, changes)| {
        entry(&input(corpus, sample, &changes));
        Ok(())
    });
    match result {
        Ok(()) => None,
        Err(TestError::Fail(reason, (sample, changes))) => Some((reason.to_string(), input(corpus, sample, &changes))),
        Err(TestError::Abort(reason)) => Some((reason.to_string(), Vec::new())),
    }
}

const KINDS: u8 = 9;

fn input(corpus: Corpus<'_>, sample: u32, changes: &[Change]) -> Vec<u8> {
    let mut input = pick(corpus.samples, sample).copied().unwrap_or_default().to_vec();
    for change in changes {
        apply(corpus, *change, &mut input);
        input.truncate(MAX_BYTES);
    }
    input
}

fn pick<T>(all: &[T], number: u32) -> Option<&T> {
    all.get(usize::try_from(number).ok()?.checked_rem(all.len())?)
}

fn apply(corpus: Corpus<'_>, Change { kind, at, argument }: Change, input: &mut Vec<u8>) {
    let size = |number: u32| usize::try_from(number).unwrap_or_default();
    let at = size(at) % (input.len() + 1);
    let end = (at + 1 + size(argument) % 64).min(input.len());
    let low = argument.to_le_bytes()[0];
    match kind {
        0 => drop(input.drain(at..end)),
        1 => input.insert(at, low),
        2 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << (low % 8);
            }
        }
        3 => input.truncate(at),
        4 => {
            let word = pick(corpus.words, argument).copied().unwrap_or_default();
            input.splice(at..at, word.bytes());
        }
        5 => {
            let copy: Vec<u8> = input.get(at..end).unwrap_or_default().to_vec();
            input.splice(end..end, copy.repeat(1 + size(argument) % 3));
        }
        // Nests brackets deeply, for example.
        6 => {
            let word = pick(corpus.words, argument).copied().unwrap_or("[");
            input.splice(at..at, word.repeat(1 + size(argument >> 8) % 300).bytes());
        }
        7 => {
            let other = pick(corpus.samples, argument).copied().unwrap_or_default();
            let from = size(argument >> 8) % (other.len() + 1);
            let to = (from + 128).min(other.len());
            input.splice(at..at, other.get(from..to).unwrap_or_default().iter().copied());
        }
        _ => {
            let numbers =
                ["0", "-1", "255", "65536", "2147483648", "-9223372036854775808", "18446744073709551616", "1e999"];
            input.splice(at..end, pick(&numbers, argument).copied().unwrap_or_default().bytes());
        }
    }
}

fn literal(input: &[u8]) -> String {
    let mut text = String::from("b\"");
    for byte in input {
        let _ = write!(text, "{}", byte.escape_ascii());
    }
    text + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORPUS: Corpus<'static> = Corpus { samples: &[b"key: value", b""], words: &["[", ": "] };

    #[test]
    fn failure_has_smallest_input_and_reproducible_seed() {
        let fails = |input: &[u8]| assert!(!input.contains(&b'['), "a bracket");
        let seed = (0..100).find(|seed| run_batch(*seed, CORPUS, fails).is_some()).unwrap();
        let (reason, smallest) = run_batch(seed, CORPUS, fails).unwrap();
        assert!(reason.contains("a bracket") && smallest.contains(&b'['), "{reason} {smallest:?}");
        assert_eq!(run_batch(seed, CORPUS, fails).unwrap().1, smallest);
        assert!(smallest.len() <= "key: value[".len(), "{smallest:?}");
    }

    #[test]
    fn changed_inputs_stay_within_size_limit() {
        let samples: [&[u8]; 3] = [b"", b"x", &[b'y'; MAX_BYTES]];
        for kind in 0..KINDS {
            for at in [0, 1, u32::MAX] {
                for argument in [0, 1, 0xffff, u32::MAX] {
                    for sample in 0..3 {
                        let corpus = Corpus { samples: &samples, words: &["word"] };
                        assert!(input(corpus, sample, &[Change { kind, at, argument }]).len() <= MAX_BYTES);
                    }
                }
            }
        }
    }
}
