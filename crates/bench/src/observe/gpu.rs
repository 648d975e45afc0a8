//! The GPUs of this host through `nvidia-smi`, if it is there; one fixed, reading command.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use crate::stats::median;

/// Time between two reads.
const INTERVAL: Duration = Duration::from_secs(2);
/// What is asked for; older drivers do not know the last one.
const FIELDS: &str = "index,utilization.gpu,memory.used,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active";

/// One GPU over the whole probe.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuSummary {
    /// Its number.
    pub index: u32,
    /// Number of reads.
    pub n: usize,
    /// Median utilisation in percent.
    pub utilization: Option<f64>,
    /// Most memory in use in MiB.
    pub memory_mib: Option<f64>,
    /// Lowest clock of the multiprocessors in MHz.
    pub sm_mhz_least: Option<f64>,
    /// Highest clock of the multiprocessors in MHz.
    pub sm_mhz_most: Option<f64>,
    /// Lowest memory clock in MHz.
    pub memory_mhz_least: Option<f64>,
    /// Median power in watts.
    pub power_w: Option<f64>,
    /// Highest temperature in degrees.
    pub temperature_c: Option<f64>,
    /// Union of the reasons why clocks were not at their highest, as the driver's bit mask.
    pub clock_event_reasons: Option<u64>,
}

/// One line of the tool.
#[derive(Clone, Debug, PartialEq)]
struct Read {
    index: u32,
    /// Utilisation, memory, two clocks, power, temperature, in the order of `FIELDS`.
    values: [Option<f64>; 6],
    reasons: Option<u64>,
}

/// Reads the state of the GPUs in a thread of its own.
pub(crate) struct GpuWatch {
    end: Sender<()>,
    thread: JoinHandle<Vec<Read>>,
}

impl GpuWatch {
    /// `None` on a host without the tool or without a GPU.
    pub(crate) fn start() -> Option<GpuWatch> {
        let fields = [FIELDS, FIELDS.rsplit_once(',')?.0]
            .into_iter()
            .find(|fields| ask(fields).is_some_and(|reads| !reads.is_empty()))?;
        let (end, ended) = channel();
        let thread = std::thread::spawn(move || watch(fields, &ended));
        Some(GpuWatch { end, thread })
    }

    pub(crate) fn finish(self) -> Vec<GpuSummary> {
        // A thread that has ended already needs no signal.
        let _ = self.end.send(());
        self.thread.join().map(|reads| summarise(&reads)).unwrap_or_default()
    }
}

fn watch(fields: &str, ended: &Receiver<()>) -> Vec<Read> {
    let mut reads = Vec::new();
    loop {
        reads.extend(ask(fields).unwrap_or_default());
        if ended.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return reads;
        }
    }
}

fn ask(fields: &str) -> Option<Vec<Read>> {
    let output = Command::new("nvidia-smi")
        .arg(format!("--query-gpu={fields}"))
        .arg("--format=csv,noheader,nounits")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Read> {
    let mut words = line.split(',').map(str::trim);
    let index = words.next()?.parse().ok()?;
    let values = std::array::from_fn(|_| words.next().and_then(|word| word.parse().ok()));
    let mask = words.next().and_then(|word| word.strip_prefix("0x"));
    Some(Read { index, values, reasons: mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()) })
}

fn summarise(reads: &[Read]) -> Vec<GpuSummary> {
    let mut indices: Vec<u32> = reads.iter().map(|read| read.index).collect();
    indices.sort_unstable();
    indices.dedup();
    let summary = |index: u32| {
        let of_gpu: Vec<&Read> = reads.iter().filter(|read| read.index == index).collect();
        let values = |i: usize| -> Vec<f64> { of_gpu.iter().filter_map(|r| r.values[i]).collect() };
        let most = |i| values(i).into_iter().max_by(f64::total_cmp);
        let least = |i| values(i).into_iter().min_by(f64::total_cmp);
        GpuSummary {
            index,
            n: of_gpu.len(),
            utilization: median(&values(0)),
            memory_mib: most(1),
            sm_mhz_least: least(2),
            sm_mhz_most: most(2),
            memory_mhz_least: least(3),
            power_w: median(&values(4)),
            temperature_c: most(5),
            clock_event_reasons: of_gpu.iter().filter_map(|r| r.reasons).reduce(|a, b| a | b),
        }
    };
    indices.into_iter().map(summary).collect()
}

#[cfg(test)]
mod tests {
    use super::{parse, summarise};

    #[test]
    fn lines_of_the_tool_are_summed_up_per_gpu() {
        let lines = [
            "0, 97, 45210, 1740, 9501, 288.10, 71, 0x0000000000000000",
            "1, 12, 45200, 1800, 9501, 110.00, 52, 0x0000000000000000",
            "0, 99, 45214, 1410, 9501, 291.50, 84, 0x0000000000000020",
            "0, [N/A], 45214, [Not Supported], 9501, 290.00, 84",
            "no devices were found",
            "",
        ];
        let reads: Vec<_> = lines.iter().filter_map(|line| parse(line)).collect();
        assert_eq!(reads.len(), 4);
        let gpus = summarise(&reads);
        assert_eq!(gpus.len(), 2);
        assert_eq!((gpus[0].n, gpus[0].utilization), (3, Some(98.0)));
        assert_eq!((gpus[0].sm_mhz_least, gpus[0].sm_mhz_most), (Some(1410.0), Some(1740.0)));
        assert_eq!(gpus[0].clock_event_reasons, Some(0x20));
        assert_eq!(gpus[1].temperature_c, Some(52.0));
    }
}
