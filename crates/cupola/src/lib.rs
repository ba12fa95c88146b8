//! Run open models locally.
