//! What users and operators see of the engine, on an obliging cloud whose moods a test chooses.

mod ahead;
mod cost_limit;
mod creation;
mod density;
mod eta;
mod fixture;
mod offers;
mod operator;
mod provisioner;
mod removal;
mod reservations;
mod restart;
mod spec_cases;
mod suspend;
