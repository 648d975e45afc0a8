//! The `outrider` command.

fn main() {}
