//! Measures how fast logs are read: `cargo run --release -p dialects --example log_speed [MIB] [FILE]`.
//!
//! Without a file, lines as SGLang and vLLM write them are repeated; the output is MB/s and the counts.

use std::io::Read;
use std::time::Instant;

use dialects::log::{Lines, Parser};

const SAMPLE: &str = "\
[2026-11-27 08:09:30] Prefill batch, #new-seq: 1, #new-token: 575, #cached-token: 0, full token usage: 0.00, mamba usage: 0.06, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 2734.50
[2026-11-27 08:09:32] Decode batch, #running-req: 1, #full token: 645, full token usage: 0.00, mamba num: 4, mamba usage: 0.06, accept len: 1.73, accept rate: 0.72, cuda graph: True, gen throughput (token/s): 36.90, #queue-req: 0
Oct 03 06:56:31 gpu-a sglang[2917]: [2026-10-03 06:56:31] Decode batch, #running-req: 1, #full token: 1168, full token usage: 0.00, mamba num: 4, mamba usage: 0.11, accept len: 3.15, accept rate: 0.79, cuda graph: True, gen throughput (token/s): 69.23, #queue-req: 0,
[2026-11-27 08:09:45] INFO:     127.0.0.1:50611 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK
(APIServer pid=21877) INFO 11-28 10:01:54 [loggers.py:283] Engine 000: Avg prompt throughput: 194.0 tokens/s, Avg generation throughput: 111.5 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.5%, Prefix cache hit rate: 0.0%
(APIServer pid=21877) INFO 11-28 10:01:54 [metrics.py:121] SpecDecoding metrics: Mean acceptance length: 2.78, Accepted throughput: 71.50 tokens/s, Drafted throughput: 120.30 tokens/s, Accepted: 715 tokens, Drafted: 1203 tokens, Per-position acceptance rate: 0.823, 0.591, 0.369, Avg Draft acceptance rate: 59.4%
a line that no grammar knows, of about the length that application logs have, with some numbers 1 2 3 in it
";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mib: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(512);
    let mut parser = Parser::new();
    let mut lines = Lines::default();
    let mut records = 0u64;
    let mut bytes = 0usize;
    let start = Instant::now();
    match arguments.next() {
        Some(path) => {
            let mut file = std::fs::File::open(path).expect("the file opens");
            let mut chunk = vec![0u8; 1 << 18];
            loop {
                let n = file.read(&mut chunk).expect("the file reads");
                if n == 0 {
                    break;
                }
                bytes += n;
                lines.feed(&chunk[..n], &mut |line| parser.line(line, &mut |_| records += 1));
            }
        }
        None => {
            let chunk = SAMPLE.repeat((1 << 18) / SAMPLE.len());
            while bytes < mib << 20 {
                bytes += chunk.len();
                lines.feed(chunk.as_bytes(), &mut |line| parser.line(line, &mut |_| records += 1));
            }
        }
    }
    lines.finish(&mut |line| parser.line(line, &mut |_| records += 1));
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{:.0} MB/s, {} lines, {records} records, {} not understood",
        bytes as f64 / 1e6 / seconds,
        parser.counts.lines,
        parser.counts.not_understood
    );
}
