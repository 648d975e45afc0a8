//! Whole engines over the scripted model.

pub(crate) mod rig;

mod distribution;
mod lifecycle;
mod prefix;
mod real;
mod sim;
mod speculation;
mod threads;
