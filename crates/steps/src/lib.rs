//! Step files, references, expressions, and the engine that executes them.
