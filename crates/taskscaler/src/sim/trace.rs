//! Job traces: the arrival and the duration of each job.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::cloud::Spread;
use crate::resources::JobUsage;
use crate::time::Time;
use crate::types::SlotRequest;

/// If the first arrival is at least this value, all arrivals are Unix times. Otherwise, they are seconds since Monday,
/// 00:00.
///
/// Unix times are converted to seconds since the Monday before the first job.
const UNIX_TIME_S: u64 = 1_000_000_000;
/// The first Monday of 1970, 00:00, as a Unix time.
const FIRST_MONDAY_S: u64 = 4 * 86_400;
const WEEK_S: u64 = 7 * 86_400;
const MAX_ARRIVAL_S: f64 = 1e11;
/// In seconds: three years.
const MAX_SPAN_S: f64 = 1e8;

const LINE_FORMAT_HINT: &str = "a line is `ARRIVAL,DURATION` in seconds, the first line can be a heading";

/// A job of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Arrival time.
    pub at: Time,
    /// Run time.
    pub duration: Duration,
    /// Request for slots.
    pub request: SlotRequest,
}

impl Job {
    /// Returns the usage that the simulation assumes: for its whole run time, the job uses half of the CPUs that it
    /// requests, or 1.5 CPUs if it requests none.
    #[must_use]
    pub fn usage(&self) -> JobUsage {
        let cpu = self.duration * self.request.resources.cpu_milli.unwrap_or(3000) / 2000;
        JobUsage { wall: self.duration, cpu: Some(cpu), ..JobUsage::default() }
    }
}

/// Error for text that is not a valid trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line of a table is invalid.
    #[error("line {line}: {cause}; {LINE_FORMAT_HINT}")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// Description of the problem.
        cause: TraceRowError,
    },
    /// A job of a JSON list is invalid.
    #[error("job {number}: {cause}")]
    Listed {
        /// Number of the job, counted from 1.
        number: usize,
        /// Description of the problem.
        cause: TraceRowError,
    },
    /// The text is not valid JSON, or has another structure.
    #[error("not a list of {{\"arrival_s\": .., \"duration_s\": ..}}")]
    Json(#[from] serde_json::Error),
    /// The trace has no jobs.
    #[error("the trace has no jobs; {LINE_FORMAT_HINT}")]
    Empty,
    /// The trace spans more than three years.
    #[error(
        "the last arrival is {0} s after the start, but the maximum is 100000000 s; do all arrivals use the same clock?"
    )]
    Long(u64),
}

/// Problem with a job.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TraceRowError {
    /// The number of columns is not two.
    #[error("expected two columns separated by a comma, found {0}")]
    Columns(usize),
    /// A column is not a number.
    #[error("`{0}` is not a number")]
    Number(String),
    /// A number is out of range.
    #[error("{column} {value} is not between 0 and {max}")]
    OutOfRange {
        /// Name of the column.
        column: &'static str,
        /// The number.
        value: String,
        /// Maximum.
        max: f64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceRow {
    arrival_s: f64,
    duration_s: f64,
}

impl TraceRow {
    fn job(&self) -> Result<Job, TraceRowError> {
        let seconds = |column, value: f64, max: f64| {
            let is_valid = value.is_finite() && (0.0..=max).contains(&value);
            if is_valid {
                Ok(Duration::from_secs_f64(value))
            } else {
                let value = if value.abs() < 1e15 { value.to_string() } else { format!("{value:e}") };
                Err(TraceRowError::OutOfRange { column, value, max })
            }
        };
        Ok(Job {
            at: Time::ZERO + seconds("arrival", self.arrival_s, MAX_ARRIVAL_S)?,
            duration: seconds("duration", self.duration_s, MAX_SPAN_S)?,
            request: SlotRequest::default(),
        })
    }
}

/// Returns whether a line is a heading: no column is a number, whether commas, semicolons or tabs separate the columns.
fn is_heading(line: &str) -> bool {
    line.split([',', ';', '\t']).all(|column| unquoted(column).parse::<f64>().is_err())
}

fn unquoted(column: &str) -> &str {
    let column = column.trim();
    column.strip_prefix('"').and_then(|column| column.strip_suffix('"')).unwrap_or(column)
}

/// Parses a JSON list, or a table of two columns. Returns the jobs in the order of their arrivals.
///
/// Arrivals are in seconds since Monday, 00:00, or in Unix time.
///
/// # Errors
/// Returns [`TraceError`] if the text is not a valid trace.
pub fn read(text: &str) -> Result<Vec<Job>, TraceError> {
    let text = text.trim_start_matches('\u{feff}');
    let mut jobs = if text.trim_start().starts_with(['[', '{']) {
        let raw: Vec<TraceRow> = serde_json::from_str(text)?;
        let job = |(index, raw): (usize, &TraceRow)| {
            raw.job().map_err(|cause| TraceError::Listed { number: index + 1, cause })
        };
        raw.iter().enumerate().map(job).collect::<Result<Vec<_>, _>>()?
    } else {
        let mut jobs = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') || index == 0 && is_heading(line) {
                continue;
            }
            let error = |cause| TraceError::Line { line: index + 1, cause };
            let columns: Vec<&str> = line.split(',').map(unquoted).collect();
            let [arrival, duration] = columns.as_slice() else {
                return Err(error(TraceRowError::Columns(columns.len())));
            };
            let number = |text: &str| text.parse::<f64>().map_err(|_| error(TraceRowError::Number(text.to_owned())));
            let raw = TraceRow { arrival_s: number(arrival)?, duration_s: number(duration)? };
            jobs.push(raw.job().map_err(error)?);
        }
        jobs
    };
    if jobs.is_empty() {
        return Err(TraceError::Empty);
    }
    jobs.sort_by_key(|job| job.at);
    let first = jobs.first().map_or(0, |job| job.at.as_millis() / 1000);
    if first >= UNIX_TIME_S {
        let monday = FIRST_MONDAY_S + (first - FIRST_MONDAY_S) / WEEK_S * WEEK_S;
        for job in &mut jobs {
            job.at = Time::from_millis(job.at.as_millis() - monday * 1000);
        }
    }
    let last = jobs.last().map_or(0, |job| job.at.as_millis() / 1000);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a constant number of seconds")]
    let max_span_s = MAX_SPAN_S as u64;
    if last > max_span_s { Err(TraceError::Long(last)) } else { Ok(jobs) }
}

/// Parameters of a generated load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pattern {
    /// How the rate of jobs changes over time.
    pub shape: Shape,
    /// Number of days.
    pub days: u32,
    /// Jobs per hour at the busiest time.
    pub peak_per_hour: f64,
    /// Jobs per hour at the quietest time.
    pub off_peak_per_hour: f64,
    /// Run time of jobs.
    pub duration: Spread,
    /// Average number of jobs that arrive together.
    pub burst: u32,
    /// Variation of the rate between days, as in [`Spread::factor`]. 1 means none.
    pub daily_variation: f64,
}

/// How the rate of a generated load changes over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Office hours, the same each day.
    Day,
    /// Office hours, with quiet weekends.
    Week,
    /// Constant rate, meant for bursts of jobs ([`Pattern::burst`]).
    Burst,
    /// Constant rate.
    Flat,
}

impl Default for Pattern {
    fn default() -> Self {
        Self {
            shape: Shape::Day,
            days: 1,
            peak_per_hour: 300.0,
            off_peak_per_hour: 10.0,
            duration: Spread::new(180.0, 4.0),
            burst: 1,
            daily_variation: 1.0,
        }
    }
}

impl Pattern {
    /// Generates at most `max` jobs. The first day is a Monday.
    #[must_use]
    pub fn jobs(&self, seed: u64, max: usize) -> Vec<Job> {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut jobs = Vec::new();
        let end = f64::from(self.days) * 86_400.0;
        let day = Spread::new(1.0, self.daily_variation);
        let factors: Vec<f64> = (0..self.days).map(|_| day.sample(random).as_secs_f64()).collect();
        let busiest = factors.iter().copied().fold(1.0, f64::max);
        let max_per_second = self.peak_per_hour.max(self.off_peak_per_hour).max(1e-3) / 3600.0 * busiest;
        let burst = f64::from(self.burst.max(1));
        let mut at = 0.0;
        loop {
            at += -(1.0 - random.random::<f64>()).ln() / (max_per_second / burst);
            if at >= end {
                return jobs;
            }
            let factor = factors.get(day_of(at)).copied().unwrap_or(1.0);
            if random.random::<f64>() * max_per_second * 3600.0 > self.rate(at) * factor {
                continue;
            }
            let burst_size = if self.burst > 1 { random.random_range(1..self.burst.saturating_mul(2)) } else { 1 };
            for _ in 0..burst_size {
                if jobs.len() >= max {
                    return jobs;
                }
                let at = Time::ZERO + Duration::from_secs_f64(at);
                jobs.push(Job { at, duration: self.duration.sample(random), request: SlotRequest::default() });
            }
        }
    }

    /// In jobs per hour, at `at` seconds since the start.
    fn rate(&self, at: f64) -> f64 {
        let (day, hour) = ((at / 86_400.0).floor() % 7.0, at / 3600.0 % 24.0);
        let busy = match self.shape {
            Shape::Flat | Shape::Burst => 1.0,
            Shape::Week if day >= 5.0 => 0.05,
            Shape::Day | Shape::Week => workday(hour),
        };
        self.off_peak_per_hour + (self.peak_per_hour - self.off_peak_per_hour).max(0.0) * busy
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not below 0")]
fn day_of(at: f64) -> usize {
    (at / 86_400.0) as usize
}

/// Relative load: a steep rise in the morning, a dip at noon and a long evening.
fn workday(hour: f64) -> f64 {
    let hill = |middle: f64, width: f64| (-((hour - middle) / width).powi(2)).exp();
    let morning = hill(10.5, 1.4);
    let afternoon = hill(15.5, 2.2);
    let evening = 0.25 * hill(20.5, 1.5);
    (morning + 0.9 * afternoon + evening).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_tables_and_json() {
        let table = read("arrival_s,duration_s\n# night\n10,60\n\n5.5, 30\n").unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!((table[0].at.as_millis(), table[0].duration.as_secs()), (5500, 30), "sorted by arrival");
        let json = read(r#"[{"arrival_s": 5.5, "duration_s": 30}, {"arrival_s": 10, "duration_s": 60}]"#).unwrap();
        assert_eq!(json, table);
        assert_eq!(read("\"arrival\",\"duration\"\n\"10\",\"60\"\n5.5,\"30\"\n").unwrap(), table, "from a spreadsheet");
        let unix = read("\u{feff}1795300005,60\n1795300000,30\n").unwrap();
        // A Saturday, 22:26:40.
        let saturday = 5 * 86_400 + 22 * 3600 + 26 * 60 + 40;
        assert_eq!(unix[0].at.as_millis(), saturday * 1000, "Unix time after a byte order mark");
    }

    #[test]
    fn invalid_trace_is_rejected_with_line_number() {
        for (text, expected) in [
            ("1,2\nx,3", "line 2: `x` is not a number"),
            ("1,2\n1e300,3", "line 2: arrival 1e300 is not between 0 and 100000000000"),
            ("1,2,3", "line 1: expected two columns separated by a comma, found 3"),
            ("1;2", "line 1: expected two columns separated by a comma, found 1"),
            ("arrival;duration\n1;2", "line 2: expected two columns separated by a comma, found 1"),
            ("[{\"arrival_s\": 1, \"duration_s\": 2}, {\"arrival_s\": 1, \"duration_s\": -2}]", "job 2: duration -2"),
            ("1,-2", "line 1: duration -2 is not between 0"),
            ("", "the trace has no jobs"),
            ("0,1O", "line 1: `1O` is not a number"),
            ("0,1\n1795300000,1", "the last arrival is 1795300000 s after"),
            ("{\"arrival_s\": 1}", "not a list of"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn generated_load_follows_working_hours() {
        let jobs = Pattern::default().jobs(1, usize::MAX);
        let within = |from: u64, to: u64| {
            jobs.iter().filter(|job| (from * 3_600_000..to * 3_600_000).contains(&job.at.as_millis())).count()
        };
        assert!(within(10, 12) > 10 * within(2, 4), "{} against {}", within(10, 12), within(2, 4));
        assert_eq!(jobs, Pattern::default().jobs(1, usize::MAX), "the same seed generates the same jobs");
        let week = Pattern { shape: Shape::Week, days: 7, ..Pattern::default() }.jobs(1, usize::MAX);
        let saturday = week.iter().filter(|job| job.at.as_millis() / 86_400_000 == 5).count();
        let friday = week.iter().filter(|job| job.at.as_millis() / 86_400_000 == 4).count();
        assert!(saturday * 3 < friday, "{saturday} against {friday}");
    }

    #[test]
    fn generated_load_is_limited() {
        for burst in [1_000_000_000, u32::MAX] {
            let pattern = Pattern { burst, peak_per_hour: 1e12, off_peak_per_hour: 1e12, ..Pattern::default() };
            assert_eq!(pattern.jobs(1, 1000).len(), 1000, "bursts of {burst} jobs");
        }
    }
}
