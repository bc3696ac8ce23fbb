//! Holds pipelines and jobs, decides what is ready, routes it, keeps traces and artifacts.
