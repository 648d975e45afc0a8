//! A thread that turns step records into log lines, the step trace and the numbers of the last window.
//!
//! The engine hands over a record and goes on: a slow disk or a blocked terminal never delays a step.
//! If the thread falls behind by [`QUEUE_LEN`] records the newest are dropped, and their number is
//! printed.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::log_line::{self, Pools};
use crate::record::StepRecord;
use crate::window::{Decoded, Windows};

/// Most records that wait for the thread.
pub const QUEUE_LEN: usize = 4096;

/// What the thread needs.
pub struct ReporterOptions {
    /// Sizes for the lines.
    pub pools: Pools,
    /// Decode steps between two decode lines.
    pub decode_log_interval: u64,
    /// Where log lines go; each is complete, without a line break.
    pub print: Box<dyn FnMut(&str) + Send>,
    /// Where the step trace goes: one JSON object per step and line.
    pub trace: Option<Box<dyn Write + Send>>,
    /// Now, seconds since the Unix epoch: the first window begins here.
    pub now_unix_s: f64,
}

/// The engine's end: takes records.
pub struct Recorder {
    sender: Option<SyncSender<StepRecord>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The readers' end: the last decode window.
#[derive(Clone)]
pub struct LastWindow(Arc<Shared>);

#[derive(Default)]
struct Shared {
    decoded: Mutex<Decoded>,
    n_dropped: AtomicU64,
}

/// Starts the thread.
///
/// # Errors
/// When the operating system gives no thread.
pub fn start(options: ReporterOptions) -> std::io::Result<(Recorder, LastWindow)> {
    let (sender, receiver) = sync_channel(QUEUE_LEN);
    let shared = Arc::new(Shared::default());
    let thread = std::thread::Builder::new().name("telemetry".into()).spawn({
        let shared = Arc::clone(&shared);
        move || report(options, &receiver, &shared)
    })?;
    let recorder =
        Recorder { sender: Some(sender), shared: Arc::clone(&shared), thread: Some(thread) };
    Ok((recorder, LastWindow(shared)))
}

impl Recorder {
    /// Takes one record; never waits.
    pub fn record(&self, step: &StepRecord) {
        let taken = self.sender.as_ref().is_some_and(|sender| sender.try_send(*step).is_ok());
        if !taken {
            self.shared.n_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Recorder {
    /// Waits until everything that was handed over is printed and written.
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by the panic hook; there is nothing to save.
            let _ = thread.join();
        }
    }
}

impl LastWindow {
    /// The last complete decode window; zeros before the first.
    pub fn decoded(&self) -> Decoded {
        *self.0.decoded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(mut options: ReporterOptions, receiver: &Receiver<StepRecord>, shared: &Shared) {
    let mut windows = Windows::new(options.pools, options.decode_log_interval, options.now_unix_s);
    while let Ok(step) = receiver.recv() {
        if let Some(trace) = &mut options.trace
            && let Err(error) = write_trace(trace, &step)
        {
            let line = format!("the step trace ends here, it cannot be written: {error}");
            (options.print)(&log_line::stamped(step.end_unix_s(), &line));
            options.trace = None;
        }
        let due = windows.add(&step);
        for line in &due.lines {
            (options.print)(&log_line::stamped(step.end_unix_s(), line));
        }
        if let Some(decoded) = due.decoded {
            *shared.decoded.lock().unwrap_or_else(PoisonError::into_inner) = decoded;
        }
        let n_dropped = shared.n_dropped.swap(0, Ordering::Relaxed);
        if n_dropped > 0 {
            let line = format!("{n_dropped} step records were dropped: the log is too slow");
            (options.print)(&log_line::stamped(step.end_unix_s(), &line));
        }
    }
    if let Some(trace) = &mut options.trace {
        // The server is ending and its log may be gone; a lost tail of the trace is visible in it.
        let _ = trace.flush();
    }
}

/// One line of the step trace: the fields of [`StepRecord`], as `docs/step-trace.md` lists them.
fn write_trace(trace: &mut (dyn Write + Send), step: &StepRecord) -> std::io::Result<()> {
    serde_json::to_writer(&mut *trace, step)?;
    trace.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("no space"))
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn decode_step(i: u64) -> StepRecord {
        StepRecord {
            step: i,
            start_unix_s: 100.0 + i as f64,
            n_decode_sequences: 1,
            forward_s: 1.0,
            ..StepRecord::default()
        }
    }

    /// Records `n_steps` decode steps; the printed lines.
    fn run(n_steps: u64, trace: Option<Box<dyn Write + Send>>) -> (Vec<String>, Decoded) {
        let (lines, printed) = mpsc::channel();
        let (recorder, last) = start(ReporterOptions {
            pools: Pools { block_len: 64, speculates: false },
            decode_log_interval: 2,
            print: Box::new(move |line| lines.send(line.to_owned()).unwrap()),
            trace,
            now_unix_s: 100.0,
        })
        .unwrap();
        (0..n_steps).for_each(|i| recorder.record(&decode_step(i)));
        drop(recorder);
        (printed.into_iter().collect(), last.decoded())
    }

    #[test]
    fn everything_recorded_is_printed_and_traced_before_the_end() {
        let trace = Memory::default();
        let (lines, decoded) = run(5, Some(Box::new(trace.clone())));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(decoded.n_rounds, 2);
        let written = String::from_utf8(trace.0.lock().unwrap().clone()).unwrap();
        let steps: Vec<u64> = written
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64())
            .map(Option::unwrap)
            .collect();
        assert_eq!(steps, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_trace_that_cannot_be_written_ends_with_one_message() {
        let (lines, _) = run(4, Some(Box::new(Full)));
        let told = lines.iter().filter(|line| line.contains("no space")).count();
        assert_eq!((told, lines.len()), (1, 3), "{lines:?}");
    }

    /// Every field of a record is a row of the document, and every row is a field.
    #[test]
    fn the_step_trace_is_documented() {
        let document = include_str!("../../../docs/step-trace.md");
        let rows: Vec<&str> = document
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        let record = serde_json::to_value(StepRecord::default()).unwrap();
        let mut fields = Vec::new();
        for (name, value) in record.as_object().unwrap() {
            match value.as_object() {
                Some(inner) => fields.extend(inner.keys().map(|key| format!("{name}.{key}"))),
                None => fields.push(name.clone()),
            }
        }
        assert_eq!(rows, fields);
    }
}
