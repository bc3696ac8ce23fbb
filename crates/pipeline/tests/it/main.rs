//! What the pipeline room promises: the conformance cases of the format, by their numbers, and properties.

mod c_expression;
mod leaf_properties;
