//! The demo's load: waves of jobs, the same for the same seed.

use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::{GitFacts, NewPipeline, NoFiles, ProjectFacts, SharedSources};
use muster_job::ProjectId;
use muster_pipeline::context::Context;

/// Jobs of one pipeline, and how long after the one before it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wave {
    pub(super) after: Duration,
    /// How long each job works.
    pub(super) jobs: Vec<Duration>,
}

/// Waves: a burst, single jobs, a pause long enough for instances to go, and again.
#[derive(Debug)]
pub(super) struct Load {
    random: u64,
    wave: usize,
    left: Option<usize>,
    burst: usize,
}

/// Waves of a tide.
const TIDE: usize = 8;
/// Before a burst: idle instances have gone then.
const EBB: Duration = Duration::from_millis(3500);
/// Between the single jobs.
const TRICKLE: Duration = Duration::from_millis(900);
/// The shortest job, and how much longer the others are at most, in milliseconds.
const WORK_MS: (u64, u64) = (400, 1400);

impl Load {
    /// `jobs` in all (none: without an end), bursts of `burst`.
    pub(super) fn new(seed: u64, jobs: Option<usize>, burst: usize) -> Self {
        Self { random: seed.wrapping_add(1), wave: 0, left: jobs, burst: burst.max(1) }
    }

    /// From 0 to `below`, without it (SplitMix64).
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }
}

impl Iterator for Load {
    type Item = Wave;

    fn next(&mut self) -> Option<Wave> {
        let (after, wanted) = match self.wave % TIDE {
            0 if self.wave == 0 => (Duration::ZERO, self.burst),
            0 => (EBB, self.burst),
            _ => (TRICKLE, 1 + usize::try_from(self.random(2)).unwrap_or(0)),
        };
        self.wave += 1;
        let n = self.left.map_or(wanted, |left| left.min(wanted));
        if let Some(left) = &mut self.left {
            *left -= n;
        }
        let work = (0..n).map(|_| Duration::from_millis(WORK_MS.0 + self.random(WORK_MS.1))).collect();
        (n > 0).then_some(Wave { after, jobs: work })
    }
}

/// Why there is no pipeline of a wave.
#[derive(Debug, thiserror::Error)]
#[error("a defect: the demo's pipeline is none: {0}")]
pub(super) struct LoadError(String);

/// The pipeline of a wave. Its jobs need no repository, no network, and no program but a shell and `sleep`.
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
    fn the_same_seed_gives_the_same_waves_and_a_bound_holds() {
        let waves = |seed| Load::new(seed, Some(40), 9).collect::<Vec<_>>();
        assert_eq!(waves(3), waves(3));
        assert_ne!(waves(3), waves(4));
        let all = waves(3);
        assert_eq!(all.iter().map(|wave| wave.jobs.len()).sum::<usize>(), 40);
        assert_eq!((all[0].jobs.len(), all[TIDE].after), (9, EBB));
        assert_eq!(Load::new(1, None, 4).take(1000).count(), 1000, "without a bound it goes on");
    }

    #[test]
    fn each_wave_is_a_pipeline() {
        let wave = Wave { after: Duration::ZERO, jobs: vec![Duration::from_millis(1234); 3] };
        let pipeline = pipeline(&wave).unwrap();
        assert_eq!(pipeline.compiled.jobs.len(), 3);
    }
}
