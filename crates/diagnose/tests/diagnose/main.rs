//! Diagnoses of whole folders: the shipped cases, one scenario per mechanism, odd evidence, and the commands.

mod any_folder;
mod cases;
mod commands;
mod decoys;
mod document;
mod evidence;
mod mechanisms;
mod scenario;
mod story;
mod strangers;
