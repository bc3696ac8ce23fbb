//! The binary: parses arguments and wires the rooms together.
fn main() {}
