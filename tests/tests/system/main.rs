//! System tests with real processes: Muster behaves like gitlab-runner, and no job or log is lost.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may panic, and seeds are printed"
)]

mod attacks;
mod checks;
mod config_changes;
mod differential;
mod docker_kill;
mod faults;
mod fleet_faults;
mod fleet_kill;
mod groups;
mod hostile;
mod instances;
mod isolation;
mod kill;
mod operator;
mod reports;
mod secrets;
mod suspension;
mod sustained;
mod taskscaler;
mod uploads;
