//! Who owns which KV block and which recurrent-state slot.

/// Token positions in one KV block.
pub const BLOCK_LEN: usize = 64;

/// Blocks that hold `n_positions` token positions.
pub fn blocks_for(n_positions: usize) -> usize {
    n_positions.div_ceil(BLOCK_LEN)
}
