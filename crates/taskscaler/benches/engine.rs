//! Time per event of a large fleet, and memory per instance and per queued job.
//!
//! cargo bench -p muster-taskscaler
//!
//! Both fleets have 5,000 instances, all slots in use, and 20,000 queued jobs. Instances of the first fleet have one
//! slot, those of the second fleet have eight. Each time includes all effects of the event.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]
#![expect(clippy::unwrap_used, reason = "a benchmark panics if it fails")]
#![expect(
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a benchmark measures time, and a wrong index ends it"
)]

#[path = "../tests/counting/mod.rs"]
mod counting;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use muster_fleeting::model::{InstanceId, InstanceState};
use muster_taskscaler::config::{Config, GroupConfig, Throttle};
use muster_taskscaler::engine::Engine;
use muster_taskscaler::event::{Action, Event};
use muster_taskscaler::time::{Now, Time};
use muster_taskscaler::types::{GroupId, ResourceRequest, SlotRequest, StickyContextId, TaskKey};

const INSTANCES: u32 = 5_000;
const WAITING: usize = 20_000;
/// The only instance group.
const G: GroupId = GroupId(0);

struct Fleet {
    engine: Engine,
    /// Current time in milliseconds. Each event advances it by one.
    at: u64,
    /// Number of the latest `List` action.
    call: u64,
}

impl Fleet {
    fn now(&mut self) -> Now {
        self.at += 1;
        Now::steady(Time::from_millis(self.at), 1_772_409_600)
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        let now = self.now();
        self.engine.handle(now, event);
        self.drain()
    }

    fn drain(&mut self) -> Vec<Action> {
        black_box(self.engine.decisions());
        black_box(self.engine.changes());
        let actions = self.engine.actions();
        for action in &actions {
            if let Action::List { call, .. } = action {
                self.call = *call;
            }
        }
        actions
    }

    fn acquire(&mut self, job: usize, request: SlotRequest) {
        let (now, key) = (self.now(), key(job));
        self.engine.admit(key.clone());
        self.engine.acquire(now, key, &request).unwrap();
        self.drain();
    }
}

fn running_instances() -> Vec<(InstanceId, InstanceState)> {
    (0..INSTANCES)
        .map(|n| (InstanceId::new(format!("projects/p/zones/z/instances/runner-{n:08}")), InstanceState::Running))
        .collect()
}

fn key(job: usize) -> TaskKey {
    TaskKey::new(format!("runner-{job:016}"))
}

fn print_times(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |quantile: usize| times[(times.len() - 1) * quantile / 100];
    println!("{name:<44} median {:>9.1?}  p99 {:>9.1?}  max {:>9.1?}", at(50), at(99), at(100));
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

fn mixed_size_request(job: usize) -> SlotRequest {
    let cpu_milli = [300, 700, 1000, 2500, 400, 800, 4000, 900][job % 8];
    SlotRequest {
        resources: ResourceRequest { cpu_milli: Some(cpu_milli), memory_bytes: None },
        sticky_context: Some(StickyContextId(job as u64 % 500)),
        ..SlotRequest::default()
    }
}

fn main() {
    let group = GroupConfig { throttle: Throttle { limit: -1, burst: 0 }, ..GroupConfig::new("main", INSTANCES) };
    let mut config = Config::new(group);
    config.unmanaged = muster_taskscaler::config::UnmanagedPolicy::Adopt;
    println!("{INSTANCES} instances with one slot in use, {WAITING} queued jobs");
    measure(config.clone(), INSTANCES as usize, |_| SlotRequest::default());
    config.capacity = NonZeroU32::new(8).unwrap();
    config.density.slot.cpu_milli = Some(1000);
    println!(
        "{INSTANCES} instances with eight slots in use, {WAITING} queued jobs of one to four slots with sticky contexts"
    );
    measure(config, INSTANCES as usize * 8, mixed_size_request);
}

fn measure(config: Config, running: usize, request: fn(usize) -> SlotRequest) {
    let engine = Engine::new(config, Now::steady(Time::ZERO, 1_772_409_600));
    let mut fleet = Fleet { engine, at: 0, call: 0 };
    let before = counting::allocated();
    fleet.handle(Event::PluginUp { group: G, max_size: 0 });
    let call = fleet.call;
    fleet.handle(Event::Listed { group: G, call, result: Ok(running_instances()) });
    for (id, _) in running_instances() {
        fleet.handle(Event::Prepared { group: G, id, result: Ok(()) });
    }
    for job in 0..running {
        fleet.acquire(job, SlotRequest::default());
    }
    let instance_bytes = counting::allocated() - before;
    let before = counting::allocated();
    let enqueue_times: Vec<Duration> =
        (0..WAITING).map(|job| timed(|| fleet.acquire(running + job, request(job))).0).collect();
    let queue_bytes = counting::allocated() - before;
    print_times("job is queued", enqueue_times);
    let ends: Vec<Duration> =
        (0..10_000.min(running)).map(|job| timed(|| fleet.handle(Event::Release { key: key(job) })).0).collect();
    print_times("job ends, next job is assigned", ends);
    // The driver sends these events in this order.
    let cancellations: Vec<Duration> = (0..5_000)
        .map(|job| {
            let key = key(running + WAITING - 1 - job);
            timed(|| {
                fleet.handle(Event::Unreserve { key: key.clone() });
                fleet.handle(Event::Cancel { key });
            })
            .0
        })
        .collect();
    print_times("queued job is canceled", cancellations);
    let ticks: Vec<Duration> = (0..1_000).map(|_| timed(|| fleet.handle(Event::Tick)).0).collect();
    print_times("tick", ticks);
    let mut lists = Vec::new();
    for _ in 0..300 {
        fleet.at += 120_000;
        fleet.handle(Event::Tick);
        let (call, all) = (fleet.call, running_instances());
        lists.push(timed(|| fleet.handle(Event::Listed { group: G, call, result: Ok(all) })).0);
    }
    // Each list is the same work. The best of three excludes interruptions by other processes.
    let best = lists.chunks_exact(3).filter_map(|three| three.iter().min().copied()).collect();
    print_times("list of all instances without changes", lists);
    print_times("same, best of three", best);
    println!("bytes per instance {}, per queued job {}\n", instance_bytes / INSTANCES as usize, queue_bytes / WAITING);
}
