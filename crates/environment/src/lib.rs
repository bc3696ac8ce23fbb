//! The provider port and its adapters: how to reach an agent there.
