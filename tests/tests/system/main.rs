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
mod fleet_crash;
mod fleet_faults;
mod groups;
mod hostile;
mod instances;
mod isolation;
mod kill;
mod operator;
mod reports;
mod secrets;
mod soak;
mod suspension;
mod taskscaler;
mod uploads;
