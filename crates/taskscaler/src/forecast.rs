//! Forecast of demand: the number of idle slots to request now so that jobs find ready instances one boot time later.
//!
//! The forecast is the sum of three parts:
//!
//! - Rise: the growth at the same time of past days, scaled to today's demand, or the trend of the last minutes,
//!   whichever is greater.
//! - Safety stock: `safety_factor` times the square root of the expected demand.
//! - Return to normal: a part of the difference between the usual and the current demand.
//!
//! Existing idle slots are retained more generously (`retention_factor`). Once the forecast has caused an idle time of
//! `max_idle_slot_hours_per_day`, it is 0 until the next day.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

/// Length of a bucket, the interval in which the demand is recorded, in seconds.
pub(crate) const BUCKET_S: i64 = 300;
const BUCKETS_PER_DAY: i64 = 24 * 3600 / BUCKET_S;
const TREND_BUCKETS: i64 = 2;
/// Number of buckets before the current one that are compared with past days.
const COMPARED_BUCKETS: i64 = 24;
/// Number of averaged neighbors on each side of a bucket.
const SMOOTHING_RADIUS: i64 = 2;
/// Fraction of the difference from the usual demand that disappears during a boot.
const RETURNING_FRACTION: f64 = 0.3;
const DEFAULT_RETENTION_FACTOR: f64 = 1.5;
/// Range of the ratio of today's demand to the demand of past days.
const RATIO_RANGE: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Configuration of the forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct ForecastConfig {
    /// Number of past days to evaluate.
    pub days: u32,
    /// Quantile of past days' demand that counts as usual: 0.5 is the median, 1 the maximum.
    pub quantile: f64,
    /// Safety stock, as a multiple of the square root of the expected demand. A negative value reduces the forecast.
    pub safety_factor: f64,
    /// The safety factor that applies to the number of existing idle slots to retain. Values below
    /// [`Self::safety_factor`] have no effect.
    pub retention_factor: f64,
    /// Whether a day is compared only with the same weekday. Has no effect if `days` is below 7.
    pub by_weekday: bool,
    /// Instances should be ready this long before the expected demand.
    pub lead_time: Duration,
    /// Maximum idle time per day that the forecast may cause, in slot hours. `None` means no limit.
    pub max_idle_slot_hours_per_day: Option<f64>,
}

impl Default for ForecastConfig {
    fn default() -> Self {
        Self {
            days: 7,
            quantile: 0.5,
            safety_factor: 0.8,
            retention_factor: DEFAULT_RETENTION_FACTOR,
            by_weekday: false,
            lead_time: Duration::ZERO,
            max_idle_slot_hours_per_day: None,
        }
    }
}

/// Demand of past days, and the idle time that the forecast caused today.
#[derive(Debug, Clone)]
pub struct Forecast {
    config: ForecastConfig,
    /// Maximum demand (slots in use and queued), by the number of the bucket since 1970.
    history: BTreeMap<i64, u32>,
    /// In days since 1970.
    today: i64,
    /// Idle time that the forecast caused today, in slot seconds.
    idle_slot_seconds: f64,
    /// Time and idle slots of the last [`Self::record_idle`] call.
    last: Option<(i64, u64)>,
    /// Time and value of the last peak of the target.
    peak: (i64, u64),
    /// Cached result of [`Self::projection`].
    projection: Cell<Option<Projection>>,
}

#[derive(Debug, Clone, Copy)]
struct Projection {
    /// First bucket of the range, which is the current bucket.
    bucket: i64,
    /// Last bucket of the range.
    until: i64,
    /// Usual demand in the first bucket, in slots.
    usual: f64,
    /// Maximum demand in the range, in slots.
    ahead: f64,
    /// Growth from the first bucket to the maximum, in slots.
    rise: f64,
}

impl Forecast {
    /// Creates a forecast without history.
    #[must_use]
    pub fn new(config: ForecastConfig) -> Self {
        Self {
            config,
            history: BTreeMap::new(),
            today: i64::MIN,
            idle_slot_seconds: 0.0,
            last: None,
            peak: (i64::MIN, 0),
            projection: Cell::new(None),
        }
    }

    pub(crate) fn demand(&self, bucket: i64) -> Option<u32> {
        self.history.get(&bucket).copied()
    }

    /// Records the demand (slots in use and queued) at `unix` seconds since 1970.
    ///
    /// Must be called at least once a minute. Returns the buckets whose record was set or removed.
    pub fn record(&mut self, unix: i64, demand: u64) -> Vec<i64> {
        let mut changed = Vec::new();
        let bucket = unix.div_euclid(BUCKET_S);
        let demand = u32::try_from(demand).unwrap_or(u32::MAX);
        let recorded = self.history.entry(bucket).or_default();
        if demand > *recorded || *recorded == 0 {
            *recorded = demand;
            changed.push(bucket);
        }
        let retention = i64::from(self.config.days) * BUCKETS_PER_DAY + BUCKETS_PER_DAY;
        while let Some((oldest, _)) = self.history.first_key_value()
            && *oldest < bucket - retention
        {
            changed.push(*oldest);
            self.history.pop_first();
        }
        changed
    }

    /// Returns the last peak of the target, or `target` if the peak is older than `idle_time`.
    ///
    /// An instance that was created for an earlier, higher target is deleted only after its idle time.
    pub(crate) fn recent_peak(&mut self, unix: i64, target: u64, idle_time: Duration) -> u64 {
        let (since, peak) = self.peak;
        let idle_time_s = i64::try_from(idle_time.as_secs()).unwrap_or(i64::MAX);
        if target >= peak || unix.saturating_sub(since) > idle_time_s {
            self.peak = (unix, target);
        }
        self.peak.1
    }

    /// Records that the forecast keeps `idle` slots idle from `unix` on.
    ///
    /// Returns the days whose sum increased or was dropped. A new day drops the sum of the previous day.
    pub fn record_idle(&mut self, unix: i64, idle: u64) -> Vec<i64> {
        let day = unix.div_euclid(24 * 3600);
        let (mut changed, before) = (Vec::new(), self.idle_slot_seconds);
        if day != self.today {
            changed.push(self.today);
            (self.today, self.idle_slot_seconds, self.last) = (day, 0.0, None);
        }
        if let Some((since, idle)) = self.last {
            self.idle_slot_seconds += to_float((unix - since).clamp(0, 600).unsigned_abs()) * to_float(idle);
        }
        if self.idle_slot_seconds > before {
            changed.push(day);
        }
        self.last = Some((unix, idle));
        changed
    }

    /// In slot seconds. `None` if the day is not today.
    pub(crate) fn idle_slot_seconds_on(&self, day: i64) -> Option<u64> {
        (day == self.today).then(|| to_count(self.idle_slot_seconds))
    }

    pub(crate) fn restore_idle(&mut self, day: i64, slot_seconds: u64) {
        (self.today, self.idle_slot_seconds, self.last) = (day, to_float(slot_seconds), None);
    }

    /// Returns the number of idle slots that should exist in addition to the slots of `demand`, in use or queued.
    ///
    /// `boot` is the time until a new instance is ready.
    #[must_use]
    pub fn idle_target(&self, unix: i64, demand: u64, boot: Duration) -> u64 {
        self.idle_slots(unix, demand, boot, self.config.safety_factor)
    }

    /// Returns the number of existing idle slots to retain, at least [`Self::idle_target`].
    #[must_use]
    pub fn retained_idle(&self, unix: i64, demand: u64, boot: Duration) -> u64 {
        self.idle_slots(unix, demand, boot, self.config.retention_factor.max(self.config.safety_factor))
    }

    /// `factor` is that of the safety stock.
    fn idle_slots(&self, unix: i64, demand: u64, boot: Duration, factor: f64) -> u64 {
        let hours = self.idle_slot_seconds / 3600.0;
        if self.config.max_idle_slot_hours_per_day.is_some_and(|max| hours >= max) {
            return 0;
        }
        let horizon = i64::try_from((boot + self.config.lead_time).as_secs()).unwrap_or(i64::MAX / 2);
        let bucket = unix.div_euclid(BUCKET_S);
        let until = unix.saturating_add(horizon).div_euclid(BUCKET_S).min(bucket + BUCKETS_PER_DAY);
        let projection = self.projection(bucket, until);
        let demand = to_float(demand);
        let rise = projection.rise.max(self.trend(bucket, demand, horizon));
        // Without history, the usual demand is unknown.
        let (ahead, returning) = match projection.ahead {
            ahead if ahead > 0.0 => (ahead, RETURNING_FRACTION * (projection.usual - demand)),
            _ => (demand, 0.0),
        };
        to_count(rise + factor * ahead.sqrt() + returning)
    }

    fn projection(&self, bucket: i64, until: i64) -> Projection {
        match self.projection.get() {
            Some(cached) if (cached.bucket, cached.until) == (bucket, until) => cached,
            _ => {
                let projection = self.seasonal(bucket, until);
                self.projection.set(Some(projection));
                projection
            }
        }
    }

    fn seasonal(&self, bucket: i64, until: i64) -> Projection {
        let usual_now = self.usual_demand(bucket);
        let ahead = (bucket..=until).map(|at| self.usual_demand(at)).fold(0.0, f64::max);
        let (mut recorded_sum, mut usual_sum) = (1.0, 1.0);
        for at in bucket - COMPARED_BUCKETS..bucket {
            if let Some(demand) = self.history.get(&at) {
                recorded_sum += f64::from(*demand);
                usual_sum += self.usual_demand(at);
            }
        }
        let ratio = (recorded_sum / usual_sum).clamp(*RATIO_RANGE.start(), *RATIO_RANGE.end());
        let rise = (ahead - usual_now).max(0.0) * ratio;
        Projection { bucket, until, usual: usual_now * ratio, ahead: ahead * ratio, rise }
    }

    /// Usual demand at the time of a bucket. Smoothed, unless the bucket differs from its neighbors by more than noise.
    fn usual_demand(&self, bucket: i64) -> f64 {
        let (exact, smooth) = (self.past_demand(bucket, 0), self.past_demand(bucket, SMOOTHING_RADIUS));
        if (exact - smooth).abs() > noise(exact) { exact } else { smooth }
    }

    /// Quantile of the demand of past days. The demand of a day is the average of the bucket and of `radius` buckets on
    /// each side.
    fn past_demand(&self, bucket: i64, radius: i64) -> f64 {
        let step = if self.config.by_weekday && self.config.days >= 7 { 7 } else { 1 };
        let days = (step..=i64::from(self.config.days)).step_by(usize::try_from(step).unwrap_or(1));
        let mean = |day: i64| {
            let at = bucket - day * BUCKETS_PER_DAY;
            let records = self.history.range(at - radius..=at + radius);
            let (sum, count) =
                records.fold((0.0, 0.0), |(sum, count), (_, demand)| (sum + f64::from(*demand), count + 1.0));
            (count > 0.0).then(|| sum / count)
        };
        let mut levels: Vec<f64> = days.filter_map(mean).collect();
        quantile(&mut levels, self.config.quantile)
    }

    /// Growth of the demand in `horizon_s` if the trend of the last minutes continues. 0 if the trend is only noise.
    fn trend(&self, bucket: i64, demand: f64, horizon_s: i64) -> f64 {
        let before = self.history.get(&(bucket - TREND_BUCKETS)).copied();
        let Some(before) = before.map(f64::from) else { return 0.0 };
        let rise = demand - before;
        if rise <= noise(before) {
            return 0.0;
        }
        let per_second = rise / to_float((TREND_BUCKETS * BUCKET_S).unsigned_abs());
        // Demand at most doubles, because a burst is not a trend.
        (per_second * to_float(horizon_s.unsigned_abs())).min(demand)
    }
}

/// Two standard deviations.
fn noise(level: f64) -> f64 {
    2.0 * level.max(1.0).sqrt()
}

fn quantile(values: &mut [f64], quantile: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let index = usize::try_from(to_count(to_float(last as u64) * quantile.clamp(0.0, 1.0))).unwrap_or(last);
    values.get(index).copied().unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "slots and seconds are far below 2^52")]
fn to_float(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and below 0 gives 0")]
fn to_count(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;
    const BOOT: Duration = Duration::from_secs(300);

    fn config(safety: f64) -> ForecastConfig {
        ForecastConfig { safety_factor: safety, ..ForecastConfig::default() }
    }

    /// 100 jobs from 9 to 17 o'clock and 4 jobs at other times.
    fn office_hours(days: i64, safety: f64) -> Forecast {
        let mut forecast = Forecast::new(config(safety));
        for minute in 0..days * 1440 {
            let hour = minute % 1440 / 60;
            forecast.record(minute * 60, if (9..17).contains(&hour) { 100 } else { 4 });
        }
        forecast
    }

    fn at(hour: i64, minute: i64) -> i64 {
        7 * DAY + hour * 3600 + minute * 60
    }

    #[test]
    fn slots_are_created_before_the_morning_rise() {
        let forecast = office_hours(7, 0.0);
        assert_eq!(forecast.idle_target(at(8, 40), 4, BOOT), 0, "more than one boot time before nine");
        assert_eq!(forecast.idle_target(at(8, 56), 4, BOOT), 96, "one boot time before nine");
        assert_eq!(forecast.idle_target(at(12, 0), 100, BOOT), 0, "all usual jobs are running");
        assert_eq!(forecast.idle_target(at(20, 0), 4, BOOT), 0, "no rise in the evening");
    }

    #[test]
    fn safety_stock_grows_with_square_root_of_demand() {
        let forecast = office_hours(7, 1.0);
        assert_eq!(forecast.idle_target(at(12, 0), 100, BOOT), 10);
        assert_eq!(forecast.idle_target(at(20, 0), 4, BOOT), 2);
    }

    #[test]
    fn more_slots_are_retained_than_created() {
        let mut forecast = office_hours(7, 0.5);
        forecast.config.retention_factor = 1.5;
        let created_and_retained = |forecast: &Forecast| {
            (
                forecast.idle_target(at(12, 0), 100, BOOT),
                forecast.retained_idle(at(12, 0), 100, BOOT),
                forecast.retained_idle(at(20, 0), 4, BOOT),
            )
        };
        assert_eq!(created_and_retained(&forecast), (5, 15, 3));
        forecast.config.retention_factor = 0.0;
        assert_eq!(created_and_retained(&forecast), (5, 5, 1), "at least the created slots are retained");
        forecast.config.safety_factor = -1.0;
        assert_eq!(created_and_retained(&forecast), (0, 0, 0), "no number may be negative");
        assert_eq!(forecast.idle_target(at(8, 56), 4, BOOT), 86, "reduced from 96");
    }

    #[test]
    fn demand_is_expected_to_return_to_usual() {
        let forecast = office_hours(7, 1.0);
        assert_eq!(forecast.idle_target(at(12, 0), 120, BOOT), 4, "6 of 20 are expected to become free");
        assert_eq!(forecast.idle_target(at(12, 0), 80, BOOT), 16, "6 of 20 are expected to be used");
        assert_eq!(forecast.idle_target(at(12, 0), 200, BOOT), 0);
    }

    #[test]
    fn forecast_is_scaled_to_demand_of_today() {
        let mut forecast = office_hours(7, 1.0);
        for minute in 0..120 {
            forecast.record(at(10, minute), 50);
        }
        assert_eq!(forecast.idle_target(at(12, 0), 50, BOOT), 7, "the square root of 50");
    }

    #[test]
    fn trend_beyond_noise_counts_without_history() {
        let mut forecast = Forecast::new(config(0.0));
        forecast.record(0, 10);
        forecast.record(300, 20);
        forecast.record(600, 30);
        assert_eq!(
            forecast.idle_target(600, 30, BOOT),
            10,
            "a trend of 20 in ten minutes, extrapolated by five minutes"
        );
        assert_eq!(forecast.idle_target(600, 16, BOOT), 0, "a rise from 10 to 16 is noise");
    }

    #[test]
    fn daily_budget_limits_idle_slots() {
        let mut forecast = office_hours(7, 0.0);
        forecast.config.max_idle_slot_hours_per_day = Some(1.0);
        let start = at(8, 56);
        assert_eq!(forecast.idle_target(start, 4, BOOT), 96);
        for minute in 0..2 {
            forecast.record_idle(start + minute * 60, 96);
        }
        assert_eq!(forecast.idle_target(start + 60, 4, BOOT), 0, "96 slots for a minute exceed one slot hour");
        forecast.record_idle(start + DAY, 0);
        assert!(forecast.idle_target(start + DAY, 4, BOOT) > 0, "the budget must start again on a new day");
    }
}
