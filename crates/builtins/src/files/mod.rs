//! Files of a job's workspace: which ones a pattern means, packing them, and unpacking archives without letting one
//! reach outside.

pub(crate) mod extract;
pub(crate) mod pack;
pub(crate) mod select;
