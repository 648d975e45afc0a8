//! Whole engines over the scripted model.

mod rig;

mod lifecycle;
mod sim;
mod speculation;
mod threads;
