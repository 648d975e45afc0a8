//! The draft head: one full-attention layer that reads the model's final hidden rows.
//!
//! Its row `t` combines the hidden row of position `t` with the embedding of token `t + 1` and
//! predicts token `t + 2`. It has KV of its own (the last layer of the KV store, same blocks), so
//! every committed position must pass through it: inside [`Model::fill_draft_rows`] while a prompt
//! is prefilled, by [`Model::run_draft_head`] afterwards.

use kernels::Span;

use crate::batch::{Batch, CARRY_ROWS, DraftSpan};
use crate::block::Pass;
use crate::network::{Model, ModelOptions};

/// Per slot, the final hidden rows that the draft head has not consumed yet, at consecutive
/// positions; [`crate::batch::Forward`] says when rows come and go.
pub(crate) struct Carry {
    /// `[slots, CARRY_ROWS, hidden]`.
    rows: Vec<f32>,
    /// Position of the first row and number of rows, per slot.
    held: Vec<(usize, usize)>,
    hidden: usize,
}

impl Carry {
    pub(crate) fn new(options: &ModelOptions, hidden: usize) -> Self {
        let n_slots = if options.draft { options.n_slots } else { 0 };
        Self { rows: vec![0.0; n_slots * CARRY_ROWS * hidden], held: vec![(0, 0); n_slots], hidden }
    }

    /// Drops the rows at and after `pos`; what is left ends right before it, or there is nothing.
    fn cut(&mut self, slot: u32, pos: usize) {
        let (first, n) = &mut self.held[slot as usize];
        *n = pos.saturating_sub(*first).min(*n);
        assert!(*n == 0 || *first + *n == pos, "slot {slot} skipped positions before {pos}");
    }

    /// Appends `rows` `[n, hidden]`, the first of position `pos`.
    fn append(&mut self, slot: u32, pos: usize, rows: &[f32]) {
        let (first, n) = &mut self.held[slot as usize];
        if *n == 0 {
            *first = pos;
        }
        let start = (slot as usize * CARRY_ROWS + *n) * self.hidden;
        *n += rows.len() / self.hidden;
        assert!(*n <= CARRY_ROWS, "slot {slot} carries {n} rows, at most {CARRY_ROWS}");
        self.rows[start..start + rows.len()].copy_from_slice(rows);
    }

    /// The row of position `pos`, if `slot` holds it.
    fn get(&self, slot: u32, pos: usize) -> Option<&[f32]> {
        let (first, n) = self.held[slot as usize];
        let index = pos.checked_sub(first).filter(|i| *i < n)?;
        let start = (slot as usize * CARRY_ROWS + index) * self.hidden;
        Some(&self.rows[start..start + self.hidden])
    }

    pub(crate) fn clear(&mut self, slot: u32) {
        if let Some(held) = self.held.get_mut(slot as usize) {
            held.1 = 0;
        }
    }
}

impl Model {
    /// Runs the draft head over the rows of this pass whose next token is known, and carries over
    /// the hidden rows that still wait for theirs.
    pub(crate) fn fill_draft_rows(&mut self, batch: &Batch<'_>) {
        let width = self.config.hidden_size;
        let mut spans = Vec::with_capacity(batch.spans.len());
        let mut tokens = Vec::with_capacity(batch.tokens.len());
        for span in batch.spans {
            self.carry.cut(span.slot, span.pos);
            let hidden = &self.scratch.last[span.row * width..][..span.n_rows * width];
            if span.n_rows == 1 || span.n_commit < span.n_rows {
                // The next token, or which of these rows count, is known only after this pass.
                self.carry.append(span.slot, span.pos, hidden);
                continue;
            }
            let row = tokens.len();
            let carried = span.pos.checked_sub(1).and_then(|p| self.carry.get(span.slot, p));
            let pos = span.pos - usize::from(carried.is_some());
            if let Some(before) = carried {
                self.scratch.feed[row * width..][..width].copy_from_slice(before);
                tokens.push(batch.tokens[span.row]);
            }
            let known = &batch.tokens[span.row + 1..span.row + span.n_rows];
            let (now, later) = hidden.split_at(known.len() * width);
            self.scratch.feed[tokens.len() * width..][..now.len()].copy_from_slice(now);
            tokens.extend_from_slice(known);
            self.carry.clear(span.slot);
            self.carry.append(span.slot, span.pos + known.len(), later);
            spans.push(plain_span(span.slot, span.blocks, row, tokens.len() - row, pos));
        }
        self.draft_rows(&spans, &tokens);
    }

    /// See [`crate::batch::Forward::draft`].
    pub(crate) fn run_draft_head(
        &mut self,
        drafts: &[DraftSpan<'_>],
        pick: &mut dyn FnMut(usize, usize, &[f32]) -> u32,
    ) {
        let width = self.config.hidden_size;
        let mut spans = Vec::with_capacity(drafts.len());
        let mut tokens = Vec::new();
        for draft in drafts {
            let row = tokens.len();
            for (i, token) in draft.next.iter().enumerate() {
                let hidden = self
                    .carry
                    .get(draft.slot, draft.pos + i)
                    .expect("the slot carries the hidden row of every catch-up position");
                self.scratch.feed[tokens.len() * width..][..width].copy_from_slice(hidden);
                tokens.push(*token);
            }
            self.carry.clear(draft.slot);
            spans.push(plain_span(draft.slot, draft.blocks, row, draft.next.len(), draft.pos));
        }
        self.draft_rows(&spans, &tokens);

        // The last catch-up row of a span gives its first draft; each draft feeds the next.
        let mut active: Vec<usize> = (0..drafts.len()).filter(|i| drafts[*i].depth > 0).collect();
        let mut from: Vec<usize> =
            active.iter().map(|i| spans[*i].row + spans[*i].n_rows - 1).collect();
        let mut step = 0;
        while !active.is_empty() {
            for (row, from) in from.iter().enumerate() {
                let source = from * width..(from + 1) * width;
                self.scratch.feed.copy_within(source, row * width);
            }
            let n = active.len();
            self.scratch.gathered[..n * width].copy_from_slice(&self.scratch.feed[..n * width]);
            tokens.clear();
            self.head(n, &mut |i, logits| tokens.push(pick(active[i], step, logits)));
            step += 1;

            // A draft that is not the last one goes through the layer to give the next.
            let more: Vec<usize> = (0..n).filter(|i| drafts[active[*i]].depth > step).collect();
            for (row, i) in more.iter().enumerate() {
                self.scratch.feed.copy_within(i * width..(i + 1) * width, row * width);
                tokens[row] = tokens[*i];
            }
            tokens.truncate(more.len());
            active = more.iter().map(|i| active[*i]).collect();
            let spans: Vec<Span<'_>> = active
                .iter()
                .enumerate()
                .map(|(row, i)| {
                    let d = &drafts[*i];
                    plain_span(d.slot, d.blocks, row, 1, d.pos + d.next.len() - 1 + step)
                })
                .collect();
            self.draft_rows(&spans, &tokens);
            from = (0..active.len()).collect();
        }
    }

    /// One pass of the draft layer: `feed` rows and next tokens in, `feed` rows after its norm out.
    pub(crate) fn draft_rows(&mut self, spans: &[Span<'_>], tokens: &[u32]) {
        let rows = tokens.len();
        if rows == 0 {
            return;
        }
        let w = self.weights.draft.as_ref().expect("the draft head is loaded");
        let (width, eps) = (self.config.hidden_size, self.config.rms_eps);
        let n = rows * width;
        let s = &mut self.scratch;
        s.set_positions(spans);
        self.cpu.embed(&self.weights.embedding, tokens, &mut s.hidden[..n]);
        self.cpu.rms_norm(&s.hidden[..n], &w.embedding_norm, eps, &mut s.normed[..n]);
        self.cpu.rms_norm(&s.feed[..n], &w.hidden_norm, eps, &mut s.delta[..n]);
        for row in 0..rows {
            let (at, pair) = (row * width, &mut s.gathered[2 * row * width..][..2 * width]);
            pair[..width].copy_from_slice(&s.normed[at..at + width]);
            pair[width..].copy_from_slice(&s.delta[at..at + width]);
        }
        self.cpu.matmul(&w.fc, &s.gathered[..2 * n], &mut s.hidden[..n]);
        let mut pass = Pass {
            cpu: &self.cpu,
            config: &self.config,
            rope: &self.rope,
            spans,
            n_rows: rows,
            kv: &mut self.kv,
            state: &mut self.state,
            scratch: s,
        };
        pass.layer(&w.layer);
        let s = &mut self.scratch;
        self.cpu.rms_norm(&s.hidden[..n], &w.norm, eps, &mut s.feed[..n]);
    }
}

/// A span of certain rows of the draft layer, which has no recurrent state.
fn plain_span<'a>(slot: u32, blocks: &'a [u32], row: usize, n_rows: usize, pos: usize) -> Span<'a> {
    Span { row, n_rows, pos, blocks, slot, n_replay: 0, n_commit: n_rows }
}
