//! Why a checkpoint cannot be used: which file, which tensor or entry, and what would be right.

use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be used.
///
/// The variants are what a caller may want to tell apart; the text is for the person who started
/// the program.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as in "cannot read".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file that must be there is not.
    #[error("{} is missing: {why}", path.display())]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// What it is needed for, and how it may have got lost.
        why: String,
    },
    /// A JSON file says something that cannot be read or cannot be honoured.
    #[error("{file}: {problem}")]
    Config {
        /// Name of the file.
        file: String,
        /// The entry, what it says, and what would be right.
        problem: String,
    },
    /// A weight file is damaged or not a safetensors file.
    #[error("{file}: {problem}")]
    Header {
        /// The weight file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor reaches past the end of its file.
    #[error(
        "{file} is cut short: tensor `{tensor}` ends at byte {needs} but the file has {has} bytes; \
         the download may be incomplete"
    )]
    Truncated {
        /// The weight file.
        file: String,
        /// The first tensor that the file does not hold whole.
        tensor: String,
        /// Where the tensor ends, in bytes from the start of the file.
        needs: u64,
        /// Bytes the file has.
        has: u64,
    },
    /// A tensor is there but is not what the configuration implies, or is not there at all.
    #[error("tensor `{tensor}` in {file}: {problem}")]
    Tensor {
        /// Name as it stands, or would stand, in the files.
        tensor: String,
        /// The weight file, or the folder when it is in none.
        file: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

impl CheckpointError {
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn config(file: &str, problem: impl Into<String>) -> Self {
        Self::Config { file: file.to_string(), problem: problem.into() }
    }

    pub(crate) fn header(file: &str, problem: impl Into<String>) -> Self {
        Self::Header { file: file.to_string(), problem: problem.into() }
    }

    pub(crate) fn tensor(tensor: &str, file: &str, problem: impl Into<String>) -> Self {
        Self::Tensor { tensor: tensor.to_string(), file: file.to_string(), problem: problem.into() }
    }
}
