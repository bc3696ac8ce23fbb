//! The scaling formula: the number of instances to create or to delete.
//!
//! docs/spec/fleeting.md, section 7.5, describes gitlab-runner's formula. The tests list the differences and their
//! reasons.

use serde::{Deserialize, Serialize};

/// Inputs of the formula. The letters are those of docs/spec/fleeting.md, section 7.5.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Inputs {
    /// N: number of instances that can run jobs now or later, including requested ones.
    pub instances: u64,
    /// A: number of these instances' slots that jobs hold.
    pub acquired: u64,
    /// P: number of slots for which queued jobs wait.
    pub waiting: u64,
    /// Number of free slots in which no queued job fits. They count as idle.
    pub unusable: u64,
    /// R: number of reservations that protect idle slots from deletion.
    pub reserved: u64,
    /// U: number of these instances' slots that will not be assigned anymore.
    pub unavailable: u64,
    /// I: target number of idle slots of the policy or the forecast, whichever is greater.
    pub idle_count: u64,
    /// Number of idle slots to keep if they exist. They are not created.
    #[serde(skip_serializing_if = "is_zero")]
    pub retained_idle: u64,
    /// K: number of slots per instance.
    pub capacity: u64,
    /// Number of slots that jobs can use on a new instance: `capacity`, or `max_use_count` if that is lower.
    pub usable: u64,
    /// f: idle slots as a factor of the slots in use.
    pub scale_factor: f64,
    /// L: maximum number of idle slots by f. 0 means no limit.
    pub scale_factor_limit: u64,
}

/// Returns the number of idle slots that should exist in addition to slots for queued jobs.
#[must_use]
pub fn idle_target(inputs: &Inputs) -> u64 {
    let in_use = inputs.acquired + inputs.waiting;
    let part = if inputs.scale_factor > 0.0 { ceiling(inputs.scale_factor * to_float(in_use)) } else { 0 };
    let part = if inputs.scale_factor_limit > 0 { part.min(inputs.scale_factor_limit) } else { part };
    inputs.idle_count.max(part)
}

/// Returns the number of instances to create (positive) or to delete (negative), before limits.
///
/// Reservations prevent deletions, but create no instances.
#[must_use]
pub fn required(inputs: &Inputs) -> i64 {
    let (existing, wanted) = existing_and_wanted_slots(inputs);
    if wanted >= existing {
        return signed((wanted - existing).div_ceil(inputs.usable.max(1)));
    }
    -signed(surplus(inputs) / inputs.capacity.max(1))
}

/// Number of slots that are neither wanted, reserved nor retained.
///
/// An instance without jobs is surplus if it offers at most this many slots.
#[must_use]
pub fn surplus(inputs: &Inputs) -> u64 {
    let (existing, _) = existing_and_wanted_slots(inputs);
    // Any idle slot satisfies a reservation, including a slot of the idle target. Upstream's taskscaler does the same
    // since its merge request 52.
    let with_reservations =
        Inputs { unusable: inputs.unusable.max(inputs.reserved).max(inputs.retained_idle), ..*inputs };
    existing.saturating_sub(existing_and_wanted_slots(&with_reservations).1)
}

fn existing_and_wanted_slots(inputs: &Inputs) -> (u64, u64) {
    let existing = inputs.instances.saturating_mul(inputs.capacity.max(1));
    // A surplus of unavailable slots must not create demand. Upstream's taskscaler had this defect until its merge
    // request 49.
    let unavailable = inputs.unavailable.min(existing.saturating_sub(inputs.acquired));
    let busy = inputs.acquired.saturating_add(inputs.waiting).saturating_add(unavailable);
    (existing, busy.saturating_add(idle_target(inputs).max(inputs.unusable)))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
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
    reason = "the cast saturates at large values, and no value is below 0"
)]
fn ceiling(value: f64) -> u64 {
    value.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// gitlab-runner's formula of 2023 (docs/spec/fleeting.md, section 7.5).
    fn upstream(i: &Inputs, max: u64) -> i64 {
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

    fn muster(i: &Inputs, max: u64) -> i64 {
        let required = required(i);
        let headroom = signed(max.saturating_sub(i.instances));
        if max > 0 { required.min(headroom.max(0)).max(required.min(0)) } else { required }
    }

    fn inputs(instances: u64, acquired: u64, capacity: u64) -> Inputs {
        Inputs { instances, acquired, capacity, usable: capacity, ..Inputs::default() }
    }

    #[track_caller]
    fn assert_same(inputs: Inputs, max: u64, expected: i64) {
        assert_eq!((upstream(&inputs, max), muster(&inputs, max)), (expected, expected), "{inputs:?}");
    }

    #[track_caller]
    fn assert_differs(inputs: Inputs, of_upstream: i64, of_muster: i64, reason: &str) {
        assert_eq!((upstream(&inputs, 0), muster(&inputs, 0)), (of_upstream, of_muster), "{reason}: {inputs:?}");
    }

    #[test]
    fn f01_idle_count_is_rounded_up_to_instances() {
        assert_same(Inputs { idle_count: 7, ..inputs(0, 0, 3) }, 0, 3);
    }

    #[test]
    fn f02_used_and_idle_slots_need_no_more_instances() {
        assert_same(Inputs { idle_count: 2, ..inputs(3, 7, 3) }, 0, 0);
    }

    #[test]
    fn f03_max_instances_limits_creations() {
        assert_same(Inputs { waiting: 30, ..inputs(4, 11, 3) }, 6, 2);
    }

    #[test]
    fn f04_nothing_is_created_at_max_instances() {
        assert_same(Inputs { waiting: 30, ..inputs(6, 18, 3) }, 6, 0);
    }

    #[test]
    fn f05_max_instances_does_not_limit_deletions() {
        assert_same(inputs(8, 2, 3), 6, -7);
    }

    #[test]
    fn f06_surplus_instance_is_deleted() {
        assert_same(inputs(5, 4, 1), 0, -1);
    }

    #[test]
    fn f07_reservation_prevents_deletion() {
        assert_same(Inputs { reserved: 1, ..inputs(5, 4, 1) }, 0, 0);
    }

    #[test]
    fn f08_reservations_create_no_instances() {
        assert_differs(
            Inputs { reserved: 9, ..inputs(5, 4, 1) },
            8,
            0,
            "upstream creates 8 instances for the reservations",
        );
    }

    #[test]
    fn f09_scale_factor_applies_to_slots_in_use() {
        let reason = "the documentation says that f is a factor of the slots in use; upstream compares it with all slots, so \
                      that f <= 1 has no effect";
        assert_differs(Inputs { scale_factor: 0.5, ..inputs(10, 10, 1) }, 0, 5, reason);
    }

    #[test]
    fn f10_scale_factor_can_exceed_one() {
        assert_differs(
            Inputs { scale_factor: 1.5, ..inputs(10, 10, 1) },
            5,
            15,
            "15 idle slots in addition to 10 in use, not 15 in total",
        );
    }

    #[test]
    fn f11_scale_factor_limit_applies_to_idle_slots() {
        let inputs = Inputs { scale_factor: 1.5, scale_factor_limit: 12, ..inputs(10, 10, 1) };
        assert_differs(inputs, 2, 12, "12 idle slots in addition to 10 in use, not 12 in total");
    }

    #[test]
    fn f12_idle_count_and_scale_factor_are_not_added() {
        let inputs = Inputs { scale_factor: 3.0, scale_factor_limit: 12, idle_count: 4, ..inputs(10, 10, 1) };
        assert_differs(
            inputs,
            4,
            12,
            "the greater of idle_count (4) and the limited factor (12); upstream compares idle_count with 12 slots in total",
        );
    }

    #[test]
    fn f13_unavailable_slots_do_not_count_as_capacity() {
        assert_same(Inputs { unavailable: 3, ..inputs(2, 1, 4) }, 0, -1);
    }

    #[test]
    fn f14_queued_jobs_beyond_the_available_slots_need_an_instance() {
        assert_same(Inputs { unavailable: 3, waiting: 5, ..inputs(2, 1, 4) }, 0, 1);
    }

    #[test]
    fn f15_unavailable_slots_create_no_instances() {
        assert_differs(
            Inputs { unavailable: 1, ..inputs(0, 0, 1) },
            1,
            0,
            "upstream created instances without limit here until its merge request 49",
        );
    }

    #[test]
    fn queued_jobs_do_not_reduce_idle_target() {
        let inputs = Inputs { waiting: 3, idle_count: 5, ..inputs(0, 0, 1) };
        let reason =
            "queued jobs take the first slots, so 5 idle slots are missing; upstream requests 3 of them only later";
        assert_differs(inputs, 5, 8, reason);
    }

    #[test]
    fn reservations_and_idle_slots_are_not_added() {
        assert_eq!(required(&Inputs { idle_count: 2, reserved: 10, ..inputs(12, 0, 1) }), -2);
        assert_eq!(required(&Inputs { idle_count: 4, reserved: 2, ..inputs(12, 0, 1) }), -8);
    }

    #[test]
    fn huge_scale_factor_saturates() {
        let inputs = Inputs { scale_factor: 1e30, ..inputs(2, 2, 1) };
        assert_eq!((required(&inputs), surplus(&inputs)), (i64::MAX, 0));
    }

    #[test]
    fn new_instance_counts_with_its_usable_slots() {
        let inputs = Inputs { waiting: 8, usable: 2, ..inputs(0, 0, 4) };
        assert_eq!(required(&inputs), 4, "max_use_count 2: two jobs each, though there are four slots");
    }

    proptest::proptest! {
        #[test]
        fn one_round_satisfies_the_formula(n in 0u64..50, a in 0u64..200, p in 0u64..200, r in 0u64..50, k in 1u64..6, i in 0u64..30) {
            let a = a.min(n * k);
            let inputs = Inputs { waiting: p, reserved: r, idle_count: i, ..inputs(n, a, k) };
            let required_now = required(&inputs);
            let afterwards = Inputs { instances: n.saturating_add_signed(required_now), ..inputs };
            proptest::prop_assert_eq!(required(&afterwards), 0);
        }
    }
}
