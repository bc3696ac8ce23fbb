//! The target idle capacity according to the active policy and the forecast.

use std::time::Duration;

use crate::forecast::{BUCKET_S, Forecast, ForecastConfig};
use crate::formula::Inputs;
use crate::ledger::{Row, RowKey};
use crate::policy::{IdleTarget, Policies};
use crate::time::Now;

/// Idle slots that the forecast adds to the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ForecastIdle {
    /// Number of idle slots to create or keep.
    pub(super) target: u64,
    /// Number of idle slots to keep if they exist. They are not created.
    pub(super) retained: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Number of slots that jobs hold or wait for.
    pub(super) in_use: u64,
    pub(super) boot: Duration,
    /// Number of slots that have been idle for longer than the policy's idle time.
    pub(super) long_idle: u64,
    pub(super) inputs: Inputs,
}

#[derive(Debug)]
pub(super) struct IdlePlan {
    target: IdleTarget,
    /// `None` means that no policy is active.
    policy: Option<usize>,
    /// Minute since 1970 of the last policy lookup. `None` means that a lookup is due.
    minute: Option<i64>,
    forecast: Option<Forecast>,
    /// Whether no idle capacity is kept, regardless of the policies.
    is_draining: bool,
}

impl IdlePlan {
    pub(super) fn new(forecast: Option<ForecastConfig>) -> Self {
        Self {
            target: IdleTarget::default(),
            policy: None,
            minute: None,
            forecast: forecast.map(Forecast::new),
            is_draining: false,
        }
    }

    pub(super) fn target(&self) -> &IdleTarget {
        &self.target
    }

    /// `None` means that no policy is active.
    pub(super) fn policy(&self) -> Option<usize> {
        self.policy
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(super) fn has_forecast(&self) -> bool {
        self.forecast.is_some()
    }

    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        self.minute = None;
    }

    /// Makes the next [`Self::look_up`] look up the policy, even within the same minute.
    pub(super) fn require_lookup(&mut self) {
        self.minute = None;
    }

    /// Looks up the active policy once a minute. Returns true if another policy became active, and also for the first
    /// lookup and the first one after [`Self::require_lookup`] or [`Self::drain`].
    ///
    /// `None` means that the lookup was not due.
    pub(super) fn look_up(&mut self, now: Now, policies: &Policies) -> Option<bool> {
        let minute = now.unix.div_euclid(60);
        if self.minute == Some(minute) {
            return None;
        }
        let is_first = self.minute.is_none();
        self.minute = Some(minute);
        let (policy, target) = match policies.active_at(now.unix) {
            (_, IdleTarget { placement, .. }) if self.is_draining => {
                (None, IdleTarget { placement, idle_time: Duration::ZERO, ..IdleTarget::default() })
            }
            active => active,
        };
        let has_changed = is_first || policy != self.policy;
        (self.policy, self.target) = (policy, target);
        Some(has_changed)
    }

    pub(super) fn forecast_idle(&self, now: Now, in_use: u64, boot: Duration) -> ForecastIdle {
        let Some(forecast) = self.forecast.as_ref().filter(|_| !self.is_draining) else {
            return ForecastIdle::default();
        };
        ForecastIdle {
            target: forecast.idle_target(now.unix, in_use, boot),
            retained: forecast.retained_idle(now.unix, in_use, boot),
        }
    }

    /// Returns the rows that have changed.
    pub(super) fn record_load(&mut self, now: Now, load: Load) -> Vec<RowKey> {
        let Some(forecast) = &mut self.forecast else { return Vec::new() };
        let Load { in_use, boot, long_idle, inputs } = load;
        let buckets = forecast.record(now.unix, in_use);
        // Slots of booting instances count, because booting instances cost money too.
        let slots = inputs.instances.saturating_mul(inputs.capacity);
        let unused = slots.saturating_sub(inputs.acquired + inputs.unavailable + inputs.waiting);
        let target = forecast.idle_target(now.unix, in_use, boot);
        // Without the forecast, the slots with a long idle time would have been deleted.
        let retained = long_idle.min(inputs.retained_idle);
        let recent_peak = forecast.recent_peak(now.unix, target, self.target.idle_time);
        let by_forecast = recent_peak.max(retained).min(unused);
        let days = forecast.record_idle(now.unix, by_forecast.saturating_sub(u64::from(self.target.idle_count)));
        let buckets = buckets.into_iter().map(|bucket| RowKey::SlotDemand { bucket });
        buckets.chain(days.into_iter().map(|day| RowKey::ForecastIdle { day })).collect()
    }

    /// Returns the rows that must be deleted.
    pub(super) fn restore_slot_demand(&mut self, bucket: i64, max_slots: u32) -> Vec<RowKey> {
        let start = bucket.saturating_mul(BUCKET_S);
        let changed = match &mut self.forecast {
            Some(forecast) => forecast.record(start, u64::from(max_slots)),
            None => vec![bucket],
        };
        let rows = changed.into_iter().map(|bucket| RowKey::SlotDemand { bucket });
        rows.filter(|row| self.row(row).is_none()).collect()
    }

    /// Returns the rows that must be deleted.
    pub(super) fn restore_idle(&mut self, day: i64, slot_seconds: u64) -> Vec<RowKey> {
        match &mut self.forecast {
            Some(forecast) => {
                forecast.restore_idle(day, slot_seconds);
                Vec::new()
            }
            None => vec![RowKey::ForecastIdle { day }],
        }
    }

    pub(super) fn row(&self, key: &RowKey) -> Option<Row> {
        let forecast = self.forecast.as_ref()?;
        match key {
            RowKey::ForecastIdle { day } => {
                Some(Row::ForecastIdle { slot_seconds: forecast.idle_slot_seconds_on(*day)? })
            }
            RowKey::SlotDemand { bucket } => Some(Row::SlotDemand { max_slots: forecast.demand(*bucket)? }),
            _ => None,
        }
    }
}
