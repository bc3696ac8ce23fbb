//! Conformance cases of scheduling that need the event loop (pipeline-yaml 8.7).
