//! What users and operators see of the engine, on an obliging cloud whose moods a test chooses.

mod ahead;
mod cases;
mod creation;
mod density;
mod hopes;
mod money;
mod offers;
mod operator;
mod promises;
mod provisioner;
mod removal;
mod restart;
mod rig;
mod sleep;
