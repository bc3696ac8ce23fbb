//! Paths through a pipeline, selected jobs, and graphs that cannot be scheduled.

use std::time::{Duration, Instant};

use muster_coordinator::schedule::{Graph, GraphError, RunInterval, UnknownJob, critical_path, priority, select};
use muster_pipeline::model::{Pipeline, When};

use super::harness::{Build, EngineHarness, job, pipeline};

fn names(pipeline: &Pipeline) -> Vec<&str> {
    pipeline.jobs.iter().map(|job| job.name.as_str()).collect()
}

#[test]
fn priority_is_the_longest_remaining_path() {
    let built = pipeline("b: b1 b2 b3; t: t1 t2; d: d1").needs("t1", &["b1"]).needs("t2", &[]);
    let graph = Graph::new(&built).unwrap();
    // b1 10, b2 20, b3 30, t1 100, t2 5, d1 1: d1 waits for all, t1 only for b1.
    assert_eq!(priority(&graph, &[10, 20, 30, 100, 5, 1]), [111, 21, 31, 101, 6, 1]);
    assert_eq!(priority(&graph, &[]), [3, 2, 2, 2, 2, 1], "unknown durations count jobs");
}

#[test]
fn critical_path_determines_the_end() {
    let built = pipeline("b: b1 b2; t: t1 t2; d: d1 d2").needs("t1", &["b1"]).needs("d2", &["t1"]);
    let graph = Graph::new(&built).unwrap();
    let span = |start, end| Some(RunInterval { start, end });
    let all = [span(0, 5), span(0, 9), span(5, 7), span(9, 10), span(10, 12), span(7, 8)];
    assert_eq!(critical_path(&graph, &all), [1, 3, 4]);
    let without_t2 = [span(0, 5), span(0, 9), span(5, 30), None, None, span(30, 31)];
    assert_eq!(critical_path(&graph, &without_t2), [0, 2, 5]);
    let looked_through = [span(0, 5), span(0, 9), None, None, span(9, 12), None];
    assert_eq!(critical_path(&graph, &looked_through), [1, 4]);
    assert!(critical_path(&graph, &[]).is_empty());
}

#[test]
fn c217_a_part_of_a_pipeline() {
    let built = pipeline("b: b1 b2; t: t1 t2; d: d1").needs("t1", &["b1"]);
    let part = |names: &[&str], with_needs| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        select(&built, &names, with_needs)
    };
    assert_eq!(names(&part(&["t1"], false).unwrap()), ["t1"]);
    assert_eq!(names(&part(&["t1"], true).unwrap()), ["b1", "t1"]);
    assert_eq!(names(&part(&["t2"], true).unwrap()), ["b1", "b2", "t2"]);
    assert_eq!(names(&part(&["d1"], true).unwrap()), ["b1", "b2", "t1", "t2", "d1"]);
    assert_eq!(part(&["nope"], false), Err(UnknownJob("nope".to_owned())));

    let mut harness = EngineHarness::empty();
    harness.add(part(&["t1", "t2"], false).unwrap());
    harness.expect("t1:pending t2:pending");
}

#[test]
fn c217_a_name_stands_for_all_instances_of_a_parallel_job() {
    let mut built = pipeline("b: b1");
    built.jobs.extend([job("t 1/2", "b", 0), job("t 2/2", "b", 0)]);
    let part = select(&built, &["t".to_owned()], false).unwrap();
    assert_eq!(names(&part), ["t 1/2", "t 2/2"]);
}

#[test]
fn c217_an_on_failure_job_runs_when_it_is_named() {
    let built = pipeline("b: b1; t: t1").when("t1", When::OnFailure);
    let mut harness = EngineHarness::empty();
    harness.add_playing(select(&built, &["t1".to_owned()], false).unwrap(), &["t1"]);
    harness.expect("t1:pending");
}

#[test]
fn graphs_that_cannot_finish_are_rejected() {
    let circle = pipeline("b: b1 b2 b3").needs("b1", &["b2"]).needs("b2", &["b1"]);
    assert_eq!(Graph::new(&circle), Err(GraphError::Circle { job: "b1".to_owned() }));
    let itself = pipeline("b: b1").needs("b1", &["b1"]);
    assert_eq!(Graph::new(&itself), Err(GraphError::Circle { job: "b1".to_owned() }));
    let unknown = pipeline("b: b1").needs("b1", &["b2"]);
    assert!(matches!(Graph::new(&unknown), Err(GraphError::UnknownNeed { .. })));
    let later = pipeline("b: b1; t: t1").needs("b1", &["t1"]);
    assert!(matches!(Graph::new(&later), Err(GraphError::LaterNeed { .. })));
    let mut outside = pipeline("b: b1");
    outside.jobs[0].stage_index = 7;
    assert!(matches!(Graph::new(&outside), Err(GraphError::UnknownStage { .. })));
}

/// Schedules 5,000 jobs in 100 stages, half of them with needs, which takes milliseconds if optimized.
///
/// The limit only detects work that grows quadratically.
#[test]
fn scheduling_thousands_of_jobs_takes_linear_time() {
    let mut built = pipeline("s0:");
    built.stages = (0..100).map(|stage| format!("s{stage}")).collect();
    for stage in 0..100 {
        for index in 0..50 {
            let mut made = job(&format!("j{stage}-{index}"), &format!("s{stage}"), stage);
            if index % 2 == 1 && stage > 0 {
                let need = |index| muster_pipeline::model::Need::Job {
                    name: format!("j{}-{index}", stage - 1),
                    artifacts: true,
                    optional: false,
                };
                made.needs = Some(vec![need(index), need(index - 1)]);
            }
            built.jobs.push(made);
        }
    }
    let graph = Graph::new(&built).unwrap();
    let mut engine = muster_coordinator::schedule::Engine::new();
    let begin = Instant::now();
    let pipeline = muster_job::PipelineId(1);
    let created = muster_coordinator::schedule::Event::PipelineCreated {
        pipeline,
        graph: Box::new(graph),
        options: Default::default(),
    };
    let mut actions = engine.apply(created, 0).unwrap();
    let mut done = 0;
    while let Some(action) = actions.pop() {
        use muster_coordinator::schedule::{Action, Event, Outcome};
        if let Action::Enqueue { job } = action {
            actions.extend(engine.apply(Event::JobAssigned { job, supports_graceful_cancel: false }, 0).unwrap());
            actions.extend(engine.apply(Event::JobFinished { job, outcome: Outcome::Success }, 0).unwrap());
            done += 1;
        }
    }
    assert_eq!(done, 5_000);
    assert_eq!(engine.status(pipeline), Some(muster_job::JobStatus::Success));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}
