//! The engine of pipelines: a small world to drive it in, properties, and the pure helpers around it.

mod paths;
mod properties;
mod reference;
pub(crate) mod world;
