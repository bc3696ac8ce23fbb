//! Tests of the engine with a simulated cloud.

mod ahead;
mod cost_limit;
mod creation;
mod density;
mod eta;
mod fixture;
mod operator;
mod provider_notices;
mod provisioner;
mod removal;
mod reservations;
mod restart;
mod spec_cases;
mod suspend;
