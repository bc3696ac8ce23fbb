//! Tests of the pipeline compiler: the numbered conformance cases (docs/spec/pipeline-yaml.md, section 8), keywords,
//! error messages, large configurations, property tests and fuzz tests.

#![expect(clippy::indexing_slicing, reason = "a wrong index fails the test, and shows where")]

mod case;
mod conformance_config;
mod conformance_expression;
mod conformance_extends;
mod conformance_graph;
mod conformance_include;
mod conformance_missing;
mod conformance_public;
mod conformance_rules;
mod fuzz;
mod harness;
mod header_includes;
mod keywords;
mod large;
mod load_properties;
mod loading;
mod masked;
mod messages;
mod properties;
mod rendered;
mod text_properties;
