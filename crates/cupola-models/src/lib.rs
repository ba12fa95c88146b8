//! Architectures: config and tensor names to a program.
