//! `golden/README.md` says what the tensors are and how near one has to come.

use safetensors::{Dtype, SafeTensors};

use super::*;
use crate::batch::DraftSpan;
use crate::network::Stage;

const HYBRIDS: [&str; 4] =
    ["hybrid-tiny-f32", "hybrid-tiny-bf16", "hybrid-tiny-tied-f32", "hybrid-tiny-tied-bf16"];
const DENSE: [&str; 5] = [
    "qwen3-tiny-f32",
    "qwen3-tiny-bf16",
    "llama-tiny-f32",
    "llama-tiny-bf16",
    "llama3rope-tiny-f32",
];

/// Limits for f32 activations: largest and root-mean-square difference over the golden's rms.
const PEAK: f32 = 2e-4;
const RMS: f32 = 2e-5;

struct Golden(Vec<u8>);

impl Golden {
    fn open(model: &str) -> Self {
        Self(std::fs::read(folder(model).join("golden.safetensors")).expect(model))
    }

    fn bytes(&self, name: &str, dtype: Dtype) -> Option<Vec<u8>> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = file.tensor(name).ok()?;
        assert_eq!(tensor.dtype(), dtype, "{name}");
        Some(tensor.data().to_vec())
    }

    fn get(&self, name: &str) -> Option<Vec<f32>> {
        let bytes = self.bytes(name, Dtype::F32)?;
        let (values, rest) = bytes.as_chunks::<4>();
        assert!(rest.is_empty());
        Some(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        self.get(name).unwrap_or_else(|| panic!("no golden {name}"))
    }

    fn tokens(&self, name: &str) -> Vec<u32> {
        let bytes = self.bytes(name, Dtype::I64).unwrap_or_else(|| panic!("no golden {name}"));
        bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
    }
}

/// Asserts that `ours` is within the limits of the golden `theirs`.
fn check_within(what: &str, ours: &[f32], theirs: &[f32], (peak, rms): (f32, f32)) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let scale = (theirs.iter().map(|x| x * x).sum::<f32>() / theirs.len() as f32).sqrt();
    let scale = scale.max(f32::MIN_POSITIVE);
    let differences = || ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / scale);
    let worst = differences().fold(0.0, |m: f32, d| if d.is_nan() { f32::NAN } else { m.max(d) });
    let mean = (differences().map(|d| d * d).sum::<f32>() / ours.len() as f32).sqrt();
    assert!(worst <= peak && mean <= rms, "{what}: peak {worst:e} rms {mean:e}");
}

pub(super) fn check(what: &str, ours: &[f32], theirs: &[f32]) {
    check_within(what, ours, theirs, (PEAK, RMS));
}

/// Checks recurrent and convolution states of slot 0 against `{prefix}layer{i}.*`.
fn check_states(name: &str, model: &Model, golden: &Golden, prefix: &str) {
    let linear = model
        .config
        .layers
        .iter()
        .enumerate()
        .filter(|(_, k)| matches!(k, checkpoint::config::LayerKind::Linear));
    for (index, (layer, _)) in linear.enumerate() {
        if let Some(conv) = golden.get(&format!("{prefix}layer{layer}.conv_state")) {
            check(&format!("{name} conv {layer}"), &model.state.conv_state(0, index), &conv);
        }
        if let Some(ssm) = golden.get(&format!("{prefix}layer{layer}.ssm_state")) {
            check(&format!("{name} ssm {layer}"), &model.state.delta_state(0, index), &ssm);
        }
    }
}

#[test]
fn prompt_in_one_pass() {
    for name in HYBRIDS.iter().chain(&DENSE) {
        let (mut model, golden) = (load(name), Golden::open(name));
        let ids = golden.tokens("ids");
        let rows: Vec<u32> = (0..ids.len() as u32).collect();
        let batch = Batch { tokens: &ids, spans: &[span(0, ids.len())], logit_rows: &rows };
        let mut look = |stage, hidden: &[f32]| {
            let golden_name = match stage {
                Stage::Embedding => "hidden.0".to_owned(),
                Stage::Layer(i) => format!("hidden.{}", i + 1),
                Stage::Final => "final_hidden".to_owned(),
            };
            if let Some(theirs) = golden.get(&golden_name) {
                check(&format!("{name} {golden_name}"), hidden, &theirs);
            }
        };
        let mut logits = Vec::new();
        model.forward_traced(&batch, &mut look, &mut |_, row| logits.extend_from_slice(row));
        check(&format!("{name} logits"), &logits, &golden.f32("logits"));
        check_states(name, &model, &golden, "");
    }
}

#[test]
fn prompt_in_two_pieces() {
    for name in HYBRIDS.iter().chain(&DENSE) {
        let (mut model, golden) = (load(name), Golden::open(name));
        let ids = golden.tokens("ids");
        let mut logits = run(&mut model, &ids[..29], span(0, 29));
        check_states(name, &model, &golden, "mid.");
        logits.extend(run(&mut model, &ids[29..], span(29, ids.len() - 29)));
        check(&format!("{name} logits"), &logits, &golden.f32("logits"));
        check_states(name, &model, &golden, "");
    }
}

#[test]
fn prompt_shorter_than_the_convolution() {
    for name in HYBRIDS.iter().chain(&DENSE) {
        let (mut model, golden) = (load(name), Golden::open(name));
        let ids = golden.tokens("short.ids");
        let logits = run(&mut model, &ids, span(0, ids.len()));
        check(&format!("{name} short logits"), &logits, &golden.f32("short.logits"));
        check_states(name, &model, &golden, "short.");
    }
}

#[test]
fn greedy_continuation() {
    for name in HYBRIDS.iter().chain(&DENSE) {
        let (mut model, golden) = (load(name), Golden::open(name));
        let (ids, want) = (golden.tokens("ids"), golden.tokens("greedy.tokens"));
        let vocab = model.config.vocab_size;
        let mut last = run(&mut model, &ids, span(0, ids.len()));
        last.drain(..last.len() - vocab);
        let (mut logits, mut tokens) = (last.clone(), vec![argmax(&last)]);
        while tokens.len() < want.len() {
            let pos = ids.len() + tokens.len() - 1;
            let row = run(&mut model, &tokens[tokens.len() - 1..], span(pos, 1));
            tokens.push(argmax(&row));
            logits.extend(row);
        }
        assert_eq!(tokens, want, "{name}");
        check(&format!("{name} greedy logits"), &logits, &golden.f32("greedy.logits"));
    }
}

#[test]
fn bf16_kv_stays_within_bf16_limits() {
    for name in ["hybrid-tiny-bf16", "hybrid-tiny-tied-bf16", "qwen3-tiny-bf16"] {
        let options = ModelOptions { kv_type: KvType::Bf16, ..options(false) };
        let mut model = load_with(name, Cpu::new(2, Isa::detect()), &options);
        let golden = Golden::open(name);
        let ids = golden.tokens("ids");
        let logits = run(&mut model, &ids, span(0, ids.len()));
        check_within(&format!("{name} logits"), &logits, &golden.f32("logits"), (0.3, 4e-2));
    }
}

/// An element loses up to half a 127th of the largest of its head, a bf16 element up to a 256th of
/// itself: the limits are those of bf16.
#[test]
fn int8_kv_stays_within_int8_limits() {
    for name in ["hybrid-tiny-bf16", "hybrid-tiny-tied-bf16", "qwen3-tiny-bf16"] {
        let options = ModelOptions { kv_type: KvType::Int8, ..options(false) };
        let mut model = load_with(name, Cpu::new(2, Isa::detect()), &options);
        let golden = Golden::open(name);
        let ids = golden.tokens("ids");
        let logits = run(&mut model, &ids, span(0, ids.len()));
        check_within(&format!("{name} logits"), &logits, &golden.f32("logits"), (0.3, 4e-2));
    }
}

/// Mean Kullback-Leibler divergence of our distributions from theirs, in nats.
fn divergence(ours: &[f32], theirs: &[f32], vocab: usize) -> f64 {
    let log_sum = |row: &[f32]| {
        let most = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
        most + row.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln()
    };
    let rows = ours.chunks_exact(vocab).zip(theirs.chunks_exact(vocab));
    let divergences = rows.map(|(ours, theirs)| {
        let (our_sum, their_sum) = (log_sum(ours), log_sum(theirs));
        let terms = ours.iter().zip(theirs).map(|(a, b)| {
            let (log_q, log_p) = (f64::from(*a) - our_sum, f64::from(*b) - their_sum);
            log_p.exp() * (log_p - log_q)
        });
        terms.sum::<f64>()
    });
    divergences.sum::<f64>() / (ours.len() / vocab) as f64
}

/// Limits of [`quantised_weights_stay_near`]: rms difference of logits over their rms, and
/// divergence in nats.
const LIMITS_8: (f32, f64) = (0.08, 0.02);
const LIMITS_4: (f32, f64) = (0.45, 0.7);

/// `docs/quantization.md` has these numbers: random weights, as those of the goldens are, leave
/// more of the errors than trained ones.
#[test]
fn quantised_weights_stay_near() {
    for (bits, (rms, nats)) in [(Bits::Eight, LIMITS_8), (Bits::Four, LIMITS_4)] {
        for name in HYBRIDS.iter().chain(&DENSE) {
            let golden = Golden::open(name);
            let (ids, theirs) = (golden.tokens("ids"), golden.f32("logits"));
            let options = ModelOptions { bits, ..options(false) };
            let mut model = load_with(name, Cpu::new(2, Isa::detect()), &options);
            let ours = run(&mut model, &ids, span(0, ids.len()));
            let divergence = divergence(&ours, &theirs, model.config.vocab_size);
            println!("{name} {bits:?}: {divergence:.6} nats");
            check_within(&format!("{name} {bits:?} logits"), &ours, &theirs, (20.0 * rms, rms));
            assert!(divergence <= nats, "{name} {bits:?}: {divergence} nats");
        }
    }
}

#[test]
fn draft_head_rows() {
    for name in HYBRIDS {
        let (mut model, golden) = (load(name), Golden::open(name));
        let next = golden.tokens("mtp.next_ids");
        let hidden = golden.f32("final_hidden");
        model.scratch.feed[..hidden.len()].copy_from_slice(&hidden);
        model.draft_rows(&[span(0, next.len())], &next);
        let rows = model.scratch.feed[..hidden.len()].to_vec();
        check(&format!("{name} mtp hidden"), &rows, &golden.f32("mtp.hidden"));
        model.scratch.gathered[..rows.len()].copy_from_slice(&rows);
        let mut logits = Vec::new();
        model.head(next.len(), &mut |_, row| logits.extend_from_slice(row));
        check(&format!("{name} mtp logits"), &logits, &golden.f32("mtp.logits"));
    }
}

/// Drafts after the prompt, whatever pieces it was prefilled in.
#[test]
fn drafts_after_the_prompt() {
    for name in HYBRIDS {
        let golden = Golden::open(name);
        let (ids, first) = (golden.tokens("ids"), golden.tokens("greedy.tokens")[0]);
        for cut in [70, 1, 29, 69] {
            let mut model = load(name);
            run(&mut model, &ids[..cut], span(0, cut));
            if cut < ids.len() {
                run(&mut model, &ids[cut..], span(cut, ids.len() - cut));
            }
            let (mut tokens, mut logits) = (Vec::new(), Vec::new());
            // A last piece of one row leaves the row before it to the draft head as well.
            let pos = if cut == ids.len() - 1 { cut - 1 } else { ids.len() - 1 };
            let next: Vec<u32> = ids[pos + 1..].iter().copied().chain([first]).collect();
            let draft = DraftSpan { slot: 0, blocks: &BLOCKS, pos, next: &next, depth: 3 };
            model.draft(&[draft], &mut |_, _, row| {
                logits.extend_from_slice(row);
                tokens.push(argmax(row));
                tokens[tokens.len() - 1]
            });
            assert_eq!(tokens, golden.tokens("mtp.draft.tokens"), "{name} cut at {cut}");
            check(&format!("{name} drafts"), &logits, &golden.f32("mtp.draft.logits"));
        }
    }
}

/// The recorded trace of greedy speculation with three drafts: same drafts, same acceptance.
#[test]
fn greedy_speculation() {
    for name in HYBRIDS {
        let (mut model, golden) = (load(name), Golden::open(name));
        let (ids, greedy) = (golden.tokens("ids"), golden.tokens("greedy.tokens"));
        let (drafts, accepted) = (golden.tokens("spec.drafts"), golden.tokens("spec.accepted"));
        let vocab = model.config.vocab_size;
        let logits = run(&mut model, &ids, span(0, ids.len()));
        let mut tokens = vec![argmax(&logits[logits.len() - vocab..])];
        let (mut n_caught_up, mut n_replay) = (0, 0);
        for (round, want) in drafts.chunks_exact(3).enumerate() {
            let pos = ids.len() + tokens.len() - 1;
            assert_eq!(pos - 1, golden.tokens("spec.pos")[round] as usize, "{name} round {round}");
            let next = &tokens[n_caught_up..];
            let first = ids.len() - 1 + n_caught_up;
            let mut rows = vec![tokens[tokens.len() - 1]];
            let draft = DraftSpan { slot: 0, blocks: &BLOCKS, pos: first, next, depth: 3 };
            model.draft(&[draft], &mut |_, _, row| {
                rows.push(argmax(row));
                rows[rows.len() - 1]
            });
            n_caught_up = tokens.len();
            assert_eq!(&rows[1..], want, "{name} round {round}");
            let verify = Span { n_replay, n_commit: 1, ..span(pos, rows.len()) };
            let logits = run(&mut model, &rows, verify);
            let drawn: Vec<u32> = logits.chunks_exact(vocab).map(argmax).collect();
            let n = rows[1..].iter().zip(&drawn).take_while(|(d, t)| d == t).count();
            assert_eq!(n, accepted[round] as usize, "{name} round {round}");
            tokens.extend_from_slice(&drawn[..=n]);
            n_replay = n;
        }
        let n = tokens.len().min(greedy.len());
        assert_eq!(tokens[..n], greedy[..n], "{name}");
    }
}
