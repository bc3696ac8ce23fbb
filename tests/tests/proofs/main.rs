//! What Muster promises, shown on whole processes: that it does what a stock runner does, and that nothing is lost.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its body does")]

mod differential;
mod faults;
mod kill;
mod life;
mod uploads;
