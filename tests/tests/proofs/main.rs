//! System tests with whole processes: Muster does what gitlab-runner does, and no job or log is lost.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of a test fail as its body does, and seeds are printed"
)]

mod differential;
mod faults;
mod fleet_faults;
mod fleet_kill;
mod groups;
mod hostile;
mod instances;
mod isolation;
mod keeping;
mod kill;
mod life;
mod operator;
mod reports;
mod suspension;
mod sustained;
mod taskscaler;
mod uploads;
