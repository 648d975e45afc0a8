//! The same tokens whatever the machine and the sizes: threads, instruction sets, chunks, caches.

use serde_json::{Value, json};

use crate::prompts;
use crate::server::{Server, at_once, failure_of, native, output};

/// Short and long, greedy and sampled.
fn bodies(max_new_tokens: u64) -> Vec<Value> {
    let sampling = |i: u64| {
        json!({"temperature": if i.is_multiple_of(2) { 0.0 } else { 0.8 }, "sampling_seed": i,
            "max_new_tokens": max_new_tokens, "ignore_eos": true})
    };
    let short = (0..3).map(|i| native(prompts::KINDS[i as usize], sampling(i)));
    let long = (3..7).map(|i| native(prompts::long(i, 60 * i as usize), sampling(i)));
    short.chain(long).collect()
}

fn answers(server: &Server, bodies: &[Value]) -> Vec<Vec<u32>> {
    at_once(bodies, |body| output(&server.ok("/generate", body)))
}

/// Each alone, on one thread, without drafts and cached prefixes.
fn plainest(bodies: &[Value]) -> Vec<Vec<u32>> {
    let server = Server::start(&[
        "--threads",
        "1",
        "--speculative-algorithm",
        "none",
        "--disable-radix-cache",
    ]);
    bodies.iter().map(|body| output(&server.ok("/generate", body))).collect()
}

/// The scalar definition is slow in an unoptimised build, so it does less.
#[test]
fn the_scalar_definition_gives_the_same_tokens() {
    let bodies: Vec<Value> = bodies(12).drain(..4).collect();
    let scalar = Server::start(&["--isa", "scalar"]);
    assert_eq!(answers(&scalar, &bodies), plainest(&bodies));
}

#[test]
fn threads_instruction_sets_and_chunks_change_nothing() {
    let bodies = bodies(40);
    let expected = plainest(&bodies);
    let mut variants: Vec<Vec<&str>> = vec![
        vec!["--threads", "1"],
        vec!["--threads", "2"],
        vec!["--threads", "3"],
        vec!["--chunked-prefill-size", "64"],
        vec!["--chunked-prefill-size", "512", "--mamba-track-interval", "64"],
        vec!["--disable-radix-cache"],
        vec!["--max-running-requests", "1"],
    ];
    let best = kernels::Isa::detect();
    for (isa, name) in [(kernels::Isa::Avx2, "avx2"), (kernels::Isa::Avx512, "avx512")] {
        if isa <= best {
            variants.push(vec!["--isa", name]);
        } else {
            let message = failure_of(&["serve", "--port", "0", "--isa", name]);
            assert!(message.contains("does not have"), "{message}");
        }
    }
    for flags in variants {
        let server = Server::start(&flags);
        assert_eq!(answers(&server, &bodies), expected, "{flags:?}");
        // Once more, now that the prefixes are cached.
        assert_eq!(answers(&server, &bodies), expected, "{flags:?}, warm");
    }
}

/// A pool for about two of the seven requests: some are preempted and recomputed.
#[test]
fn preemption_changes_nothing() {
    let bodies = bodies(700);
    let expected = plainest(&bodies);
    for steps in ["0", "3"] {
        let flags = [
            "--context-length",
            "2048",
            "--max-total-tokens",
            "2304",
            "--speculative-num-steps",
            steps,
        ];
        let server = Server::start(&flags);
        assert_eq!(answers(&server, &bodies), expected, "steps {steps}");
        assert!(server.total("n_preempted") > 0, "nothing was preempted");
        assert!(server.is_idle());
    }
}
