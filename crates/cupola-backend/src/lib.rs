//! The backend contract: trait Backend, registry, partition into segments, declines, statistics.
