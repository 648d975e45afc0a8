//! A name for a set of weights.

use sha2::{Digest, Sha256};

use crate::{Checkpoint, CheckpointError};

/// Bytes sampled at each place, and places per tensor.
const SAMPLE_BYTES: u64 = 64;
const N_SAMPLES: u64 = 4;

impl Checkpoint {
    /// A short, stable name for these weights, the `weight_version` of the server.
    ///
    /// It is 16 hexadecimal digits of a SHA-256 over `config.json`, over name, type and shape of
    /// every needed tensor, and over 64 bytes at four places of each: beginning, end and between.
    /// It does not depend on the sharding, on the names' prefix or on tensors that are not needed.
    /// Two training steps of one model differ in it; it is no proof against a forger.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn fingerprint(&self) -> Result<String, CheckpointError> {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(&self.config_bytes);
        for (name, (shard, entry)) in &self.tensors {
            part(format!("{name} {} {:?}", entry.type_name(), entry.shape).as_bytes());
            let (start, end) = (entry.range.start, entry.range.end);
            let last = entry.n_bytes().saturating_sub(SAMPLE_BYTES);
            for i in 0..N_SAMPLES {
                let from = start + last * i / (N_SAMPLES - 1);
                part(&self.shards[*shard].read(from..end.min(from + SAMPLE_BYTES))?);
            }
        }
        let digest = hash.finalize();
        Ok(digest[..8].iter().map(|b| format!("{b:02x}")).collect())
    }
}
