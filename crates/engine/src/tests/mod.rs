//! Whole engines over the scripted model.

mod rig;

mod lifecycle;
mod prefix;
mod real;
mod sim;
mod speculation;
mod threads;
