//! Reads a log in one pass with bounded memory.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use dialects::effective::DRAFTING;
use dialects::log::{
    Accept, Decode, Event, Interval, Lines, Parser, Phase, Prefill, Record, Start, Time, Timing,
    rate,
};
use dialects::{Config, Engine, Factor, Value};

use super::runs::{LogSummary, Run, WarningSeen};
use super::store;
use super::window::{Validity, Window};

/// Bytes read at a time.
const CHUNK: usize = 1 << 18;
/// Requests of llama.cpp whose lines are held together at most.
const MOST_TASKS: usize = 256;
/// Accept lengths and rates kept to find out what the rates mean.
const MOST_PAIRS: usize = 256;
/// Runs kept of one log; a server in a restart loop must not fill memory.
const MOST_RUNS: usize = 200;

/// Builds a [`LogSummary`] from raw bytes.
#[derive(Default)]
pub struct LogReader {
    lines: Lines,
    parser: Parser,
    builder: Builder,
}

impl LogReader {
    /// Takes the next bytes of the log.
    pub fn feed(&mut self, bytes: &[u8]) {
        let (parser, builder) = (&mut self.parser, &mut self.builder);
        self.lines.feed(bytes, &mut |line| builder.line(parser, line));
    }

    /// The summary of everything read.
    pub fn finish(mut self) -> LogSummary {
        let (parser, builder) = (&mut self.parser, &mut self.builder);
        self.lines.finish(&mut |line| builder.line(parser, line));
        let mut summary = self.builder.finish();
        summary.engine = self.parser.engine();
        summary.take_counts(&self.parser.counts);
        summary
    }
}

/// Reads a log file.
///
/// # Errors
/// When the file cannot be read.
pub fn read_file(path: &Path) -> io::Result<LogSummary> {
    read_stream(&mut std::fs::File::open(path)?)
}

/// Reads a log from anywhere.
///
/// # Errors
/// When it cannot be read.
pub fn read_stream(log: &mut dyn Read) -> io::Result<LogSummary> {
    let mut reader = LogReader::default();
    let mut chunk = vec![0; CHUNK];
    loop {
        match log.read(&mut chunk)? {
            0 => return Ok(reader.finish()),
            n => reader.feed(&chunk[..n]),
        }
    }
}

/// Reads a log that is already in memory.
pub fn read_text(text: &str) -> LogSummary {
    let mut reader = LogReader::default();
    reader.feed(text.as_bytes());
    reader.finish()
}

/// What is known of a llama.cpp request before its last line.
#[derive(Clone, Copy, Default)]
struct Task {
    prompt: Option<(f64, u64)>,
    eval: Option<(f64, u64)>,
    window: Option<usize>,
}

#[derive(Default)]
struct Builder {
    /// As far as it is known.
    engine: Option<Engine>,
    summary: LogSummary,
    run: Run,
    line_no: u64,
    last_decode: BTreeMap<u16, (Option<f64>, f32)>,
    prefill_since_decode: bool,
    prefill_in_row: bool,
    /// Tokens of prompts whose last chunk has not come yet, and the queue when the first of them began.
    chunked_prompt: f64,
    chunk_queue: u32,
    tasks: BTreeMap<(u32, i64), Task>,
    pairs: Vec<(f32, f32)>,
    position_sums: Vec<(f64, f64)>,
    first_busy_line: Option<u64>,
}

impl Builder {
    fn line(&mut self, parser: &mut Parser, line: &[u8]) {
        self.line_no += 1;
        parser.line(line, &mut |record| self.record(record));
        self.engine = parser.engine();
    }

    fn record(&mut self, record: Record) {
        if self.begins_run(&record.event) {
            self.end_run();
        }
        let t = record.time.map(|Time { s, .. }| s);
        self.run.clock = self.run.clock.or(record.time.map(|time| time.clock));
        widen(&mut self.run.span, t);
        self.run.replicas = self.run.replicas.max(record.replica.saturating_add(1));
        match record.event {
            Event::Decode(decode) => self.decode(&decode, t, record.replica),
            Event::Prefill(prefill) => self.prefill(&prefill, t),
            Event::Interval(interval) => self.interval(&interval, t, record.replica),
            Event::Accept(accept) => self.accept(&accept),
            Event::Timing(timing) => self.timing(&timing, t),
            Event::Start(start) => self.start(start),
            Event::Retract(retract) => {
                self.run.retract_events += 1;
                self.run.retracted_requests += u64::from(retract.requests);
                self.run.retracted_tokens += retract.tokens.unwrap_or(0);
            }
            Event::Warning(warning) => {
                let line = self.line_no;
                let seen =
                    self.run.warnings.entry(format!("{:?}", warning.kind)).or_insert_with(|| {
                        WarningSeen {
                            says: warning.kind.says().to_owned(),
                            count: 0,
                            line,
                            from: warning.from,
                            to: warning.to,
                        }
                    });
                seen.count += 1;
            }
            Event::Request(request) => {
                if let Some(temperature) = request.temperature.filter(|_| !request.finished) {
                    self.run.temperatures.push(temperature);
                }
                if let Some(tokens) = request.output_tokens {
                    self.run.outputs.push(tokens as f32);
                }
            }
            Event::Access { status } => {
                self.run.answered += 1;
                self.run.errors += u64::from(status >= 400);
            }
        }
    }

    /// A start line after work means that the server was started again.
    fn begins_run(&self, event: &Event) -> bool {
        let starts = matches!(
            event,
            Event::Start(
                Start::Args { resolved: false, .. } | Start::Version(_) | Start::FreeBefore(_)
            )
        ) || matches!(event, Event::Start(Start::Setting(factor, _)) if *factor == Factor::ModelPath);
        starts && (self.run.ready || !self.run.windows.is_empty())
    }

    fn end_run(&mut self) {
        self.run.rate = rate::infer(&self.pairs, None);
        self.run.positions = self.position_sums.iter().map(|(sum, weight)| sum / weight).collect();
        let run = std::mem::take(&mut self.run);
        if !run.is_empty() {
            if self.summary.runs.len() == MOST_RUNS {
                self.summary.runs.remove(0);
            }
            self.summary.runs.push(run);
        }
        let (summary, line_no) = (std::mem::take(&mut self.summary), self.line_no);
        *self = Builder { summary, line_no, engine: self.engine, ..Builder::default() };
    }

    fn finish(mut self) -> LogSummary {
        self.end_run();
        self.summary
    }

    fn busy(&mut self, t: Option<f64>) {
        widen(&mut self.run.busy_span, t);
        let first = *self.first_busy_line.get_or_insert(self.line_no);
        self.run.busy_lines = self.line_no - first + 1;
    }

    fn push(&mut self, window: Window) {
        self.run.windows.push(window);
        store::compact(&mut self.run.windows);
    }

    fn decode(&mut self, line: &Decode, t: Option<f64>, replica: u16) {
        self.busy(t);
        let running = line.running as f32;
        let last = self.last_decode.insert(replica, (t, running));
        let validity = match last {
            _ if line.running == 0 => Validity::Idle,
            None => Validity::AfterIdle,
            Some(_) if self.prefill_since_decode => Validity::AcrossPrefill,
            Some((_, before)) if before != running => Validity::RunningChanged,
            Some(_) => Validity::Clean,
        };
        self.prefill_since_decode = false;
        self.prefill_in_row = false;
        if let (Some(len), Some(rate)) = (line.accept_len, line.accept_rate)
            && self.pairs.len() < MOST_PAIRS
        {
            self.pairs.push((len, rate));
        }
        let per_request = running * line.accept_len.unwrap_or(1.0);
        let steps_per_s =
            (per_request > 0.0 && line.gen_tok_s > 0.0).then(|| line.gen_tok_s / per_request);
        self.push(Window {
            t,
            seconds: last.and_then(|(before, _)| Some((t? - before?) as f32)).filter(|s| *s > 0.0),
            running,
            queue: line.queue.map(|q| q as f32),
            tok_s: line.gen_tok_s,
            accept_len: line.accept_len,
            steps_per_s,
            prompt_tok_s: None,
            kv_usage: line.kv_usage,
            state_usage: line.state_usage,
            hit_rate: None,
            graph: line.graph.map(|on| f32::from(u8::from(on))),
            validity,
            line: self.line_no,
            n: 1,
        });
    }

    fn prefill(&mut self, line: &Prefill, t: Option<f64>) {
        self.busy(t);
        self.prefill_since_decode = true;
        let run = &mut self.run;
        run.prefill_batches += 1;
        run.new_tokens += line.new_tokens;
        run.cached_tokens += line.cached_tokens;
        run.largest_prefill = run.largest_prefill.max(line.new_tokens);
        if let Some(rate) =
            line.input_tok_s.filter(|_| self.prefill_in_row && line.new_tokens >= 512)
        {
            run.prefill_rates.push(rate);
        }
        self.prefill_in_row = true;
        // A full chunk with more to come is part of a prompt; the last part closes it.
        let tokens = (line.new_tokens + line.cached_tokens) as f64;
        let chunk = run.sizes.prefill_chunk.unwrap_or(8192.0);
        let goes_on = line.pending.unwrap_or(0) > 0 && line.new_tokens as f64 >= chunk;
        if self.chunked_prompt == 0.0 {
            self.chunk_queue = line.queue;
        }
        if goes_on && line.new_seq <= 1 {
            self.chunked_prompt += tokens;
        } else {
            // Chunks of several prompts follow one another without a seam; the queue tells how many there were.
            let from_queue = self.chunk_queue.saturating_sub(line.queue);
            let n = line.new_seq.max(if self.chunked_prompt > 0.0 { from_queue } else { 0 }).max(1);
            let each = ((self.chunked_prompt + tokens) / f64::from(n)) as f32;
            for _ in 0..n.min(64) {
                run.prompts.push(each);
            }
            run.arrivals += u64::from(n);
            self.chunked_prompt = 0.0;
        }
    }

    fn interval(&mut self, line: &Interval, t: Option<f64>, replica: u16) {
        self.busy(t);
        let running = line.running as f32;
        let last = self.last_decode.insert(replica, (t, running));
        let steady =
            last.is_some_and(|(_, before)| (before - running).abs() <= (0.1 * before).max(0.0));
        let validity = match last {
            _ if line.gen_tok_s == 0.0 => Validity::Idle,
            None => Validity::AfterIdle,
            Some(_) if steady && line.running > 0 => Validity::Clean,
            Some(_) => Validity::RunningChanged,
        };
        self.run.preemptions += u64::from(line.preemptions.unwrap_or(0));
        self.push(Window {
            t,
            seconds: last.and_then(|(before, _)| Some((t? - before?) as f32)).filter(|s| *s > 0.0),
            running,
            queue: Some(line.waiting as f32),
            tok_s: line.gen_tok_s,
            accept_len: None,
            steps_per_s: (running > 0.0 && line.gen_tok_s > 0.0).then(|| line.gen_tok_s / running),
            prompt_tok_s: Some(line.prompt_tok_s),
            kv_usage: line.kv_usage,
            state_usage: None,
            hit_rate: line.hit_rate,
            graph: None,
            validity,
            line: self.line_no,
            n: 1,
        });
    }

    fn accept(&mut self, line: &Accept) {
        if let Some(what) = line.mismatch() {
            self.summary.contradictions += 1;
            self.summary.contradiction.get_or_insert(what);
        }
        let weight = line.steps().unwrap_or(1.0);
        for (i, share) in line.positions().iter().enumerate() {
            if self.position_sums.len() == i {
                self.position_sums.push((0.0, 0.0));
            }
            self.position_sums[i].0 += f64::from(*share) * weight;
            self.position_sums[i].1 += weight;
        }
        // A depth without a method drafts nothing, says llama.cpp's command line; where the log shows drafts, it errs.
        if self.engine == Some(Engine::LlamaCpp) {
            let stated = self.run.stated.get_or_insert_with(|| Config::new(Engine::LlamaCpp));
            if stated.get(Factor::SpecMethod).is_none() {
                stated.state(Factor::SpecMethod, Value::from(DRAFTING), "log");
            }
        }
        // vLLM writes this line after the interval's, llama.cpp inside a request's block.
        let window = match line.task {
            Some(task) => self.tasks.get(&task).and_then(|task| task.window),
            None => self.run.windows.len().checked_sub(1),
        };
        let eval = line.task.and_then(|task| self.tasks.get(&task)?.eval);
        if let Some(window) = window.and_then(|i| self.run.windows.get_mut(i)) {
            let counted = line.accepted.zip(eval).and_then(|(accepted, (_, tokens))| {
                let steps = tokens.checked_sub(accepted).filter(|steps| *steps > 0)?;
                Some(tokens as f32 / steps as f32)
            });
            if let Some(len) = line.mean_len.or(counted).filter(|len| *len >= 1.0) {
                window.accept_len = Some(len);
                window.steps_per_s =
                    (window.running > 0.0).then(|| window.tok_s / (window.running * len));
            }
        }
    }

    fn timing(&mut self, line: &Timing, t: Option<f64>) {
        self.busy(t);
        let key = line.task.unwrap_or((u32::MAX, 0));
        if self.tasks.len() >= MOST_TASKS {
            self.tasks.pop_first();
        }
        let part = Some((line.ms, line.tokens));
        let task = self.tasks.entry(key).or_default();
        match line.phase {
            Phase::Prompt => {
                *task = Task { prompt: part, ..Task::default() };
                self.run.new_tokens += line.tokens;
                self.run.prefill_batches += 1;
                self.run.prompts.push(line.tokens as f32);
                if line.ms > 0.0 && line.tokens >= 64 {
                    self.run.prefill_rates.push((line.tokens as f64 / line.ms * 1e3) as f32);
                }
            }
            Phase::Eval => {
                task.eval = part;
                task.window = Some(self.run.windows.len());
                let (prompt, speed) = (task.prompt, line.tokens as f64 / line.ms * 1e3);
                if !speed.is_finite() || line.tokens < 2 {
                    task.window = None;
                    return;
                }
                self.run.outputs.push(line.tokens as f32);
                self.run.arrivals += 1;
                self.push(Window {
                    t,
                    seconds: Some((line.ms / 1e3) as f32),
                    running: 1.0,
                    queue: None,
                    tok_s: speed as f32,
                    accept_len: None,
                    steps_per_s: Some(speed as f32),
                    prompt_tok_s: prompt.map(|(ms, tokens)| (tokens as f64 / ms * 1e3) as f32),
                    kv_usage: None,
                    state_usage: None,
                    hit_rate: None,
                    graph: None,
                    validity: Validity::Clean,
                    line: self.line_no,
                    n: 1,
                });
            }
            Phase::Total => {}
        }
    }

    fn start(&mut self, start: Start) {
        let line = self.line_no;
        let run = &mut self.run;
        let sizes = &mut run.sizes;
        match start {
            Start::Args { config, resolved: true } => run.resolved = Some(*config),
            Start::Args { config, resolved: false } => {
                run.asked = Some(*config);
                run.asked_line = line;
            }
            Start::Version(version) => run.version = Some(version),
            Start::Setting(factor, value) => {
                // Only llama.cpp states its settings line by line without any list of arguments.
                let engine = run.asked.as_ref().map_or(Engine::LlamaCpp, |asked| asked.engine);
                run.stated.get_or_insert_with(|| Config::new(engine)).state(factor, value, "log");
            }
            Start::FreeBefore(gib) => sizes.free_before_gib = sizes.free_before_gib.or(Some(gib)),
            Start::Weights { gib, free_gib, quant } => {
                // The draft head's weights come second and belong to the target's.
                if sizes.weights_gib.is_none() {
                    sizes.weights_gib = Some(gib);
                    sizes.free_after_gib = free_gib;
                }
                if let (Some(quant), Some(asked)) = (quant, &mut run.asked)
                    && asked.get(Factor::ModelQuant).is_none()
                {
                    asked.set_flag("--quantization", Some(&quant));
                }
            }
            Start::StatePool { slots, gib, draft_gib } => {
                sizes.state_slots = slots.map(|n| n as f64).or(sizes.state_slots);
                sizes.state_gib = Some(gib);
                sizes.draft_state_gib = draft_gib;
            }
            // The draft head's own pool comes later and has as many tokens.
            Start::KvPool { tokens, gib } => {
                sizes.kv_tokens = sizes.kv_tokens.or(Some(tokens as f64));
                sizes.kv_gib = sizes.kv_gib.or(gib);
            }
            Start::Limits { kv_tokens, max_running, context, prefill_chunk, .. } => {
                sizes.kv_tokens = Some(kv_tokens as f64);
                sizes.max_running = Some(max_running as f64);
                sizes.context = Some(context as f64);
                sizes.prefill_chunk = prefill_chunk.map(|n| n as f64).filter(|n| *n > 0.0);
            }
            Start::Graphs { tokens_per_request, max_batch } => {
                sizes.verify_width = tokens_per_request.map(|n| n as f64).or(sizes.verify_width);
                sizes.graph_max_bs = max_batch.map(|n| n as f64).or(sizes.graph_max_bs);
            }
            Start::Offload { layers, of } => sizes.offloaded = Some((layers, of)),
            Start::Buffer { host: true, kv: true, mib } => {
                *sizes.host_kv_mib.get_or_insert(0.0) += mib
            }
            Start::Buffer { host: true, kv: false, mib } => {
                *sizes.host_weights_mib.get_or_insert(0.0) += mib
            }
            Start::Buffer { host: false, kv: false, mib } => {
                *sizes.weights_gib.get_or_insert(0.0) += mib / 1024.0
            }
            Start::Buffer { .. } => {}
            Start::Ready => run.ready = true,
        }
    }
}

fn widen(span: &mut Option<(f64, f64)>, t: Option<f64>) {
    if let Some(t) = t {
        let (first, last) = span.get_or_insert((t, t));
        *first = first.min(t);
        *last = last.max(t);
    }
}
