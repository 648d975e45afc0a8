//! A model whose passes take a least time, as on a machine with slower memory.

use std::time::{Duration, Instant};

use model::batch::{Batch, DraftSpan, Forward};

/// A model and the least time of a pass of its network.
pub(crate) struct Paced<M> {
    pub(crate) model: M,
    pub(crate) least: Duration,
}

impl<M: Forward> Forward for Paced<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn forward(&mut self, batch: &Batch<'_>, take: &mut dyn FnMut(usize, &[f32])) {
        let begin = Instant::now();
        // What is done with the logits is not part of the pass.
        let mut taking = Duration::ZERO;
        self.model.forward(batch, &mut |i, logits| {
            let begin = Instant::now();
            take(i, logits);
            taking += begin.elapsed();
        });
        std::thread::sleep((self.least + taking).saturating_sub(begin.elapsed()));
    }

    fn draft(
        &mut self,
        spans: &[DraftSpan<'_>],
        pick: &mut dyn FnMut(usize, usize, &[f32]) -> u32,
    ) {
        self.model.draft(spans, pick);
    }

    fn copy_state(&mut self, from: u32, to: u32) {
        self.model.copy_state(from, to);
    }

    fn copy_block(&mut self, from: u32, to: u32) {
        self.model.copy_block(from, to);
    }
}
