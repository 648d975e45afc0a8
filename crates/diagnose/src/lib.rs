//! From evidence to a ranked, explained report.
//!
//! The walk of a diagnosis: [`collect`] reads a folder or a host into [`evidence::Evidence`], `facts` turns it into
//! numbers with units and origins, `rules` judge them, `rank` orders what they found, and [`report::Report`] is the one
//! value that every rendering shows.

pub mod collect;
pub mod commands;
pub mod configs;
pub mod effects;
pub mod evidence;
pub mod facts;
pub mod finding;
pub mod fix;
pub mod logs;
pub mod losses;
pub mod mechanisms;
mod pools;
pub mod quantity;
pub mod rank;
pub mod render;
pub mod report;
pub mod rules;
pub mod stats;
pub mod text;

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder that cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Saved evidence that cannot be read back.
    #[error("not saved evidence: {0}")]
    Evidence(String),
    /// A name on the command line that names nothing.
    #[error("{0}")]
    Unknown(String),
    /// Output that could not be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// An error about a path.
    pub(crate) fn io(path: impl Into<String>, source: std::io::Error) -> Error {
        Error::Io { path: path.into(), source }
    }
}
