//! Jobs: when each comes, and how long it runs. From a file, or generated.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::cloud::Spread;
use crate::resources::JobUsage;
use crate::time::Time;
use crate::types::SlotRequest;

/// Arrivals are seconds since a Monday, midnight; from here on, they are Unix time: then since the Monday before the first.
const UNIX_TIME_S: u64 = 1_000_000_000;
/// The first Monday of Unix time.
const MONDAY_S: u64 = 4 * 86_400;
const WEEK_S: u64 = 7 * 86_400;
const MAX_ARRIVAL_S: f64 = 1e11;
/// To the last arrival, and for one job: three years.
const MAX_SPAN_S: f64 = 1e8;

/// What errors say of the form.
const LINE_FORMAT_HINT: &str = "a line is `ARRIVAL,DURATION` in seconds, the first one may be a heading";

/// One job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// When it is ready to run.
    pub at: Time,
    /// How long it runs.
    pub duration: Duration,
    /// What it asks for.
    pub request: SlotRequest,
}

impl Job {
    /// What it will have used: half of what it declares, so that declared and measured need differ.
    #[must_use]
    pub fn used(&self) -> JobUsage {
        let cpu = self.duration * self.request.resources.cpu_milli.unwrap_or(3000) / 2000;
        JobUsage { wall: self.duration, cpu: Some(cpu), ..JobUsage::default() }
    }
}

/// Why a text is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line of the table.
    #[error("line {line}: {cause}; {LINE_FORMAT_HINT}")]
    Line {
        /// Which.
        line: usize,
        /// What is wrong.
        cause: String,
    },
    /// A job of the list in JSON.
    #[error("job {number} of the list: {cause}")]
    Listed {
        /// Which, from 1.
        number: usize,
        /// What is wrong.
        cause: String,
    },
    /// JSON.
    #[error("not a list of {{\"arrival_s\": .., \"duration_s\": ..}}")]
    Json(#[from] serde_json::Error),
    /// Nothing in it.
    #[error("there is no job in it; {LINE_FORMAT_HINT}")]
    Empty,
    /// Too long.
    #[error("the last arrival is {0} s after the beginning, and 100000000 s is the most; are all of one clock?")]
    Long(u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceRow {
    arrival_s: f64,
    duration_s: f64,
}

impl TraceRow {
    fn job(&self) -> Result<Job, String> {
        let seconds = |name, value: f64, max: f64| {
            let fine = value.is_finite() && (0.0..=max).contains(&value);
            if fine {
                Ok(Duration::from_secs_f64(value))
            } else {
                let value = if value.abs() < 1e15 { value.to_string() } else { format!("{value:e}") };
                Err(format!("{name} {value} is not from 0 to {max}"))
            }
        };
        Ok(Job {
            at: Time::ZERO + seconds("arrival", self.arrival_s, MAX_ARRIVAL_S)?,
            duration: seconds("duration", self.duration_s, MAX_SPAN_S)?,
            request: SlotRequest::default(),
        })
    }
}

/// Whether a line is a heading: none of its columns is a number, however they are separated.
fn is_heading(line: &str) -> bool {
    line.split([',', ';', '\t']).all(|column| bare(column).parse::<f64>().is_err())
}

/// A column without what spreadsheets may put around it.
fn bare(column: &str) -> &str {
    let column = column.trim();
    column.strip_prefix('"').and_then(|column| column.strip_suffix('"')).unwrap_or(column)
}

/// Jobs of a text: JSON, or a table of two columns. Arrivals are seconds since a Monday, midnight, or Unix time.
///
/// # Errors
/// [`TraceError`].
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
            let error = |cause: String| TraceError::Line { line: index + 1, cause };
            let columns: Vec<&str> = line.split(',').map(bare).collect();
            let [arrival, duration] = columns.as_slice() else {
                return Err(error(format!("{} columns, which commas separate", columns.len())));
            };
            let number = |text: &str| text.parse::<f64>().map_err(|_| error(format!("`{text}` is no number")));
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
        let monday = MONDAY_S + (first - MONDAY_S) / WEEK_S * WEEK_S;
        for job in &mut jobs {
            job.at = Time::from_millis(job.at.as_millis() - monday * 1000);
        }
    }
    let last = jobs.last().map_or(0, |job| job.at.as_millis() / 1000);
    if last > MAX_SPAN_S as u64 { Err(TraceError::Long(last)) } else { Ok(jobs) }
}

/// A generated load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pattern {
    /// `day`: as people work, the same each day; `week`: with quiet weekends; `burst`: pipelines of many jobs at once;
    /// `flat`: always the same.
    pub shape: Shape,
    /// How many days.
    pub days: u32,
    /// Jobs in an hour at the busiest time.
    pub peak_per_hour: f64,
    /// Jobs in an hour at the quietest.
    pub off_peak_per_hour: f64,
    /// How long jobs run.
    pub duration: Spread,
    /// Jobs that come together, on average.
    pub burst: u32,
    /// Days differ by this factor, as [`Spread::factor`]; 1: they do not.
    pub daily_variation: f64,
}

/// See [`Pattern::shape`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// As people work, the same each day.
    Day,
    /// With quiet weekends.
    Week,
    /// Pipelines of many jobs at once.
    Burst,
    /// Always the same.
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
    /// The jobs of a seed. The first day is a Monday.
    #[must_use]
    pub fn jobs(&self, seed: u64) -> Vec<Job> {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut jobs = Vec::new();
        let end = f64::from(self.days) * 86_400.0;
        let day = Spread::new(1.0, self.daily_variation);
        let factors: Vec<f64> = (0..self.days).map(|_| day.sample(random).as_secs_f64()).collect();
        let busiest = factors.iter().copied().fold(1.0, f64::max);
        let most = self.peak_per_hour.max(self.off_peak_per_hour).max(1e-3) / 3600.0 * busiest;
        let burst = f64::from(self.burst.max(1));
        let mut at = 0.0;
        loop {
            // Arrivals at the highest rate, of which the part that belongs to the hour is kept.
            at += -(1.0 - random.random::<f64>()).ln() / (most / burst);
            if at >= end {
                return jobs;
            }
            let factor = factors.get(day_of(at)).copied().unwrap_or(1.0);
            if random.random::<f64>() * most * 3600.0 > self.rate(at) * factor {
                continue;
            }
            let together = if self.burst > 1 { random.random_range(1..self.burst * 2) } else { 1 };
            for _ in 0..together {
                let at = Time::ZERO + Duration::from_secs_f64(at);
                jobs.push(Job { at, duration: self.duration.sample(random), request: SlotRequest::default() });
            }
        }
    }

    /// Jobs per hour at a second.
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

/// How busy people are at an hour: a steep morning, a dip at noon, a long evening.
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
    fn tables_and_json_are_read() {
        let table = read("arrival_s,duration_s\n# night\n10,60\n\n5.5, 30\n").unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!((table[0].at.as_millis(), table[0].duration.as_secs()), (5500, 30), "in the order of arrival");
        let json = read(r#"[{"arrival_s": 5.5, "duration_s": 30}, {"arrival_s": 10, "duration_s": 60}]"#).unwrap();
        assert_eq!(json, table);
        assert_eq!(read("\"arrival\",\"duration\"\n\"10\",\"60\"\n5.5,\"30\"\n").unwrap(), table, "from a spreadsheet");
        let unix = read("\u{feff}1795300005,60\n1795300000,30\n").unwrap();
        // A Saturday, 22:26:40.
        let saturday = 5 * 86_400 + 22 * 3600 + 26 * 60 + 40;
        assert_eq!(unix[0].at.as_millis(), saturday * 1000, "Unix time, behind a byte order mark");
    }

    #[test]
    fn what_is_no_trace_is_told_with_its_line() {
        for (text, wanted) in [
            ("1,2\nx,3", "line 2: `x` is no number"),
            ("1,2\n1e300,3", "line 2: arrival 1e300 is not from 0 to 100000000000"),
            ("1,2,3", "line 1: 3 columns"),
            ("1;2", "line 1: 1 columns, which commas separate"),
            ("arrival;duration\n1;2", "line 2: 1 columns, which commas separate"),
            (
                "[{\"arrival_s\": 1, \"duration_s\": 2}, {\"arrival_s\": 1, \"duration_s\": -2}]",
                "job 2 of the list: duration -2",
            ),
            ("1,-2", "line 1: duration -2 is not from 0"),
            ("", "there is no job in it"),
            ("0,1O", "line 1: `1O` is no number"),
            ("0,1\n1795300000,1", "the last arrival is 1795300000 s after"),
            ("{\"arrival_s\": 1}", "not a list of"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
    }

    #[test]
    fn a_day_is_busy_when_people_are() {
        let jobs = Pattern::default().jobs(1);
        let within = |from: u64, to: u64| {
            jobs.iter().filter(|job| (from * 3_600_000..to * 3_600_000).contains(&job.at.as_millis())).count()
        };
        assert!(within(10, 12) > 10 * within(2, 4), "{} against {}", within(10, 12), within(2, 4));
        assert_eq!(jobs, Pattern::default().jobs(1), "a seed is the same jobs");
        let week = Pattern { shape: Shape::Week, days: 7, ..Pattern::default() }.jobs(1);
        let saturday = week.iter().filter(|job| job.at.as_millis() / 86_400_000 == 5).count();
        let friday = week.iter().filter(|job| job.at.as_millis() / 86_400_000 == 4).count();
        assert!(saturday * 3 < friday, "{saturday} against {friday}");
    }
}
