//! Whole-system and interoperability tests: see `tests/`.
