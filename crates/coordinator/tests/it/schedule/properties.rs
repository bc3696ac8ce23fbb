//! Properties of the engine over generated pipelines, outcomes and orders of completion.

use muster_pipeline::model::{AutoCancel, Pipeline};
use proptest::collection::vec;
use proptest::prelude::*;

use super::generate::{Step, any_event, auto_cancel, build, specs, steps};
use super::reference::is_non_blocking;
use super::run::{ROOT, Run};

fn run(model: &Pipeline, steps: &[Step], with_user_actions: bool, restarts: bool) -> Run {
    let mut run = Run::new(model.clone());
    steps.iter().for_each(|step| run.step(step, with_user_actions, restarts));
    run
}

fn expect_all_jobs_end(model: &Pipeline, steps: &[Step]) {
    let mut run = run(model, steps, true, true);
    run.drain();
    run.expect_finished_or_manual();
    run.play_all();
    run.expect_finished_or_manual();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Covers events from users, failures and restarts at any time.
    #[test]
    fn every_job_ends(specs in specs(1..40), steps in steps(0..200), cancel in auto_cancel()) {
        expect_all_jobs_end(&build(&specs, cancel), &steps);
    }

    /// Invalid events are rejected and change nothing. The harness checks that the actions of accepted events are
    /// consistent with earlier actions.
    #[test]
    fn invalid_events_change_nothing(specs in specs(1..20), events in vec(any_event(), 0..300)) {
        let mut run = Run::new(build(&specs, AutoCancel::default()));
        for event in events {
            run.harness.now += 2_000;
            let before = run.all_jobs();
            if run.harness.apply(event).is_err() {
                prop_assert_eq!(before, run.all_jobs());
            }
        }
        run.harness.restart();
    }

    #[test]
    fn restarts_change_nothing(specs in specs(1..40), steps in steps(0..200), cancel in auto_cancel()) {
        let model = build(&specs, cancel);
        let mut with_restarts = run(&model, &steps, true, true);
        let mut without_restarts = run(&model, &steps, true, false);
        prop_assert_eq!(with_restarts.all_jobs(), without_restarts.all_jobs());
        with_restarts.drain();
        without_restarts.drain();
        prop_assert_eq!(with_restarts.all_jobs(), without_restarts.all_jobs());
        prop_assert_eq!(with_restarts.finished, without_restarts.finished);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn every_job_of_a_large_pipeline_ends(specs in specs(200..500), steps in steps(500..1500)) {
        expect_all_jobs_end(&build(&specs, AutoCancel::default()), &steps);
    }

    #[test]
    fn jobs_finish_in_the_order_of_needs_and_stages(specs in specs(1..500), steps in steps(0..1500)) {
        let model = build(&specs, AutoCancel::default());
        let mut run = run(&model, &steps, false, false);
        run.drain();
        let mut ended = vec![None; model.jobs.len()];
        run.finished.iter().enumerate().for_each(|(order, &job_index)| ended[job_index] = Some(order));
        for job_index in &run.finished {
            for before in run.reference_models[&ROOT].awaited_jobs(*job_index) {
                prop_assert!(is_non_blocking(&run.jobs(ROOT)[before]), "job {} must not end while job {before} blocks it", job_index);
                prop_assert!(ended[before] <= ended[*job_index], "job {} must not end before job {before}", job_index);
            }
        }
    }
}
