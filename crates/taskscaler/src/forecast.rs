//! A look ahead: how many slots will be in use when an instance that is asked for now is ready.
//!
//! Two views, of which the larger counts: what was in use at the same hours of the past days, scaled by how today compares
//! with them; and the slope of the last minutes, prolonged by the time an instance takes. A budget bounds what it may cost:
//! the slots that it kept idle are summed up over the day, and when they have reached it, it says nothing until the next.

use std::collections::BTreeMap;
use std::time::Duration;

/// Length of a record.
pub(crate) const BUCKET_S: i64 = 300;
const BUCKETS_PER_DAY: i64 = 24 * 3600 / BUCKET_S;
/// Records over which the slope is taken.
const SLOPE_BUCKETS: i64 = 2;
/// Today is compared with the past within these.
const RATIO: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// How it is done.
#[derive(Debug, Clone, PartialEq)]
pub struct ForecastConfig {
    /// Past days that are looked at.
    pub days: u32,
    /// Which of their values counts: 0.5 is the median, 1 the largest.
    pub quantile: f64,
    /// What is expected is multiplied by this.
    pub margin: f64,
    /// Weekdays are compared with the same weekday, where `days` reach that far back.
    pub by_weekday: bool,
    /// Instances are wanted so long before they are needed, beside the time that they take.
    pub lead: Duration,
    /// Slot hours per day that it may keep idle; none: no bound.
    pub idle_hours_per_day_max: Option<f64>,
}

impl Default for ForecastConfig {
    fn default() -> Self {
        Self {
            days: 7,
            quantile: 0.8,
            margin: 1.1,
            by_weekday: false,
            lead: Duration::from_secs(120),
            idle_hours_per_day_max: None,
        }
    }
}

/// History, and what it cost today.
#[derive(Debug, Clone)]
pub struct Forecast {
    config: ForecastConfig,
    /// The most slots in use or waited for, by record.
    history: BTreeMap<i64, u32>,
    today: i64,
    idle_slot_seconds: f64,
    last: Option<(i64, u64)>,
}

impl Forecast {
    /// Without history: until there is some, only the slope counts.
    #[must_use]
    pub fn new(config: ForecastConfig) -> Self {
        Self { config, history: BTreeMap::new(), today: i64::MIN, idle_slot_seconds: 0.0, last: None }
    }

    /// What is recorded of five minutes.
    pub(crate) fn most(&self, bucket: i64) -> Option<u32> {
        self.history.get(&bucket).copied()
    }

    /// `in_use` slots are held or waited for at `unix`; to be told at least every minute. The records that this changed.
    pub fn record(&mut self, unix: i64, in_use: u64) -> Vec<i64> {
        let mut changed = Vec::new();
        let bucket = unix.div_euclid(BUCKET_S);
        let in_use = u32::try_from(in_use).unwrap_or(u32::MAX);
        let most = self.history.entry(bucket).or_default();
        if in_use > *most || *most == 0 {
            *most = in_use;
            changed.push(bucket);
        }
        let kept = i64::from(self.config.days) * BUCKETS_PER_DAY + BUCKETS_PER_DAY;
        while let Some((oldest, _)) = self.history.first_key_value()
            && *oldest < bucket - kept
        {
            changed.push(*oldest);
            self.history.pop_first();
        }
        changed
    }

    /// `idle` slots are kept idle for its sake from now on; the day's sum bounds it.
    pub fn spend(&mut self, unix: i64, idle: u64) {
        let day = unix.div_euclid(24 * 3600);
        if day != self.today {
            (self.today, self.idle_slot_seconds, self.last) = (day, 0.0, None);
        }
        if let Some((since, before)) = self.last {
            self.idle_slot_seconds += float((unix - since).clamp(0, 600).unsigned_abs()) * float(before);
        }
        self.last = Some((unix, idle));
    }

    /// Slots that should be idle now, beside the `in_use` ones, so that those are ready that will be needed when an
    /// instance that is asked for now has booted.
    #[must_use]
    pub fn idle(&self, unix: i64, in_use: u64, boot: Duration) -> u64 {
        let hours = self.idle_slot_seconds / 3600.0;
        if self.config.idle_hours_per_day_max.is_some_and(|max| hours >= max) {
            return 0;
        }
        let horizon = i64::try_from((boot + self.config.lead).as_secs()).unwrap_or(i64::MAX / 2);
        let bucket = unix.div_euclid(BUCKET_S);
        let until = unix.saturating_add(horizon).div_euclid(BUCKET_S).min(bucket + BUCKETS_PER_DAY);
        let expected = self.by_past(bucket, until, in_use).max(self.by_slope(bucket, in_use, horizon));
        rounded(expected * self.config.margin).saturating_sub(in_use)
    }

    /// The same hours of past days, scaled by how today compares.
    fn by_past(&self, bucket: i64, until: i64, in_use: u64) -> f64 {
        let mut peaks = Vec::new();
        let mut nows = Vec::new();
        let step = if self.config.by_weekday && self.config.days >= 7 { 7 } else { 1 };
        for day in (step..=i64::from(self.config.days)).step_by(usize::try_from(step).unwrap_or(1)) {
            let shift = day * BUCKETS_PER_DAY;
            if let Some(peak) = self.history.range(bucket - shift..=until - shift).map(|(_, most)| *most).max() {
                peaks.push(peak);
                nows.extend(self.history.get(&(bucket - shift)));
            }
        }
        let (past, then) = (quantile(&mut peaks, self.config.quantile), quantile(&mut nows, 0.5));
        let today = self.history.range(bucket - 1..=bucket).map(|(_, most)| *most).max().map_or(0.0, f64::from);
        let ratio =
            if then > 0.0 { (today.max(float(in_use)) / then).clamp(*RATIO.start(), *RATIO.end()) } else { 1.0 };
        past * ratio
    }

    /// The last minutes, prolonged.
    fn by_slope(&self, bucket: i64, in_use: u64, horizon_s: i64) -> f64 {
        let before = self.history.get(&(bucket - SLOPE_BUCKETS)).copied();
        let Some(before) = before else { return float(in_use) };
        let rise = (float(in_use) - f64::from(before)).max(0.0) / float((SLOPE_BUCKETS * BUCKET_S).unsigned_abs());
        // No more than twice what there is: a burst is no trend.
        (float(in_use) + rise * float(horizon_s.unsigned_abs())).min(2.0 * float(in_use))
    }
}

fn quantile(values: &mut [u32], quantile: f64) -> f64 {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    let index = usize::try_from(rounded(float(last as u64) * quantile.clamp(0.0, 1.0))).unwrap_or(last);
    values.get(index).copied().map_or(0.0, f64::from)
}

#[expect(clippy::cast_precision_loss, reason = "slots and seconds are far below 2^52")]
fn float(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not below 0")]
fn rounded(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;
    const BOOT: Duration = Duration::from_secs(180);

    /// Some days with 100 jobs from nine to five, and 5 at other times.
    fn office(days: i64) -> Forecast {
        let mut forecast = Forecast::new(ForecastConfig { margin: 1.0, ..ForecastConfig::default() });
        for minute in 0..days * 1440 {
            let hour = minute % 1440 / 60;
            forecast.record(minute * 60, if (9..17).contains(&hour) { 100 } else { 5 });
        }
        forecast
    }

    #[test]
    fn the_morning_is_known_before_it_comes() {
        let forecast = office(7);
        let at = |hour: i64, minute: i64| 7 * DAY + hour * 3600 + minute * 60;
        assert_eq!(forecast.idle(at(8, 40), 5, BOOT), 0, "too early");
        assert_eq!(forecast.idle(at(8, 56), 5, BOOT), 95, "a boot and a lead before nine");
        assert_eq!(forecast.idle(at(12, 0), 100, BOOT), 0, "all are in use");
        assert_eq!(forecast.idle(at(20, 0), 5, BOOT), 0, "the evening needs none");
    }

    #[test]
    fn a_day_with_half_the_work_gets_half() {
        let mut forecast = office(7);
        forecast.record(7 * DAY + 10 * 3600, 50);
        assert_eq!(forecast.idle(7 * DAY + 10 * 3600, 50, BOOT), 0);
    }

    #[test]
    fn without_history_the_slope_counts() {
        let mut forecast = Forecast::new(ForecastConfig { margin: 1.0, ..ForecastConfig::default() });
        forecast.record(0, 10);
        forecast.record(300, 20);
        forecast.record(600, 30);
        assert_eq!(forecast.idle(600, 30, BOOT), 10, "20 in ten minutes, five minutes on");
    }

    #[test]
    fn what_it_costs_in_a_day_is_bounded() {
        let mut forecast = office(7);
        forecast.config.idle_hours_per_day_max = Some(1.0);
        let start = 7 * DAY + 8 * 3600 + 56 * 60;
        assert_eq!(forecast.idle(start, 5, BOOT), 95);
        for minute in 0..2 {
            forecast.spend(start + minute * 60, 95);
        }
        assert_eq!(forecast.idle(start + 60, 5, BOOT), 0, "95 slots for a minute are more than an hour");
        forecast.spend(start + DAY, 0);
        assert!(forecast.idle(start + DAY, 5, BOOT) > 0, "a new day");
    }
}
