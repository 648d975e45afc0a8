//! `cargo xtask log FILE MIB`: a long server log of invented numbers, to measure how fast logs are read.
//!
//! Blocks of the three engines follow one another, bare, from a journal and from a container, with
//! access lines, request dumps and lines that nobody knows in between.

use std::fs::File;
use std::io::{BufWriter, Write};

/// Lines of one block.
const BLOCK_LINES: u64 = 2000;

/// Numbers that look arbitrary and are the same every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Writes about `mib` MiB.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(path: &str, mib: u64) -> std::io::Result<()> {
    let mut out =
        Counted { file: BufWriter::with_capacity(1 << 20, File::create(path)?), bytes: 0 };
    let mut numbers = Numbers(1);
    let mut second: u64 = 0;
    let mut line = Vec::with_capacity(2048);
    while out.bytes < mib << 20 {
        for wrapper in [bare, journal, container] {
            for engine in [sglang, vllm, llamacpp] {
                for _ in 0..BLOCK_LINES {
                    second += u64::from(numbers.below(3) == 0);
                    line.clear();
                    wrapper(&mut line, second)?;
                    engine(&mut line, second, &mut numbers)?;
                    line.push(b'\n');
                    out.write_all(&line)?;
                }
            }
        }
    }
    out.file.flush()
}

struct Counted {
    file: BufWriter<File>,
    bytes: u64,
}

impl Counted {
    fn write_all(&mut self, line: &[u8]) -> std::io::Result<()> {
        self.bytes += line.len() as u64;
        self.file.write_all(line)
    }
}

/// Day of November, hour, minute and second.
fn clock(second: u64) -> (u64, u64, u64, u64) {
    (1 + second / 86_400 % 28, second / 3600 % 24, second / 60 % 60, second % 60)
}

fn bare(_: &mut Vec<u8>, _: u64) -> std::io::Result<()> {
    Ok(())
}

fn journal(line: &mut Vec<u8>, second: u64) -> std::io::Result<()> {
    let (day, h, m, s) = clock(second);
    write!(line, "2026-11-{day:02}T{h:02}:{m:02}:{s:02}+0000 gpu-a llm[4121]: ")
}

fn container(line: &mut Vec<u8>, second: u64) -> std::io::Result<()> {
    let (day, h, m, s) = clock(second);
    write!(line, "2026-11-{day:02}T{h:02}:{m:02}:{s:02}.104733512Z stdout F ")
}

fn sglang(line: &mut Vec<u8>, second: u64, n: &mut Numbers) -> std::io::Result<()> {
    let (day, h, m, s) = clock(second);
    write!(line, "[2026-11-{day:02} {h:02}:{m:02}:{s:02} TP0] ")?;
    let (running, tokens, hundredth) = (1 + n.below(16), n.below(200_000), n.below(100));
    match n.below(20) {
        0 => write!(
            line,
            "Prefill batch, #new-seq: 1, #new-token: {}, #cached-token: {tokens}, full token usage: 0.{hundredth:02}, mamba usage: 0.46, #running-req: {running}, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): {}.50",
            n.below(8192),
            n.below(9000)
        ),
        1 | 2 => write!(
            line,
            "INFO:     10.0.0.{running}:50{hundredth:03} - \"POST /v1/chat/completions HTTP/1.1\" 200 OK"
        ),
        3 => write!(
            line,
            "Receive: obj=GenerateReqInput(rid='{tokens:032x}', text='A question about tides and a table of {tokens} readings, which goes on for a while', sampling_params={{'temperature': 0.{hundredth:02}, 'max_new_tokens': 512}}, stream=True)"
        ),
        4 => write!(
            line,
            "a message number {tokens} that no grammar knows, from a plugin of somebody"
        ),
        _ => write!(
            line,
            "Decode batch, #running-req: {running}, #full token: {tokens}, full token usage: 0.{hundredth:02}, mamba num: {}, mamba usage: 0.46, accept len: 2.{hundredth:02}, accept rate: 0.{hundredth:02}, cuda graph: True, gen throughput (token/s): {}.{hundredth:02}, #queue-req: {}",
            running * 4,
            running * 50 + n.below(20),
            n.below(3)
        ),
    }
}

fn vllm(line: &mut Vec<u8>, second: u64, n: &mut Numbers) -> std::io::Result<()> {
    let (day, h, m, s) = clock(second);
    write!(line, "(APIServer pid=21877) INFO 11-{day:02} {h:02}:{m:02}:{s:02} ")?;
    let (running, tokens, tenth) = (1 + n.below(32), n.below(3000), n.below(10));
    match n.below(6) {
        0 => write!(
            line,
            "[metrics.py:121] SpecDecoding metrics: Mean acceptance length: 2.74, Accepted throughput: {tokens}.50 tokens/s, Drafted throughput: {tokens}.90 tokens/s, Accepted: {tokens} tokens, Drafted: {} tokens, Per-position acceptance rate: 0.760, 0.560, 0.420, Avg Draft acceptance rate: 58.0%",
            tokens * 2
        ),
        1 | 2 => write!(
            line,
            "[logger.py:42] 10.0.0.{running}:50432 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK"
        ),
        _ => write!(
            line,
            "[loggers.py:283] Engine 000: Avg prompt throughput: {tokens}.{tenth} tokens/s, Avg generation throughput: {}.{tenth} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: {tenth}.3%, Prefix cache hit rate: 4{tenth}.0%",
            running * 80
        ),
    }
}

fn llamacpp(line: &mut Vec<u8>, second: u64, n: &mut Numbers) -> std::io::Result<()> {
    let (_, _, m, s) = clock(second);
    let (task, tokens) = (second, 100 + n.below(900));
    write!(line, "{m}.{s:02}.{:03}.{:03} I ", n.below(1000), n.below(1000))?;
    match n.below(7) {
        0 => write!(
            line,
            "slot print_timing: id  0 | task {task} | prompt eval time =    {tokens}.47 ms /   655 tokens (    5.33 ms per token,   187.60 tokens per second)"
        ),
        1 => write!(
            line,
            "slot print_timing: id  0 | task {task} |        eval time =   {tokens}98.93 ms /   {tokens} tokens (   76.35 ms per token,    13.10 tokens per second)"
        ),
        2 => write!(
            line,
            "slot print_timing: id  0 | task {task} | draft acceptance = 0.63844 (  475 accepted /   744 generated), mean len =  2.92"
        ),
        3 => write!(
            line,
            "slot      release: id  0 | task {task} | stop processing: n_tokens = {tokens}, truncated = 0"
        ),
        4 => write!(line, "slot launch_slot_: id  0 | task {task} | processing task, is_child = 0"),
        5 => write!(line, "srv  update_slots: all slots are idle"),
        _ => write!(line, "srv  log_server_r: request: POST /v1/chat/completions 10.0.0.7 200"),
    }
}
