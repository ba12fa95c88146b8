//! The program `cupola`.

fn main() {}
