//! The promises kept by the real model: the embedded one, with its trained draft head.

use std::path::PathBuf;

use checkpoint::Checkpoint;
use kernels::{Bits, Cpu, Isa, KvType};
use model::Model;
use model::network::ModelOptions;

use super::rig::{Rig, config};
use crate::config::{EngineConfig, PrefixCache, Speculation};
use crate::request::{Request, Sampling};

/// The embedded model, with stores for this configuration.
pub(super) fn model(config: &EngineConfig) -> Model {
    with_types(config, (Bits::AsStored, KvType::F32))
}

/// How the weights are packed, and the KV.
type Types = (Bits, KvType);

fn with_types(config: &EngineConfig, (bits, kv_type): Types) -> Model {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/outrider-tiny");
    let checkpoint = Checkpoint::open(&folder).expect("the embedded model");
    let options = ModelOptions {
        bits,
        kv_type,
        n_blocks: config.n_blocks,
        n_slots: config.n_slots,
        max_rows: config.max_rows(),
        max_drafts: config.max_drafts,
        draft: config.speculation != Speculation::Off,
    };
    Model::load(&checkpoint, Cpu::new(2, Isa::detect()), &options, &mut |_| {}).expect("it loads")
}

fn rig(config: EngineConfig, types: Types) -> Rig {
    Rig::with_model(Box::new(with_types(&config, types)), config)
}

/// Prompts with a common beginning, at every kind of temperature, some penalised.
fn requests() -> Vec<Request> {
    let common = (0..130_u32).map(|i| 300 + i * i % 1000);
    [(0.0, 20, 1.0), (0.8, 150, 1.0), (0.0, 190, 1.3), (1.3, 260, 1.1), (0.6, 64, 1.0)]
        .into_iter()
        .enumerate()
        .map(|(id, (temperature, n_prompt, repetition_penalty))| {
            let own = (0..).map(|i| 300 + (i * 13 + id as u32 * 7) % 900);
            Request {
                id: id as u64,
                prompt: common.clone().chain(own).take(n_prompt).collect(),
                max_tokens: 60,
                sampling: Sampling {
                    temperature,
                    top_k: 40,
                    repetition_penalty,
                    seed: 5 + id as u64,
                    ignore_eos: true,
                    ..Sampling::greedy()
                },
                boundaries: vec![130.min(n_prompt - 1)],
            }
        })
        .collect()
}

#[test]
fn speculation_company_chunks_and_cache_change_no_token_of_a_real_model() {
    let requests = requests();
    let auto = Speculation::Auto { max_depth: 4 };
    for types in [
        (Bits::AsStored, KvType::F32),
        (Bits::AsStored, KvType::Bf16),
        (Bits::AsStored, KvType::Int8),
        (Bits::Eight, KvType::F32),
        (Bits::Four, KvType::Bf16),
    ] {
        let one = EngineConfig { max_running: 1, chunked_prefill_size: 512, ..config() };
        let mut plain = rig(one, types);
        let alone: Vec<_> = requests.iter().map(|r| plain.alone(r.clone())).collect();
        for (speculation, chunked_prefill_size, n_blocks) in [
            (Speculation::Off, 64, 10),
            (Speculation::Fixed(3), 128, 64),
            (Speculation::Fixed(8), 64, 64),
            (auto, 64, 12),
        ] {
            let config = EngineConfig {
                speculation,
                chunked_prefill_size,
                n_blocks,
                n_slots: 10,
                prefix_cache: Some(PrefixCache { snapshot_interval: 64 }),
                ..config()
            };
            let mut rig = rig(config, types);
            for round in 0..2 {
                let heard: Vec<_> = requests.iter().map(|r| rig.submit(r.clone())).collect();
                rig.run();
                for (i, (heard, alone)) in heard.iter().zip(&alone).enumerate() {
                    let heard = heard.lock().expect("not poisoned");
                    assert_eq!(
                        &heard.tokens, alone,
                        "request {i}, {types:?}, {speculation:?}, {round}"
                    );
                }
            }
            let totals = rig.engine.snapshot.totals;
            assert!(totals.n_cached_tokens > 0);
            // How much the automatic depth drafts depends on the clock, so little is asked of it.
            assert_eq!(totals.n_drafted > 0, speculation != Speculation::Off);
            assert!(totals.n_accepted > 0 || speculation != Speculation::Fixed(3));
        }
    }
}

/// Prompts of every length around a block, a chunk and a snapshot, cold and warm, at every type of KV.
#[test]
fn no_border_changes_a_token_of_a_real_model() {
    for types in [
        (Bits::AsStored, KvType::F32),
        (Bits::AsStored, KvType::Bf16),
        (Bits::AsStored, KvType::Int8),
        (Bits::Four, KvType::F32),
    ] {
        let long = requests()[3].prompt.clone();
        let one = EngineConfig { max_running: 1, chunked_prefill_size: 512, ..config() };
        let mut plain = rig(one, types);
        let config = EngineConfig {
            speculation: Speculation::Fixed(3),
            chunked_prefill_size: 64,
            n_slots: 16,
            prefix_cache: Some(PrefixCache { snapshot_interval: 128 }),
            ..config()
        };
        let mut warm = rig(config, types);
        for n in [1, 2, 61, 62, 63, 64, 65, 66, 100, 126, 127, 128, 129, 130, 191, 192, 193, 256] {
            let request = Request {
                id: n as u64,
                prompt: long[..n].to_vec(),
                max_tokens: 7,
                sampling: Sampling { temperature: 0.8, seed: 3, ..Sampling::greedy() },
                boundaries: vec![n - n.min(3)],
            };
            let alone = plain.alone(request.clone());
            assert_eq!(warm.alone(request.clone()), alone, "{n} tokens, {types:?}");
            assert_eq!(warm.alone(request), alone, "{n} tokens again, {types:?}");
        }
        let n_cached = warm.engine.snapshot.totals.n_cached_tokens;
        assert!(!n_cached.is_multiple_of(64) && n_cached > 1000, "{n_cached}");
    }
}
