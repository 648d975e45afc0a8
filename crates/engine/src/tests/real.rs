//! The promises kept by the real model: the embedded one, with its trained draft head.

use std::path::PathBuf;

use checkpoint::Checkpoint;
use kernels::{Cpu, Isa, KvType};
use model::Model;
use model::network::ModelOptions;

use super::rig::{Rig, config};
use crate::config::{EngineConfig, PrefixCache, Speculation};
use crate::request::{Request, Sampling};

fn rig(config: EngineConfig) -> Rig {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/outrider-tiny");
    let checkpoint = Checkpoint::open(&folder).expect("the embedded model");
    let max_depth = config.speculation.max_depth();
    let options = ModelOptions {
        kv_type: KvType::F32,
        n_blocks: config.n_blocks,
        n_slots: config.n_slots,
        max_rows: config.max_rows(),
        max_logit_rows: config.max_running * (1 + max_depth),
        max_pending: max_depth,
        draft: config.speculation != Speculation::Off,
    };
    let cpu = Cpu::new(2, Isa::detect());
    let model = Model::load(&checkpoint, cpu, &options, &mut |_| {}).expect("it loads");
    Rig::with_model(Box::new(model), config)
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
                boundaries: vec![130.min(n_prompt)],
            }
        })
        .collect()
}

#[test]
fn speculation_company_chunks_and_cache_change_no_token_of_a_real_model() {
    let requests = requests();
    let mut plain = rig(EngineConfig { max_running: 1, chunked_prefill_size: 512, ..config() });
    let alone: Vec<_> = requests.iter().map(|r| plain.alone(r.clone())).collect();
    let auto = Speculation::Auto { max_depth: 4 };
    for (speculation, chunked_prefill_size, n_blocks) in
        [(Speculation::Off, 64, 10), (Speculation::Fixed(3), 128, 64), (auto, 64, 12)]
    {
        let mut rig = rig(EngineConfig {
            speculation,
            chunked_prefill_size,
            n_blocks,
            n_slots: 10,
            prefix_cache: Some(PrefixCache { snapshot_interval: 64 }),
            ..config()
        });
        for round in 0..2 {
            let heard: Vec<_> = requests.iter().map(|r| rig.submit(r.clone())).collect();
            rig.run();
            for (i, (heard, alone)) in heard.iter().zip(&alone).enumerate() {
                let heard = heard.lock().expect("not poisoned");
                assert_eq!(&heard.tokens, alone, "request {i}, {speculation:?}, round {round}");
            }
        }
        let totals = rig.engine.snapshot.totals;
        assert!(totals.n_cached_tokens > 0);
        // How much the automatic depth drafts depends on the clock, so little is asked of it.
        assert_eq!(totals.n_drafted > 0, speculation != Speculation::Off);
        assert!(totals.n_accepted > 0 || speculation != Speculation::Fixed(3));
        println!(
            "{speculation:?}: {} cached, {} preempted, {} of {} accepted",
            totals.n_cached_tokens, totals.n_preempted, totals.n_accepted, totals.n_drafted
        );
    }
}
