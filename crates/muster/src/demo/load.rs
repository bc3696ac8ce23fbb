//! The demo's load: waves of jobs, reproducible by a seed.

use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::{GitFacts, NewPipeline, NoFiles, ProjectFacts, SharedSources};
use muster_job::ProjectId;
use muster_pipeline::context::Context;

/// A pipeline, and its delay after the previous pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wave {
    pub(super) after: Duration,
    /// Duration of each job.
    pub(super) jobs: Vec<Duration>,
}

/// Iterator over waves, in cycles: first a burst of jobs, then waves of one or two jobs, then a pause in which idle
/// instances are deleted.
#[derive(Debug)]
pub(super) struct Load {
    random_state: u64,
    wave: usize,
    remaining: Option<usize>,
    burst: usize,
}

const WAVES_PER_CYCLE: usize = 8;
/// Pause before a burst, long enough for the deletion of idle instances.
const CYCLE_PAUSE: Duration = Duration::from_millis(3500);
const SMALL_WAVE_PAUSE: Duration = Duration::from_millis(900);
/// Minimum duration of a job, and the maximum random addition to it, in milliseconds.
const DURATION_MS: (u64, u64) = (400, 1400);

impl Load {
    /// `jobs` is the total number of jobs; `None` means no limit. `burst` is the number of jobs in a burst.
    pub(super) fn new(seed: u64, jobs: Option<usize>, burst: usize) -> Self {
        Self { random_state: seed.wrapping_add(1), wave: 0, remaining: jobs, burst: burst.max(1) }
    }

    /// Returns a random number below `bound` (SplitMix64).
    fn random(&mut self, bound: u64) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random_state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

impl Iterator for Load {
    type Item = Wave;

    fn next(&mut self) -> Option<Wave> {
        let (after, wanted) = match self.wave % WAVES_PER_CYCLE {
            0 if self.wave == 0 => (Duration::ZERO, self.burst),
            0 => (CYCLE_PAUSE, self.burst),
            _ => (SMALL_WAVE_PAUSE, 1 + usize::try_from(self.random(2)).unwrap_or(0)),
        };
        self.wave += 1;
        let n = self.remaining.map_or(wanted, |remaining| remaining.min(wanted));
        if let Some(remaining) = &mut self.remaining {
            *remaining -= n;
        }
        let durations = (0..n).map(|_| Duration::from_millis(DURATION_MS.0 + self.random(DURATION_MS.1))).collect();
        (n > 0).then_some(Wave { after, jobs: durations })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("failed to compile the demo's pipeline (this is a bug, please report it): {0}")]
pub(super) struct LoadError(String);

/// Compiles a pipeline whose jobs need no repository, no network, and no programs except a shell and `sleep`.
pub(super) fn pipeline(wave: &Wave) -> Result<NewPipeline, LoadError> {
    let mut yaml = "variables: {GIT_STRATEGY: none}\n".to_owned();
    for (index, work) in wave.jobs.iter().enumerate() {
        let seconds = work.as_secs_f64();
        yaml.push_str(&format!("job {index}:\n  script: ['echo \"on $HOME\"', 'sleep {seconds:.3}']\n"));
    }
    let context = Context { ref_name: "main".to_owned(), project_path: "muster/demo".to_owned(), ..Context::default() };
    let sources: SharedSources = Arc::new(NoFiles);
    let compiled = muster_pipeline::compile(yaml.as_bytes(), &context, &*sources);
    let pipeline = compiled.pipeline.ok_or_else(|| LoadError(format!("{:?}", compiled.diagnostics)))?;
    let git = GitFacts {
        sha: "0".repeat(40),
        before_sha: "0".repeat(40),
        object_format: "sha1".to_owned(),
        ..GitFacts::default()
    };
    Ok(NewPipeline::new(ProjectFacts::new(ProjectId(1), "muster/demo"), context, pipeline, git, sources))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_waves_with_the_given_number_of_jobs() {
        let waves = |seed| Load::new(seed, Some(40), 9).collect::<Vec<_>>();
        assert_eq!(waves(3), waves(3));
        assert_ne!(waves(3), waves(4));
        let all = waves(3);
        assert_eq!(all.iter().map(|wave| wave.jobs.len()).sum::<usize>(), 40);
        assert_eq!((all[0].jobs.len(), all[WAVES_PER_CYCLE].after), (9, CYCLE_PAUSE));
        assert_eq!(Load::new(1, None, 4).take(1000).count(), 1000, "a load without limit must not end");
    }

    #[test]
    fn wave_compiles_to_a_pipeline_with_its_jobs() {
        let wave = Wave { after: Duration::ZERO, jobs: vec![Duration::from_millis(1234); 3] };
        let pipeline = pipeline(&wave).unwrap();
        assert_eq!(pipeline.compiled.jobs.len(), 3);
    }
}
