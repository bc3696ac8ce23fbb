//! The steps that come with Muster: checkout, cache, artifacts, script.
