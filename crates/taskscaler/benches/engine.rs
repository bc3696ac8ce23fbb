//! How long one decision of a large fleet takes, and what a waiting job and an instance weigh.
//!
//!     cargo bench -p muster-taskscaler
//!
//! 5,000 instances of one slot, all in use, and 20,000 jobs that wait: what the largest fleet is asked all day; then the same
//! with eight slots, and jobs of several sizes. Each figure is
//! one event with everything that follows from it (a slot that is freed goes to who waits longest; what is missing is asked
//! for), its decisions, its rows for the store.

#![expect(clippy::print_stdout, reason = "a bench tells its figures")]
#![expect(clippy::unwrap_used, reason = "a bench panics where it fails")]

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
const G: GroupId = GroupId(0);

struct Fleet {
    engine: Engine,
    at: u64,
    call: u64,
}

impl Fleet {
    fn now(&mut self) -> Now {
        self.at += 1;
        Now::steady(Time::from_millis(self.at), 1_772_409_600)
    }

    /// One event with all that follows.
    fn tell(&mut self, event: Event) -> Vec<Action> {
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

    fn want(&mut self, job: usize, request: SlotRequest) {
        let (now, key) = (self.now(), key(job));
        self.engine.admit(key.clone());
        self.engine.acquire(now, key, &request).unwrap();
        self.drain();
    }
}

fn list() -> Vec<(InstanceId, InstanceState)> {
    (0..INSTANCES)
        .map(|n| (InstanceId::new(format!("projects/p/zones/z/instances/runner-{n:08}")), InstanceState::Running))
        .collect()
}

fn key(job: usize) -> TaskKey {
    TaskKey::new(format!("runner-{job:016}"))
}

fn figures(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |quantile: usize| times[(times.len() - 1) * quantile / 100];
    println!("{name:<44} median {:>9.1?}  p99 {:>9.1?}  max {:>9.1?}", at(50), at(99), at(100));
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Slots that a job says it needs: one, or now and then several.
fn mixed(job: usize) -> SlotRequest {
    let cpu_milli = [300, 700, 1000, 2500, 400, 800, 4000, 900][job % 8];
    SlotRequest {
        resources: ResourceRequest { cpu_milli: Some(cpu_milli), memory_bytes: None },
        sticky_context: Some(StickyContextId(job as u64 % 500)),
        ..SlotRequest::default()
    }
}

fn main() {
    let one = GroupConfig { throttle: Throttle { limit: -1, burst: 0 }, ..GroupConfig::new("main", INSTANCES) };
    let mut config = Config::new(one);
    config.unmanaged = muster_taskscaler::config::UnmanagedPolicy::Adopt;
    println!("{INSTANCES} instances of one slot in use, {WAITING} jobs wait");
    measure(config.clone(), INSTANCES as usize, |_| SlotRequest::default());
    config.capacity = NonZeroU32::new(8).unwrap();
    config.density.slot.cpu_milli = Some(1000);
    println!(
        "{INSTANCES} instances of eight slots in use, {WAITING} jobs of one to four slots wait, with sticky contexts"
    );
    measure(config, INSTANCES as usize * 8, mixed);
}

fn measure(config: Config, running: usize, request: fn(usize) -> SlotRequest) {
    let engine = Engine::new(config, Now::steady(Time::ZERO, 1_772_409_600));
    let mut fleet = Fleet { engine, at: 0, call: 0 };
    let before = counting::held();
    fleet.tell(Event::PluginUp { group: G, max_size: 0 });
    let call = fleet.call;
    fleet.tell(Event::Listed { group: G, call, result: Ok(list()) });
    for (id, _) in list() {
        fleet.tell(Event::Prepared { group: G, id, result: Ok(()) });
    }
    for job in 0..running {
        fleet.want(job, SlotRequest::default());
    }
    let instances = counting::held() - before;
    let before = counting::held();
    let waits: Vec<Duration> = (0..WAITING).map(|job| timed(|| fleet.want(running + job, request(job))).0).collect();
    let waiting = counting::held() - before;
    figures("a job comes and waits", waits);
    let ends: Vec<Duration> =
        (0..10_000.min(running)).map(|job| timed(|| fleet.tell(Event::Release { key: key(job) })).0).collect();
    figures("a job ends, the next has its slot", ends);
    // As the driver does it.
    let leaves: Vec<Duration> = (0..5_000)
        .map(|job| {
            let key = key(running + WAITING - 1 - job);
            timed(|| {
                fleet.tell(Event::Unreserve { key: key.clone() });
                fleet.tell(Event::Cancel { key });
            })
            .0
        })
        .collect();
    figures("a waiting job is cancelled", leaves);
    let ticks: Vec<Duration> = (0..1_000).map(|_| timed(|| fleet.tell(Event::Tick)).0).collect();
    figures("time passes", ticks);
    let mut lists = Vec::new();
    for _ in 0..300 {
        fleet.at += 120_000;
        fleet.tell(Event::Tick);
        let (call, all) = (fleet.call, list());
        lists.push(timed(|| fleet.tell(Event::Listed { group: G, call, result: Ok(all) })).0);
    }
    // All do the same work. What takes a millisecond is often cut by another process of the machine: that is not the engine's.
    let best = lists.chunks_exact(3).filter_map(|three| three.iter().min().copied()).collect();
    figures("a list of all instances, nothing new", lists);
    figures("the same, best of three", best);
    println!("bytes per instance {}, per waiting job {}\n", instances / INSTANCES as usize, waiting / WAITING);
}
