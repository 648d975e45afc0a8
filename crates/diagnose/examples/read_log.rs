//! Measures how a log is read: `cargo run --release -p diagnose --example read_log FILE`.
//!
//! Prints the rate, the number of lines and windows, and the most memory that the process held.

use std::time::Instant;

fn main() {
    let path = std::env::args().nth(1).expect("a file");
    let bytes = std::fs::metadata(&path).expect("the file is there").len();
    let start = Instant::now();
    let log = diagnose::logs::read_file(path.as_ref()).expect("the file is read");
    let seconds = start.elapsed().as_secs_f64();
    let windows: u32 = log.runs.iter().flat_map(|run| &run.windows).map(|window| window.n).sum();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap_or("?")
        .trim()
        .to_owned();
    println!(
        "{:.0} MB/s, {} lines, {windows} windows in {} runs, peak {peak}",
        bytes as f64 / 1e6 / seconds,
        log.lines,
        log.runs.len()
    );
}
