//! Paths through a pipeline, selected jobs, and graphs that cannot be scheduled.

use muster_coordinator::schedule::{Graph, GraphError, RunInterval, UnknownJob, critical_path, priority, select};
use muster_pipeline::model::{Pipeline, When};

use super::harness::{Build, EngineHarness, job, pipeline};

fn names(pipeline: &Pipeline) -> Vec<&str> {
    pipeline.jobs.iter().map(|job| job.name.as_str()).collect()
}

#[test]
fn priority_is_the_longest_remaining_path() {
    let model = pipeline("b: b1 b2 b3; t: t1 t2; d: d1").needs("t1", &["b1"]).needs("t2", &[]);
    let graph = Graph::new(&model).unwrap();
    // b1 10, b2 20, b3 30, t1 100, t2 5, d1 1: d1 waits for all, t1 only for b1.
    assert_eq!(priority(&graph, &[10, 20, 30, 100, 5, 1]), [111, 21, 31, 101, 6, 1]);
    assert_eq!(priority(&graph, &[]), [3, 2, 2, 2, 2, 1], "without known durations, each job counts as 1");
}

#[test]
fn critical_path_lists_the_jobs_that_determined_the_end() {
    let model = pipeline("b: b1 b2; t: t1 t2; d: d1 d2").needs("t1", &["b1"]).needs("d2", &["t1"]);
    let graph = Graph::new(&model).unwrap();
    let interval = |start, end| Some(RunInterval { start, end });
    let all = [interval(0, 5), interval(0, 9), interval(5, 7), interval(9, 10), interval(10, 12), interval(7, 8)];
    assert_eq!(critical_path(&graph, &all), [1, 3, 4]);
    let without_t2 = [interval(0, 5), interval(0, 9), interval(5, 30), None, None, interval(30, 31)];
    assert_eq!(critical_path(&graph, &without_t2), [0, 2, 5]);
    let without_second_stage = [interval(0, 5), interval(0, 9), None, None, interval(9, 12), None];
    assert_eq!(critical_path(&graph, &without_second_stage), [1, 4]);
    assert!(critical_path(&graph, &[]).is_empty());
}

#[test]
fn c217_selection_returns_the_named_jobs() {
    let model = pipeline("b: b1 b2; t: t1 t2; d: d1").needs("t1", &["b1"]);
    let selected = |names: &[&str], with_needs| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        select(&model, &names, with_needs)
    };
    assert_eq!(names(&selected(&["t1"], false).unwrap()), ["t1"]);
    assert_eq!(names(&selected(&["t1"], true).unwrap()), ["b1", "t1"]);
    assert_eq!(names(&selected(&["t2"], true).unwrap()), ["b1", "b2", "t2"]);
    assert_eq!(names(&selected(&["d1"], true).unwrap()), ["b1", "b2", "t1", "t2", "d1"]);
    assert_eq!(selected(&["nope"], false), Err(UnknownJob("nope".to_owned())));

    let mut harness = EngineHarness::empty();
    harness.add(selected(&["t1", "t2"], false).unwrap());
    harness.expect("t1:pending t2:pending");
}

#[test]
fn c217_name_selects_all_instances_of_a_parallel_job() {
    let mut model = pipeline("b: b1");
    model.jobs.extend([job("t 1/2", "b", 0), job("t 2/2", "b", 0)]);
    let selected = select(&model, &["t".to_owned()], false).unwrap();
    assert_eq!(names(&selected), ["t 1/2", "t 2/2"]);
}

#[test]
fn c217_on_failure_job_runs_if_named() {
    let model = pipeline("b: b1; t: t1").when("t1", When::OnFailure);
    let mut harness = EngineHarness::empty();
    harness.add_with_requested_jobs(select(&model, &["t1".to_owned()], false).unwrap(), &["t1"]);
    harness.expect("t1:pending");
}

#[test]
fn graphs_with_unsatisfiable_needs_are_rejected() {
    let cycle = pipeline("b: b1 b2 b3").needs("b1", &["b2"]).needs("b2", &["b1"]);
    assert_eq!(Graph::new(&cycle), Err(GraphError::Cycle { job: "b1".to_owned() }));
    let self_dependent = pipeline("b: b1").needs("b1", &["b1"]);
    assert_eq!(Graph::new(&self_dependent), Err(GraphError::Cycle { job: "b1".to_owned() }));
    let unknown = pipeline("b: b1").needs("b1", &["b2"]);
    assert!(matches!(Graph::new(&unknown), Err(GraphError::UnknownNeed { .. })));
    let later = pipeline("b: b1; t: t1").needs("b1", &["t1"]);
    assert!(matches!(Graph::new(&later), Err(GraphError::LaterNeed { .. })));
    let mut outside = pipeline("b: b1");
    outside.jobs[0].stage_index = 7;
    assert!(matches!(Graph::new(&outside), Err(GraphError::UnknownStage { .. })));
}

/// Schedules 5,000 jobs in 100 stages, about half of them with needs. Each job is enqueued once.
#[test]
fn thousands_of_jobs_are_scheduled() {
    let mut model = pipeline("s0:");
    model.stages = (0..100).map(|stage| format!("s{stage}")).collect();
    for stage in 0..100 {
        for index in 0..50 {
            let mut job_of_stage = job(&format!("j{stage}-{index}"), &format!("s{stage}"), stage);
            if index % 2 == 1 && stage > 0 {
                let need = |index| muster_pipeline::model::Need::Job {
                    name: format!("j{}-{index}", stage - 1),
                    artifacts: true,
                    optional: false,
                };
                job_of_stage.needs = Some(vec![need(index), need(index - 1)]);
            }
            model.jobs.push(job_of_stage);
        }
    }
    let graph = Graph::new(&model).unwrap();
    let mut engine = muster_coordinator::schedule::Engine::new();
    let pipeline = muster_job::PipelineId(1);
    let created = muster_coordinator::schedule::Event::PipelineCreated {
        pipeline,
        graph: Box::new(graph),
        options: muster_coordinator::schedule::PipelineOptions::default(),
    };
    let mut actions = engine.apply(created, 0).unwrap();
    let mut enqueued = std::collections::BTreeSet::new();
    while let Some(action) = actions.pop() {
        use muster_coordinator::schedule::{Action, Event, Outcome};
        if let Action::Enqueue { job } = action {
            actions.extend(engine.apply(Event::JobAssigned { job, supports_graceful_cancel: false }, 0).unwrap());
            actions.extend(engine.apply(Event::JobFinished { job, outcome: Outcome::Success }, 0).unwrap());
            assert!(enqueued.insert(job), "{job} must be enqueued only once");
        }
    }
    assert_eq!(enqueued.len(), 5_000);
    assert_eq!(engine.status(pipeline), Some(muster_job::JobStatus::Success));
}
