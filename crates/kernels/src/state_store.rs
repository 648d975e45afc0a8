//! Recurrent state of the Gated DeltaNet layers, in slots.
//!
//! A slot holds, for each layer, what the sequence has committed: the last inputs of the
//! convolution and the delta state. Drafts are not committed: their inputs are kept in pending
//! rows, from which the next pass replays those that were accepted. All slots share these rows, and
//! a slot has some only between a pass with drafts and its next one: a snapshot never has any.

use std::ops::Range;

use crate::lanes::LANES;
use crate::memory::Arena;
use crate::span::Span;

/// Sizes of the Gated DeltaNet layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Gated DeltaNet layers.
    pub n_layers: usize,
    /// Key (and query) heads.
    pub n_key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub n_value_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel: usize,
}

impl DeltaShape {
    /// Channels of the convolution: all queries, all keys, all values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Elements of the keys of a row.
    pub(crate) fn keys(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    /// Elements of the values of a row.
    pub(crate) fn values(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Columns of a state tile: what fits into the L1 cache with the usual 128 rows.
    pub(crate) fn tile_columns(&self) -> usize {
        [64, 32].into_iter().find(|n| self.value_dim.is_multiple_of(*n)).unwrap_or(LANES)
    }

    /// Tiles of a head.
    pub(crate) fn n_tiles(&self) -> usize {
        self.value_dim.div_ceil(self.tile_columns())
    }

    /// Elements of a state tile.
    pub(crate) fn tile_len(&self) -> usize {
        self.key_dim * self.tile_columns()
    }

    /// Columns of the convolution history.
    pub(crate) fn history(&self) -> usize {
        self.conv_kernel - 1
    }
}

/// Where the parts of one layer of one slot lie, in elements from its start.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// `[history][channels]`, oldest first.
    pub(crate) history: usize,
    /// `[n_value_heads][n_tiles][key_dim][tile_columns]`; missing columns of the last tile are 0.
    pub(crate) state: usize,
    /// Elements of the whole.
    len: usize,
}

impl Layout {
    fn new(shape: &DeltaShape) -> Layout {
        // Every part starts on a cache line.
        let end = |start: usize, len: usize| (start + len).next_multiple_of(LANES);
        let history = 0;
        let state = end(history, shape.history() * shape.channels());
        let len = end(state, shape.n_value_heads * shape.n_tiles() * shape.tile_len());
        Layout { history, state, len }
    }
}

/// Elements of a pending row of one layer: the inputs of the convolution, then the normalised keys,
/// the values, decay factors and learning rates of the delta rule.
fn pending_len(shape: &DeltaShape) -> usize {
    let delta = shape.keys() + shape.values() + 2 * shape.n_value_heads;
    (shape.channels() + delta).next_multiple_of(LANES)
}

/// The two operations that keep state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Conv,
    Delta,
}

/// How far a stage of a layer of a slot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// Positions that are part of the state.
    n_committed: usize,
    /// Rows kept for replay.
    n_pending: usize,
}

/// The recurrent state of all sequences.
pub struct StateStore {
    shape: DeltaShape,
    n_slots: usize,
    layout: Layout,
    /// `[slot][layer][layout.len]`, then `[pending row][layer][pending_len]`
    cells: Arena,
    /// `[slot][layer][stage]`
    progress: Vec<[Progress; 2]>,
    /// The pending rows of each slot, and those of none.
    pending: Vec<Vec<u32>>,
    free: Vec<u32>,
    /// Scratch of the delta rule, kept between its calls.
    prepared: Vec<f32>,
}

impl StateStore {
    /// `n_slots` slots, and `max_drafts` pending rows for the drafts of one pass. The memory of a
    /// slot and of a row is backed when it is first used.
    ///
    /// # Panics
    /// If the value heads are not a multiple of the key heads or there is no convolution.
    pub fn new(shape: DeltaShape, n_slots: usize, max_drafts: usize) -> StateStore {
        assert!(shape.n_value_heads.is_multiple_of(shape.n_key_heads), "{shape:?}");
        assert!(shape.conv_kernel >= 1, "{shape:?}");
        let layout = Layout::new(&shape);
        let n = n_slots * shape.n_layers;
        StateStore {
            shape,
            n_slots,
            cells: Arena::of::<f32>(
                n * layout.len + max_drafts * shape.n_layers * pending_len(&shape),
            ),
            layout,
            progress: vec![Default::default(); n],
            pending: vec![Vec::new(); n_slots],
            free: (0..max_drafts as u32).rev().collect(),
            prepared: Vec::new(),
        }
    }

    /// Bytes of one slot over all layers.
    pub fn bytes_per_slot(shape: &DeltaShape) -> usize {
        shape.n_layers * Layout::new(shape).len * size_of::<f32>()
    }

    /// Bytes of one pending row over all layers.
    pub fn bytes_per_draft(shape: &DeltaShape) -> usize {
        shape.n_layers * pending_len(shape) * size_of::<f32>()
    }

    /// The sizes it was made with.
    pub fn shape(&self) -> &DeltaShape {
        &self.shape
    }

    /// Number of slots.
    pub fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// Copies the committed state of a slot over another, which has no pending rows then.
    ///
    /// # Panics
    /// If a slot does not exist.
    pub fn copy_slot(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize, to as usize);
        assert!(from.max(to) < self.n_slots, "slots {from} and {to} of {}", self.n_slots);
        let n_layers = self.shape.n_layers;
        let len = n_layers * self.layout.len;
        self.cells.as_mut_slice::<f32>().copy_within(from * len..(from + 1) * len, to * len);
        self.progress.copy_within(from * n_layers..(from + 1) * n_layers, to * n_layers);
        self.drop_pending(to);
    }

    /// Takes the pending rows of a slot away; nothing can be replayed there any more.
    fn drop_pending(&mut self, slot: usize) {
        self.free.append(&mut self.pending[slot]);
        let n_layers = self.shape.n_layers;
        let progress = &mut self.progress[slot * n_layers..(slot + 1) * n_layers];
        progress.iter_mut().flatten().for_each(|stage| stage.n_pending = 0);
    }

    /// Committed inputs of the convolution, `[channels, kernel - 1]`, oldest first; zero where
    /// the sequence has not begun. For tests.
    pub fn conv_state(&self, slot: u32, layer: usize) -> Vec<f32> {
        let (history, channels) = (self.shape.history(), self.shape.channels());
        let columns = &self.layer(slot, layer)[self.layout.history..];
        (0..channels)
            .flat_map(|channel| (0..history).map(move |i| columns[i * channels + channel]))
            .collect()
    }

    /// Committed delta state, `[n_value_heads, key_dim, value_dim]`. For tests.
    pub fn delta_state(&self, slot: u32, layer: usize) -> Vec<f32> {
        let shape = self.shape;
        let state = &self.layer(slot, layer)[self.layout.state..];
        let mut out = Vec::with_capacity(shape.keys() * shape.values());
        for head in 0..shape.n_value_heads {
            for row in 0..shape.key_dim {
                out.extend((0..shape.value_dim).map(|c| state[state_index(&shape, head, row, c)]));
            }
        }
        out
    }

    /// Overwrites the delta state of a sequence that has committed positions.
    #[cfg(test)]
    pub(crate) fn set_delta_state(&mut self, slot: u32, layer: usize, values: &[f32]) {
        let shape = self.shape;
        let start = self.start(slot, layer) + self.layout.state;
        let state = &mut self.cells.as_mut_slice::<f32>()[start..];
        for (i, &value) in values.iter().enumerate() {
            let (head, row) = (i / shape.value_dim / shape.key_dim, i / shape.value_dim);
            let (row, column) = (row % shape.key_dim, i % shape.value_dim);
            state[state_index(&shape, head, row, column)] = value;
        }
    }

    fn layer(&self, slot: u32, layer: usize) -> &[f32] {
        let start = self.start(slot, layer);
        &self.cells.as_slice()[start..start + self.layout.len]
    }

    /// First element of a layer of a slot.
    pub(crate) fn start(&self, slot: u32, layer: usize) -> usize {
        (slot as usize * self.shape.n_layers + layer) * self.layout.len
    }

    /// Where the pending rows of a slot lie for a layer, in elements of the cells.
    pub(crate) fn pending(&self, slot: u32, layer: usize) -> Vec<usize> {
        let (n_layers, len) = (self.shape.n_layers, pending_len(&self.shape));
        let first = self.n_slots * n_layers * self.layout.len;
        let start = |row: &u32| first + (*row as usize * n_layers + layer) * len;
        self.pending[slot as usize].iter().map(start).collect()
    }

    /// Elements of a pending row that belong to the delta rule.
    pub(crate) fn pending_delta(&self) -> Range<usize> {
        let DeltaShape { n_value_heads, .. } = self.shape;
        let start = self.shape.channels();
        start..start + self.shape.keys() + self.shape.values() + 2 * n_value_heads
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn cells(&mut self) -> &mut [f32] {
        self.cells.as_mut_slice()
    }

    /// Lends the scratch of the delta rule, at least `len` long, to be given back.
    pub(crate) fn take_prepared(&mut self, len: usize) -> Vec<f32> {
        let mut prepared = std::mem::take(&mut self.prepared);
        if prepared.len() < len {
            prepared.resize(len, 0.0);
        }
        prepared
    }

    pub(crate) fn return_prepared(&mut self, prepared: Vec<f32>) {
        self.prepared = prepared;
    }

    /// Checks that the spans can run through a stage of a layer, and records that they did.
    #[track_caller]
    pub(crate) fn advance(&mut self, stage: Stage, layer: usize, spans: &[Span<'_>]) {
        let n_layers = self.shape.n_layers;
        assert!(layer < n_layers, "layer {layer} of {n_layers}");
        for (i, span) in spans.iter().enumerate() {
            assert!((span.slot as usize) < self.n_slots, "no such slot: {span:?}");
            assert!(
                spans[..i].iter().all(|other| other.slot != span.slot),
                "two spans of one slot: {span:?}"
            );
            let progress =
                &mut self.progress[span.slot as usize * n_layers + layer][stage as usize];
            if span.pos == 0 {
                *progress = Progress::default();
            }
            assert!(
                span.n_replay <= progress.n_pending
                    && span.pos == progress.n_committed + span.n_replay,
                "{span:?} does not continue {progress:?}"
            );
            let n_pending = span.n_rows - span.n_commit;
            *progress = Progress { n_committed: span.pos + span.n_commit, n_pending };
        }
        self.reserve(spans);
    }

    /// Gives each span the pending rows that it reads and writes, and no more. Where too few are
    /// free, slots that are not in the pass lose theirs: their sequences have ended.
    #[track_caller]
    fn reserve(&mut self, spans: &[Span<'_>]) {
        let wanted = |span: &Span<'_>| span.n_replay.max(span.n_rows - span.n_commit);
        for span in spans {
            let rows = &mut self.pending[span.slot as usize];
            self.free.extend(rows.drain(wanted(span).min(rows.len())..));
        }
        let n_missing =
            spans.iter().map(|s| wanted(s) - self.pending[s.slot as usize].len()).sum::<usize>();
        if n_missing > self.free.len() {
            let in_pass = |slot: usize| spans.iter().any(|span| span.slot as usize == slot);
            for slot in (0..self.n_slots).filter(|slot| !in_pass(*slot)) {
                self.drop_pending(slot);
            }
        }
        assert!(n_missing <= self.free.len(), "more drafts in a pass than there are pending rows");
        for span in spans {
            let rows = &mut self.pending[span.slot as usize];
            let n = wanted(span) - rows.len();
            rows.extend(self.free.drain(self.free.len() - n..));
        }
    }
}

/// Index of an element within the states of a layer.
fn state_index(shape: &DeltaShape, head: usize, row: usize, column: usize) -> usize {
    let width = shape.tile_columns();
    let tile = head * shape.n_tiles() + column / width;
    tile * shape.tile_len() + row * width + column % width
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DeltaShape = DeltaShape {
        n_layers: 3,
        n_key_heads: 1,
        n_value_heads: 2,
        key_dim: 4,
        value_dim: 20,
        conv_kernel: 4,
    };

    fn span(
        slot: u32,
        pos: usize,
        n_replay: usize,
        n_rows: usize,
        n_commit: usize,
    ) -> Span<'static> {
        Span { row: 0, n_rows, pos, blocks: &[], slot, n_replay, n_commit }
    }

    #[test]
    fn the_published_sizes() {
        // The 0.8B model: 18.9 MB of delta state and 3 columns of 6144 channels in f32.
        let shape = DeltaShape {
            n_layers: 18,
            n_key_heads: 16,
            n_value_heads: 16,
            key_dim: 128,
            value_dim: 128,
            conv_kernel: 4,
        };
        let expected = 18 * 4 * (16 * 128 * 128 + 3 * 6144);
        assert_eq!(StateStore::bytes_per_slot(&shape), expected);
        let row = 18 * 4 * (6144 + 2048 + 2048 + 2 * 16);
        assert_eq!(StateStore::bytes_per_draft(&shape), row);
    }

    #[test]
    fn states_read_back_and_slots_copy() {
        let mut store = StateStore::new(SHAPE, 2, 1);
        let values: Vec<f32> = (0..160).map(|i| i as f32).collect();
        store.advance(Stage::Delta, 1, &[span(0, 0, 0, 7, 7)]);
        store.set_delta_state(0, 1, &values);
        assert_eq!(store.delta_state(0, 1), values);
        assert_eq!(store.delta_state(0, 0), [0.0; 160]);
        assert_eq!(store.delta_state(1, 1), [0.0; 160]);
        store.copy_slot(0, 1);
        assert_eq!(store.delta_state(1, 1), values);
        store.advance(Stage::Delta, 1, &[span(1, 7, 0, 1, 1)]);
    }

    #[test]
    #[should_panic(expected = "does not continue")]
    fn a_span_that_skips_a_position_is_refused() {
        let mut store = StateStore::new(SHAPE, 1, 2);
        store.advance(Stage::Conv, 0, &[span(0, 0, 0, 5, 5)]);
        store.advance(Stage::Conv, 0, &[span(0, 6, 0, 1, 1)]);
    }

    #[test]
    #[should_panic(expected = "does not continue")]
    fn more_replayed_than_pending_is_refused() {
        let mut store = StateStore::new(SHAPE, 1, 2);
        store.advance(Stage::Conv, 0, &[span(0, 0, 0, 5, 4)]);
        store.advance(Stage::Conv, 0, &[span(0, 6, 2, 1, 1)]);
    }

    #[test]
    fn the_rows_of_ended_sequences_go_to_others() {
        let mut store = StateStore::new(SHAPE, 2, 3);
        store.advance(Stage::Conv, 0, &[span(0, 0, 0, 5, 5), span(1, 0, 0, 5, 5)]);
        store.advance(Stage::Conv, 0, &[span(0, 5, 0, 3, 1), span(1, 5, 0, 2, 1)]);
        assert_eq!((store.pending[0].len(), store.pending[1].len()), (2, 1));
        // One of two is replayed: the other row is free for the other slot.
        store.advance(Stage::Conv, 0, &[span(0, 7, 1, 1, 1), span(1, 7, 1, 3, 1)]);
        assert_eq!((store.pending[0].len(), store.pending[1].len()), (1, 2));
        // Slot 1 rests, so its rows may go.
        store.advance(Stage::Conv, 0, &[span(0, 8, 0, 4, 1)]);
        assert_eq!((store.pending[0].len(), store.pending[1].len()), (3, 0));
        store.advance(Stage::Conv, 0, &[span(1, 8, 0, 1, 1)]);
    }

    #[test]
    #[should_panic(expected = "does not continue")]
    fn what_was_given_away_cannot_be_replayed() {
        let mut store = StateStore::new(SHAPE, 2, 2);
        store.advance(Stage::Conv, 0, &[span(0, 0, 0, 5, 3)]);
        store.advance(Stage::Conv, 0, &[span(1, 0, 0, 5, 3)]);
        store.advance(Stage::Conv, 0, &[span(0, 4, 1, 1, 1)]);
    }

    #[test]
    #[should_panic(expected = "more drafts in a pass")]
    fn more_drafts_than_rows_are_refused() {
        let mut store = StateStore::new(SHAPE, 2, 3);
        store.advance(Stage::Conv, 0, &[span(0, 0, 0, 5, 3), span(1, 0, 0, 5, 3)]);
    }

    #[test]
    #[should_panic(expected = "two spans of one slot")]
    fn a_slot_twice_in_a_batch_is_refused() {
        let mut store = StateStore::new(SHAPE, 1, 0);
        store.advance(Stage::Conv, 0, &[span(0, 0, 0, 1, 1), span(0, 0, 0, 1, 1)]);
    }
}
