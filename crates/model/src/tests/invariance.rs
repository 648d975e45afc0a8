//! The logits of a row depend on its own sequence and on nothing else, to the bit.

use super::*;
use crate::batch::DraftSpan;

/// A prompt that spans three blocks, from a fixed congruential sequence.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 16) % 350
    };
    (0..len).map(|_| next()).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// A model and the bits its weights are packed in.
type Case = (&'static str, Bits);

const CASES: [Case; 8] = [
    ("hybrid-tiny-f32", Bits::AsStored),
    ("hybrid-tiny-tied-bf16", Bits::AsStored),
    ("qwen3-tiny-bf16", Bits::AsStored),
    ("llama-tiny-f32", Bits::AsStored),
    ("hybrid-tiny-tied-bf16", Bits::Eight),
    ("hybrid-tiny-f32", Bits::Four),
    ("qwen3-tiny-bf16", Bits::Four),
    ("llama-tiny-f32", Bits::Eight),
];

fn load_case((name, bits): Case, cpu: Cpu, draft: bool) -> Model {
    load_with(name, cpu, &ModelOptions { bits, ..options(draft) })
}

/// On two threads, with the draft head where there is one.
fn load_whole(case: Case) -> Model {
    load_case(case, Cpu::new(2, Isa::detect()), case.0.starts_with("hybrid"))
}

/// Every row's logits when the prompt runs in one piece on two threads.
fn alone(case: Case, tokens: &[u32]) -> Vec<u32> {
    bits(&run(&mut load_whole(case), tokens, span(0, tokens.len())))
}

#[test]
fn chunking_changes_no_bit() {
    for case in CASES {
        let tokens = prompt(1, 120);
        let want = alone(case, &tokens);
        for chunk in [1, 2, 3, 17, 63, 64, 65, 119] {
            // Without the draft head: single rows would pile up waiting for it.
            let mut model = load_case(case, Cpu::new(2, Isa::detect()), false);
            let mut logits = Vec::new();
            for (i, piece) in tokens.chunks(chunk).enumerate() {
                logits.extend(run(&mut model, piece, span(i * chunk, piece.len())));
            }
            assert_eq!(bits(&logits), want, "{case:?} in chunks of {chunk}");
        }
    }
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    for case in CASES {
        let tokens = prompt(2, 100);
        let want = alone(case, &tokens);
        let mut machines = vec![(1, Isa::detect()), (3, Isa::detect()), (2, Isa::Scalar)];
        if Isa::detect() == Isa::Avx512 {
            machines.push((2, Isa::Avx2));
        }
        for (threads, isa) in machines {
            let mut model = load_case(case, Cpu::new(threads, isa), false);
            let logits = run(&mut model, &tokens, span(0, tokens.len()));
            assert_eq!(bits(&logits), want, "{case:?} on {threads} threads of {isa}");
        }
    }
}

/// Four sequences of different lengths advance together, prefill beside decode.
#[test]
fn batch_mates_change_no_bit() {
    for case in CASES {
        let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(10 + i, 40 + 23 * i as usize)).collect();
        let blocks: Vec<[u32; 2]> = (0..4).map(|i| [i, 15 - i]).collect();
        let want: Vec<Vec<u32>> = prompts.iter().map(|p| alone(case, p)).collect();
        let mut model = load_whole(case);
        let vocab = model.config.vocab_size;
        let mut got: Vec<Vec<u32>> = vec![Vec::new(); 4];
        let mut done = [0; 4];
        let mut step = 0;
        while (0..4).any(|i| done[i] < prompts[i].len()) {
            let (mut tokens, mut spans, mut who) = (Vec::new(), Vec::new(), Vec::new());
            for i in 0..4 {
                // Sequences differ in chunk size, and rest in some steps.
                let n = [1, 7, 30, 13][(i + step) % 4].min(prompts[i].len() - done[i]);
                if n == 0 || (i + step) % 5 == 0 {
                    continue;
                }
                let span = Span {
                    row: tokens.len(),
                    n_rows: n,
                    pos: done[i],
                    blocks: &blocks[i],
                    slot: i as u32,
                    n_replay: 0,
                    n_commit: n,
                };
                spans.push(span);
                tokens.extend_from_slice(&prompts[i][done[i]..done[i] + n]);
                who.push((i, n));
                done[i] += n;
            }
            step += 1;
            if spans.is_empty() {
                continue;
            }
            let rows: Vec<u32> = (0..tokens.len() as u32).collect();
            let batch = Batch { tokens: &tokens, spans: &spans, logit_rows: &rows };
            let logits = model.logits(&batch);
            let mut logits = logits.chunks_exact(vocab);
            for (i, n) in who {
                (0..n).for_each(|_| got[i].extend(bits(logits.next().expect("a row"))));
            }
        }
        assert_eq!(got, want, "{case:?}");
    }
}

/// Rejected drafts leave no trace: verify passes give the logits of plain decoding.
#[test]
fn rejected_drafts_change_no_bit() {
    for case in CASES.into_iter().filter(|(name, _)| name.starts_with("hybrid")) {
        let tokens = prompt(3, 110);
        let want = alone(case, &tokens);
        let mut model = load_whole(case);
        let vocab = model.config.vocab_size;
        run(&mut model, &tokens[..20], span(0, 20));
        let (mut pos, mut n_replay, mut round) = (20, 0, 0);
        let mut first = 19; // First position that the draft head has not caught up with.
        while pos < tokens.len() {
            // Of the drafted rows, the first `n` are the true tokens and the rest are not.
            let n_drafts = [3, 4, 1, 2][round % 4];
            let n = [0, 4, 1, 2, 3][round % 5].min(n_drafts).min(tokens.len() - pos - 1);
            let mut rows = tokens[pos..pos + 1 + n].to_vec();
            rows.extend((n..n_drafts).map(|i| (tokens[(pos + i) % tokens.len()] + 7) % 350));
            let next = &tokens[first + 1..=pos];
            let draft = DraftSpan { slot: 0, blocks: &BLOCKS, pos: first, next, depth: 2 };
            model.draft(&[draft], &mut |_, _, row| argmax(row));
            first = pos;
            let verify = Span { n_replay, n_commit: 1, ..span(pos, rows.len()) };
            let logits = bits(&run(&mut model, &rows, verify));
            let got = &logits[..(n + 1) * vocab];
            assert_eq!(got, &want[pos * vocab..][..got.len()], "{case:?} at {pos}");
            pos += n + 1;
            n_replay = n;
            round += 1;
        }
    }
}
