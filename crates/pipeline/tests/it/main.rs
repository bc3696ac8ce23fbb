//! What the pipeline room promises: the conformance cases of the format, by their numbers, and properties.

mod c_config;
mod c_expression;
mod c_extends;
mod c_graph;
mod c_include;
mod c_missing;
mod c_public;
mod c_rules;
mod case;
mod fuzz;
mod harness;
mod keywords;
mod leaf_properties;
mod load_properties;
mod loading;
mod properties;
mod rendered;
mod speed;
