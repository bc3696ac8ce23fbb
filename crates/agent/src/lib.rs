//! Serves agent-api over a socket, runs the engine, spools logs and results on disk.
