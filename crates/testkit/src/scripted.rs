//! A model without weights: logits are a hash of the tokens before them.
//!
//! It keeps what a real model would keep (KV per block and position, recurrent state and pending rows per
//! slot, the draft head's carry and KV) as hashes of token histories, derives every history from that
//! memory, and panics when the memory does not hold what the caller claims. A wrong block table, a stale
//! slot, a wrong count of replayed rows, overlapping leases or a forgotten catch-up of the draft head
//! therefore end a test instead of giving plausible tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::batch::{Batch, CARRY_ROWS, DraftSpan, Forward, Span};

const BLOCK_LEN: usize = 64;
/// Logits are uniform in plus and minus this.
const LOGIT_RANGE: f32 = 4.0;

/// Sizes of a scripted model; each is a limit that it enforces.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Width of a row of logits.
    pub vocab_size: usize,
    /// KV blocks.
    pub n_blocks: usize,
    /// Recurrent-state slots.
    pub n_slots: usize,
    /// Most rows of one pass.
    pub max_rows: usize,
    /// Most rows of a pass that are not committed by it, or replayed before them.
    pub max_drafts: usize,
}

/// How good the draft head is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftHead {
    /// Its logits are the target's.
    AlwaysRight,
    /// It is certain of a token that the target finds least likely.
    AlwaysWrong,
    /// The target's logits or others, by a hash of the history; right in about this many of 100 cases.
    Random(u64),
}

/// Shared with a test that wants the model to misbehave.
#[derive(Debug, Default)]
pub struct Faults {
    /// Passes until one panics; 0 is never.
    panic_in: AtomicU64,
}

impl Faults {
    /// The `n`-th pass from now on panics, once; 1 is the next one.
    pub fn panic_in(&self, n: u64) {
        self.panic_in.store(n, Ordering::SeqCst);
    }

    fn count_down(&self) {
        let step = |n: u64| n.checked_sub(1);
        let before = self.panic_in.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step);
        assert!(before != Ok(1), "an injected fault");
    }
}

/// The scripted model.
pub struct Scripted {
    shape: Shape,
    /// Without one there is no carry, and drafting is a misuse.
    draft_head: Option<DraftHead>,
    /// A row that follows this token has no numbers for logits.
    nan_after: Option<u32>,
    faults: Arc<Faults>,
    kv: Vec<[Option<Kv>; BLOCK_LEN]>,
    head_kv: Vec<[Option<HeadKv>; BLOCK_LEN]>,
    slots: Vec<Option<State>>,
    carries: Vec<Carry>,
}

/// What attention remembers of one position.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kv {
    pos: usize,
    token: u32,
    /// Hash of the history up to and including this token; also the final hidden row.
    hidden: u64,
}

/// What the draft head's attention remembers of one position.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HeadKv {
    pos: usize,
    hidden: u64,
    next: u32,
}

/// Stands for a row that the draft head could not read: the state was resumed right after it.
const NEVER_READ: HeadKv = HeadKv { pos: usize::MAX, hidden: 0, next: 0 };

/// What a slot remembers.
#[derive(Clone, Debug)]
struct State {
    /// Tokens committed.
    pos: usize,
    history: u64,
    /// Tokens of the last pass that it did not commit.
    pending: Vec<u32>,
}

/// Hidden rows that the draft head has not consumed: positions `pos ..`.
#[derive(Clone, Debug, Default)]
struct Carry {
    pos: usize,
    rows: Vec<u64>,
    /// The slot's state was copied: the row before the next one will never be here.
    resumed: bool,
}

impl Scripted {
    /// A model with empty memory.
    pub fn new(shape: Shape, draft_head: Option<DraftHead>) -> Scripted {
        Scripted {
            shape,
            draft_head,
            nan_after: None,
            faults: Arc::default(),
            kv: vec![[None; BLOCK_LEN]; shape.n_blocks],
            head_kv: vec![[None; BLOCK_LEN]; shape.n_blocks],
            slots: vec![None; shape.n_slots],
            carries: vec![Carry::default(); shape.n_slots],
        }
    }

    /// Rows that follow `token` get logits that are not numbers.
    #[must_use]
    pub fn with_nan_after(mut self, token: u32) -> Scripted {
        self.nan_after = Some(token);
        self
    }

    /// The switch that makes this model panic.
    pub fn faults(&self) -> Arc<Faults> {
        Arc::clone(&self.faults)
    }

    /// The history of `n` tokens as attention remembers it. Panics unless the blocks hold it whole.
    fn attended(&self, blocks: &[u32], n: usize) -> u64 {
        (0..n).fold(0, |history, pos| {
            let kv = self.kv[blocks[pos / BLOCK_LEN] as usize][pos % BLOCK_LEN];
            let kv = kv.unwrap_or_else(|| panic!("position {pos}: its block was never written"));
            let hidden = extend(history, kv.token);
            assert_eq!((kv.pos, kv.hidden), (pos, hidden), "position {pos}: stale or foreign KV");
            hidden
        })
    }

    /// Replays, checks and runs the rows of one span; returns the hidden row of each.
    fn run(&mut self, span: &Span<'_>, tokens: &[u32]) -> Vec<u64> {
        let slot = &mut self.slots[span.slot as usize];
        if span.pos == 0 {
            assert_eq!(span.n_replay, 0, "nothing can be replayed before the first token");
            *slot = Some(State { pos: 0, history: 0, pending: Vec::new() });
        }
        let state = slot.as_mut().unwrap_or_else(|| panic!("slot {} holds nothing", span.slot));
        assert!(span.n_replay <= state.pending.len(), "more rows replayed than are pending");
        for &token in &state.pending[..span.n_replay] {
            state.history = extend(state.history, token);
        }
        state.pos += span.n_replay;
        assert_eq!(state.pos, span.pos, "slot {}: its state is at another position", span.slot);
        let mut history = state.history;
        assert!((1..=span.n_rows).contains(&span.n_commit), "at least the first row is certain");
        for &token in &tokens[..span.n_commit] {
            state.history = extend(state.history, token);
        }
        state.pos += span.n_commit;
        state.pending = tokens[span.n_commit..].to_vec();

        assert_eq!(self.attended(span.blocks, span.pos), history, "KV and state disagree");
        let positions = span.pos..;
        positions
            .zip(tokens)
            .map(|(pos, &token)| {
                history = extend(history, token);
                let block = span.blocks[pos / BLOCK_LEN] as usize;
                self.kv[block][pos % BLOCK_LEN] = Some(Kv { pos, token, hidden: history });
                history
            })
            .collect()
    }

    /// Keeps the hidden rows of a span for the draft head, or consumes them at once for a prefill chunk.
    fn carry(&mut self, span: &Span<'_>, tokens: &[u32], hidden: Vec<u64>) {
        let carry = &mut self.carries[span.slot as usize];
        if span.pos == 0 {
            *carry = Carry::default();
        }
        if std::mem::take(&mut carry.resumed) && !span.pos.is_multiple_of(BLOCK_LEN) {
            // A prefix that ends inside a block: nobody else has this one.
            let (block, offset) = (span.blocks[span.pos / BLOCK_LEN], span.pos % BLOCK_LEN);
            self.head_kv[block as usize][offset - 1] = Some(NEVER_READ);
        }
        carry.rows.truncate(span.pos.saturating_sub(carry.pos));
        if carry.rows.is_empty() {
            carry.pos = span.pos;
        }
        assert_eq!(carry.pos + carry.rows.len(), span.pos, "the carry does not end at this span");
        let was_carried = carry.rows.len();
        carry.rows.extend(hidden);
        if span.n_rows == 1 || span.n_commit < span.n_rows {
            assert!(carry.rows.len() <= CARRY_ROWS, "the draft head is too far behind");
            return;
        }
        assert!(was_carried <= 1, "a prefill chunk finds the draft head behind");
        let (from, last) = (carry.pos, carry.rows.len() - 1);
        let rows = std::mem::take(&mut carry.rows);
        *carry = Carry { pos: from + last, rows: vec![rows[last]], resumed: false };
        let next = &tokens[tokens.len() - last..];
        for (i, (&hidden, &next)) in rows.iter().zip(next).enumerate() {
            self.write_head(span.blocks, HeadKv { pos: from + i, hidden, next });
        }
    }

    fn write_head(&mut self, blocks: &[u32], row: HeadKv) {
        self.head_kv[blocks[row.pos / BLOCK_LEN] as usize][row.pos % BLOCK_LEN] = Some(row);
    }

    /// Panics unless the draft head has consumed every row before `pos`. The last row of a block may be
    /// that of another continuation of a shared prefix, and the row before a resumed position is lost.
    fn check_head(&self, blocks: &[u32], pos: usize) {
        let at = |p: usize| (blocks[p / BLOCK_LEN] as usize, p % BLOCK_LEN);
        for pos in (0..pos).filter(|pos| pos % BLOCK_LEN != BLOCK_LEN - 1) {
            let (block, offset) = at(pos);
            let next = self.kv[block][offset + 1].expect("attended before").token;
            let hidden = self.kv[block][offset].expect("attended before").hidden;
            let expected = Some(HeadKv { pos, hidden, next });
            if self.head_kv[block][offset] == Some(NEVER_READ) {
                continue;
            }
            assert_eq!(self.head_kv[block][offset], expected, "the draft head missed a row");
        }
    }

    /// The row of logits after a history that ends with `token`.
    fn target_logits(&self, history: u64, token: u32) -> Vec<f32> {
        match self.nan_after == Some(token) {
            true => vec![f32::NAN; self.shape.vocab_size],
            false => (0..self.shape.vocab_size).map(|id| logit(history, id)).collect(),
        }
    }

    /// The draft head's opinion on what follows a history.
    fn draft_logits(&self, history: u64) -> Vec<f32> {
        let target = (0..self.shape.vocab_size).map(|id| logit(history, id));
        match self.draft_head.expect("this model has no draft head") {
            DraftHead::AlwaysRight => target.collect(),
            DraftHead::Random(percent) if mix(history ^ 0xD5) % 100 < percent => target.collect(),
            DraftHead::Random(_) => {
                (0..self.shape.vocab_size).map(|id| logit(!history, id)).collect()
            }
            DraftHead::AlwaysWrong => {
                let least = target.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
                let wrong = least.expect("a vocabulary").0;
                let certain = |id| if id == wrong { 1e4 } else { 0.0 };
                (0..self.shape.vocab_size).map(certain).collect()
            }
        }
    }
}

impl Forward for Scripted {
    fn vocab_size(&self) -> usize {
        self.shape.vocab_size
    }

    fn forward(&mut self, batch: &Batch<'_>, take: &mut dyn FnMut(usize, &[f32])) {
        self.faults.count_down();
        let n_drafts = |span: &Span<'_>| span.n_replay.max(span.n_rows - span.n_commit);
        let n_drafts = batch.spans.iter().map(n_drafts).sum::<usize>();
        assert!(n_drafts <= self.shape.max_drafts, "{n_drafts} drafts do not fit a pass");
        check_layout(batch, self.shape.max_rows);
        let mut hidden = Vec::with_capacity(batch.tokens.len());
        for span in batch.spans {
            let tokens = &batch.tokens[span.row..span.row + span.n_rows];
            let rows = self.run(span, tokens);
            hidden.extend_from_slice(&rows);
            if self.draft_head.is_some() {
                self.carry(span, tokens, rows);
            }
        }
        for (i, &row) in batch.logit_rows.iter().enumerate() {
            take(i, &self.target_logits(hidden[row as usize], batch.tokens[row as usize]));
        }
    }

    fn draft(
        &mut self,
        spans: &[DraftSpan<'_>],
        pick: &mut dyn FnMut(usize, usize, &[f32]) -> u32,
    ) {
        self.faults.count_down();
        let n_rows: usize = spans.iter().map(|span| span.next.len()).sum();
        assert!(n_rows <= self.shape.max_rows, "{n_rows} catch-up rows do not fit a pass");
        for (i, span) in spans.iter().enumerate() {
            let carry = std::mem::take(&mut self.carries[span.slot as usize]);
            assert_eq!(carry.pos, span.pos, "slot {}: the carry is elsewhere", span.slot);
            assert!(!span.next.is_empty() && span.next.len() <= carry.rows.len());
            let end = span.pos + span.next.len();
            assert!(end + span.depth <= span.blocks.len() * BLOCK_LEN, "too few blocks to draft");
            self.attended(span.blocks, end);
            self.check_head(span.blocks, span.pos);
            for (j, (&hidden, &next)) in carry.rows.iter().zip(span.next).enumerate() {
                self.write_head(span.blocks, HeadKv { pos: span.pos + j, hidden, next });
            }
            self.carries[span.slot as usize].pos = end;
            let last = span.next.len() - 1;
            let mut history = extend(carry.rows[last], span.next[last]);
            for depth in 0..span.depth {
                let token = pick(i, depth, &self.draft_logits(history));
                if depth + 1 < span.depth {
                    // The head feeds on its own output here: the row must be repaired later.
                    let row = HeadKv { pos: end + depth, hidden: !history, next: token };
                    self.write_head(span.blocks, row);
                }
                history = extend(history, token);
            }
        }
    }

    fn copy_state(&mut self, from: u32, to: u32) {
        assert_ne!(from, to);
        let state = self.slots[from as usize].as_ref().expect("the slot holds a state");
        let (pos, history) = (state.pos, state.history);
        self.slots[to as usize] = Some(State { pos, history, pending: Vec::new() });
        self.carries[to as usize] = Carry { pos, rows: Vec::new(), resumed: true };
    }

    fn copy_block(&mut self, from: u32, to: u32) {
        assert_ne!(from, to);
        self.kv[to as usize] = self.kv[from as usize];
        self.head_kv[to as usize] = self.head_kv[from as usize];
    }
}

/// Panics unless the spans tile the rows, slots differ and no two spans write into one block.
fn check_layout(batch: &Batch<'_>, max_rows: usize) {
    assert!(!batch.spans.is_empty(), "an empty pass");
    assert!(batch.tokens.len() <= max_rows, "{} rows, {max_rows} fit", batch.tokens.len());
    let mut row = 0;
    let (mut slots, mut written) = (Vec::new(), Vec::new());
    for span in batch.spans {
        assert_eq!(span.row, row, "spans must tile the rows");
        assert!(span.n_rows > 0, "an empty span");
        row += span.n_rows;
        slots.push(span.slot);
        let blocks = span.pos / BLOCK_LEN..=(span.pos + span.n_rows - 1) / BLOCK_LEN;
        written.extend_from_slice(&span.blocks[blocks]);
    }
    assert_eq!(row, batch.tokens.len(), "spans must tile the rows");
    assert!(batch.logit_rows.is_sorted_by(|a, b| a < b), "logit rows must rise");
    assert!(batch.logit_rows.iter().all(|&r| (r as usize) < row), "a logit row is not there");
    for (ids, what) in [(&mut slots, "slot"), (&mut written, "written block")] {
        ids.sort_unstable();
        assert!(ids.is_sorted_by(|a, b| a < b), "two spans share a {what}");
    }
}

/// The hash of a history and one more token.
fn extend(history: u64, token: u32) -> u64 {
    mix(history.rotate_left(23) ^ mix(u64::from(token) + 1))
}

/// One logit of the row that follows a history.
fn logit(history: u64, id: usize) -> f32 {
    let unit = mix(history ^ mix(id as u64 + 0x5EED)) as f64 / u64::MAX as f64;
    (2.0 * unit as f32 - 1.0) * LOGIT_RANGE
}

/// A bijection of 64 bits with good avalanche (the finaliser of splitmix64).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
