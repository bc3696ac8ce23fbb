//! Tests of the pipeline compiler: the conformance cases of the format by number, and property tests.

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
mod messages;
mod properties;
mod rendered;
mod speed;
