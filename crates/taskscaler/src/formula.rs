//! How many instances are missing, or too many.

use serde::{Deserialize, Serialize};

/// What the answer depends on. The letters are those of fleeting.md 7.5.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Inputs {
    /// N: instances that work or will, with those that were asked for.
    pub instances: u64,
    /// A: slots of them that jobs hold.
    pub acquired: u64,
    /// P: jobs that wait for a slot.
    pub waiting: u64,
    /// Free slots that suit nobody who waits: they are idle ones, and no supply for those.
    pub unusable: u64,
    /// R: promises of a slot that keep an instance from being removed. The idle slots stand for them, too.
    pub reserved: u64,
    /// U: slots of them that will not be given any more.
    pub unavailable: u64,
    /// I: idle slots that are wanted.
    pub idle_count: u64,
    /// Idle slots that stay where they are there, and are not asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub retained_idle: u64,
    /// K: slots of an instance.
    pub capacity: u64,
    /// Slots of a new instance that will be given: K, or fewer where it is used up before.
    pub usable: u64,
    /// f: idle slots as a part of the slots in use.
    pub scale_factor: f64,
    /// L: the most idle slots by f; 0: no limit.
    pub scale_factor_limit: u64,
}

/// The idle slots that are wanted beside the waiting jobs: the floor, or the part of what will be in use.
#[must_use]
pub fn idle_target(inputs: &Inputs) -> u64 {
    let in_use = inputs.acquired + inputs.waiting;
    let part = if inputs.scale_factor > 0.0 { ceiling(inputs.scale_factor * to_float(in_use)) } else { 0 };
    let part = if inputs.scale_factor_limit > 0 { part.min(inputs.scale_factor_limit) } else { part };
    inputs.idle_count.max(part)
}

/// Instances to create (positive) or to remove (negative), before limits. Reservations never create; they only keep.
#[must_use]
pub fn required(inputs: &Inputs) -> i64 {
    let (have, want) = slots(inputs);
    if want >= have {
        return signed((want - have).div_ceil(inputs.usable.max(1)));
    }
    -signed(surplus(inputs) / inputs.capacity.max(1))
}

/// Slots that are neither wanted nor promised. An instance without jobs is too much when it gives no more than these:
/// counted in slots, one with used-up slots can go where, counted in instances as the peer does, it would stay for ever.
#[must_use]
pub fn surplus(inputs: &Inputs) -> u64 {
    let (have, _) = slots(inputs);
    // A promise is kept by any idle slot, also by one that is wanted anyway: the two are not added (taskscaler !52).
    let promised = Inputs { unusable: inputs.unusable.max(inputs.reserved).max(inputs.retained_idle), ..*inputs };
    have.saturating_sub(slots(&promised).1)
}

/// Slots that there are, and those that are wanted or used up.
fn slots(inputs: &Inputs) -> (u64, u64) {
    let have = inputs.instances.saturating_mul(inputs.capacity.max(1));
    // Slots that are used up belong to instances; without those they are no demand (taskscaler !49).
    let unavailable = inputs.unavailable.min(have.saturating_sub(inputs.acquired));
    let busy = inputs.acquired.saturating_add(inputs.waiting).saturating_add(unavailable);
    (have, busy.saturating_add(idle_target(inputs).max(inputs.unusable)))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "counts of slots are far below 2^52")]
fn to_float(value: u64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a factor beyond all counts saturates, and none is below 0"
)]
fn ceiling(value: f64) -> u64 {
    value.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The peer's formula of 2023, exact (fleeting.md 7.5), as the oracle of its table.
    fn peer(i: &Inputs, max: u64) -> i64 {
        let mut demand = i.acquired + i.idle_count.max(i.waiting);
        if i.scale_factor > 0.0 {
            let part = ceiling(i.scale_factor * to_float(i.acquired));
            let part = if i.scale_factor_limit > 0 { part.min(i.scale_factor_limit) } else { part };
            demand = demand.max(part);
        }
        demand += i.unavailable;
        let g = |slots: u64| {
            let missing = signed(slots.div_ceil(i.capacity)) - signed(i.instances);
            if max > 0 && missing > 0 { missing.min((signed(max) - signed(i.instances)).max(0)) } else { missing }
        };
        if g(demand) >= 0 { g(demand) } else { g(demand + i.reserved) }
    }

    /// Muster's, with the limit that the engine puts on creations.
    fn ours(i: &Inputs, max: u64) -> i64 {
        let required = required(i);
        let room = signed(max.saturating_sub(i.instances));
        if max > 0 { required.min(room.max(0)).max(required.min(0)) } else { required }
    }

    fn row(instances: u64, acquired: u64, capacity: u64) -> Inputs {
        Inputs { instances, acquired, capacity, usable: capacity, ..Inputs::default() }
    }

    #[track_caller]
    fn both(inputs: Inputs, max: u64, expected: i64) {
        assert_eq!((peer(&inputs, max), ours(&inputs, max)), (expected, expected), "{inputs:?}");
    }

    #[track_caller]
    fn differs(inputs: Inputs, of_the_peer: i64, of_muster: i64, why: &str) {
        assert_eq!((peer(&inputs, 0), ours(&inputs, 0)), (of_the_peer, of_muster), "{why}: {inputs:?}");
    }

    #[test]
    fn f01_an_idle_floor_is_rounded_up_to_instances() {
        both(Inputs { idle_count: 7, ..row(0, 0, 3) }, 0, 3);
    }

    #[test]
    fn f02_used_and_idle_slots_fill_what_is_there() {
        both(Inputs { idle_count: 2, ..row(3, 7, 3) }, 0, 0);
    }

    #[test]
    fn f03_a_limit_cuts_what_is_created() {
        both(Inputs { waiting: 30, ..row(4, 11, 3) }, 6, 2);
    }

    #[test]
    fn f04_at_the_limit_nothing_is_created() {
        both(Inputs { waiting: 30, ..row(6, 18, 3) }, 6, 0);
    }

    #[test]
    fn f05_a_limit_removes_nothing_that_is_not_too_much() {
        both(row(8, 2, 3), 6, -7);
    }

    #[test]
    fn f06_one_too_many() {
        both(row(5, 4, 1), 0, -1);
    }

    #[test]
    fn f07_a_reservation_keeps_an_instance() {
        both(Inputs { reserved: 1, ..row(5, 4, 1) }, 0, 0);
    }

    #[test]
    fn f08_reservations_never_create() {
        differs(Inputs { reserved: 9, ..row(5, 4, 1) }, 8, 0, "reservations turn -1 into +8 at the peer");
    }

    #[test]
    fn f09_half_of_what_is_used_is_kept_idle() {
        let why =
            "documented: f is the idle part of what is in use; the peer compares it with all, so f <= 1 does nothing";
        differs(Inputs { scale_factor: 0.5, ..row(10, 10, 1) }, 0, 5, why);
    }

    #[test]
    fn f10_a_factor_beyond_one_adds_as_much_idle() {
        differs(Inputs { scale_factor: 1.5, ..row(10, 10, 1) }, 5, 15, "15 idle beside 10 in use, not 15 in all");
    }

    #[test]
    fn f11_the_factors_limit_is_one_of_idle_slots() {
        let inputs = Inputs { scale_factor: 1.5, scale_factor_limit: 12, ..row(10, 10, 1) };
        differs(inputs, 2, 12, "12 idle beside 10 in use, not 12 in all");
    }

    #[test]
    fn f12_floor_and_factor_are_not_added() {
        let inputs = Inputs { scale_factor: 3.0, scale_factor_limit: 12, idle_count: 4, ..row(10, 10, 1) };
        differs(
            inputs,
            4,
            12,
            "the larger of floor (4) and limited factor (12) is idle; the peer's floor wins over its 12 in all",
        );
    }

    #[test]
    fn f13_used_up_slots_are_no_capacity() {
        both(Inputs { unavailable: 3, ..row(2, 1, 4) }, 0, -1);
    }

    #[test]
    fn f14_waiting_jobs_need_slots_beside_the_used_up() {
        both(Inputs { unavailable: 3, waiting: 5, ..row(2, 1, 4) }, 0, 1);
    }

    #[test]
    fn f15_used_up_slots_of_no_instance_create_nothing() {
        differs(Inputs { unavailable: 1, ..row(0, 0, 1) }, 1, 0, "runaway growth at the peer, mended there by !49");
    }

    #[test]
    fn waiting_jobs_do_not_eat_the_idle_floor() {
        let inputs = Inputs { waiting: 3, idle_count: 5, ..row(0, 0, 1) };
        let why = "the waiting take slots as soon as there are some: 5 idle ones are missing then, which the peer sees a boot later";
        differs(inputs, 5, 8, why);
    }

    #[test]
    fn a_promise_and_an_idle_slot_are_not_added() {
        assert_eq!(required(&Inputs { idle_count: 2, reserved: 10, ..row(12, 0, 1) }), -2);
        assert_eq!(required(&Inputs { idle_count: 4, reserved: 2, ..row(12, 0, 1) }), -8);
    }

    #[test]
    fn a_factor_beyond_all_counts_wants_all_there_can_be() {
        let inputs = Inputs { scale_factor: 1e30, ..row(2, 2, 1) };
        assert_eq!((required(&inputs), surplus(&inputs)), (i64::MAX, 0));
    }

    #[test]
    fn an_instance_that_is_used_up_early_counts_for_what_it_gives() {
        let inputs = Inputs { waiting: 8, usable: 2, ..row(0, 0, 4) };
        assert_eq!(required(&inputs), 4, "max_use_count 2: two jobs each, though there are four slots");
    }

    proptest::proptest! {
        /// What was asked for is enough: asked again with it, nothing is missing, and nothing is too much.
        #[test]
        fn one_round_is_enough(n in 0u64..50, a in 0u64..200, p in 0u64..200, r in 0u64..50, k in 1u64..6, i in 0u64..30) {
            let a = a.min(n * k);
            let inputs = Inputs { waiting: p, reserved: r, idle_count: i, ..row(n, a, k) };
            let required_now = required(&inputs);
            let then = Inputs { instances: n.saturating_add_signed(required_now), ..inputs };
            proptest::prop_assert_eq!(required(&then), 0);
        }
    }
}
