//! One raw line in, records out.

use super::wrap::{clean, docker_json, unwrap};
use super::{Event, Record, Start, Time, llamacpp, request, sglang, sglang_start, vllm, warning};
use crate::engine::Engine;
use crate::factor::Factor;
use crate::redact;

/// How many lines there were of each sort.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All lines.
    pub lines: u64,
    /// Lines that gave a record.
    pub understood: u64,
    /// Lines that are known and carry nothing that is used.
    pub harmless: u64,
    /// Lines that no grammar knows, or that were cut.
    pub not_understood: u64,
    /// One of those, made safe to print.
    pub example: Option<String>,
    /// Lines at debug level.
    pub debug: u64,
    /// Lines about single requests.
    pub request_lines: u64,
}

/// Reads the lines of one log, of whatever engine.
#[derive(Default)]
pub struct Parser {
    /// How many lines there were of each sort so far.
    pub counts: Counts,
    engine: Option<Engine>,
    scratch: Vec<u8>,
}

/// What became of a line.
enum Read {
    Events,
    Harmless,
    Unknown,
}

impl Parser {
    /// A parser that has seen nothing yet.
    pub fn new() -> Parser {
        Parser::default()
    }

    /// The engine that wrote the log, as far as the lines tell.
    pub fn engine(&self) -> Option<Engine> {
        self.engine
    }

    /// Reads one line without its newline.
    pub fn line(&mut self, raw: &[u8], out: &mut impl FnMut(Record)) {
        self.counts.lines += 1;
        let mut scratch = std::mem::take(&mut self.scratch);
        let line = clean(raw, &mut scratch);
        let read = match docker_json(line) {
            Some((inner, time)) => inner
                .lines()
                .map(|inner| self.unwrapped(inner.as_bytes(), time, out))
                .last()
                .unwrap_or(Read::Harmless),
            None => self.unwrapped(line, None, out),
        };
        match read {
            Read::Events => self.counts.understood += 1,
            Read::Harmless => self.counts.harmless += 1,
            Read::Unknown if line.trim_ascii().is_empty() => self.counts.harmless += 1,
            Read::Unknown => {
                self.counts.not_understood += 1;
                if self.counts.example.is_none() {
                    self.counts.example = Some(redact::line(
                        &String::from_utf8_lossy(&line[..line.len().min(1000)]),
                        160,
                    ));
                }
            }
        }
        self.scratch = scratch;
    }

    fn unwrapped(
        &mut self,
        line: &[u8],
        outer: Option<Time>,
        out: &mut impl FnMut(Record),
    ) -> Read {
        // The common case first: a SGLang line without any wrapper.
        if let Some(head) = sglang::head(line) {
            return self.sglang(head, out);
        }
        let inner = unwrap(line);
        let time = inner.time.or(outer);
        if let Some(head) = sglang::head(inner.text) {
            return self.sglang(head, out);
        }
        if let Some(head) = vllm::head(inner.text) {
            self.engine = self.engine.or(Some(Engine::Vllm));
            self.counts.debug += u64::from(head.debug);
            return self.vllm(head.message, head.time.or(time), out);
        }
        let (since, message) = llamacpp::head(inner.text);
        let time = since.or(time);
        if since.is_some() || llamacpp::looks_like(message) {
            self.engine = self.engine.or(Some(Engine::LlamaCpp));
            return self.llamacpp(message, time, out);
        }
        self.bare(message, time, out)
    }

    fn sglang(&mut self, head: sglang::Head<'_>, out: &mut impl FnMut(Record)) -> Read {
        self.engine = self.engine.or(Some(Engine::Sglang));
        let emit = |event| Record { time: Some(head.time), replica: head.replica, event };
        if let Some(event) = sglang::batch_line(head.message) {
            out(emit(event));
            return Read::Events;
        }
        if let Some(event) = sglang_start::start_line(head.message) {
            if let Event::Start(Start::Args { config, .. }) = &event {
                self.engine = Some(config.engine);
            }
            out(emit(event));
            return Read::Events;
        }
        self.rest(head.message, Some(head.time), head.replica, sglang_start::is_harmless, out)
    }

    fn vllm(&mut self, message: &[u8], time: Option<Time>, out: &mut impl FnMut(Record)) -> Read {
        if (message.starts_with(b"Engine ") || message.starts_with(b"Avg prompt throughput"))
            && let Some((replica, interval)) = vllm::interval(message)
        {
            out(Record { time, replica, event: Event::Interval(interval) });
            return Read::Events;
        }
        if let Some(accept) = vllm::accept(message) {
            out(Record { time, replica: 0, event: Event::Accept(accept) });
            return Read::Events;
        }
        if let Some(event) = vllm::start(message) {
            out(Record { time, replica: 0, event });
            return Read::Events;
        }
        let read = self.rest(message, time, 0, vllm::is_harmless, out);
        if matches!(read, Read::Events)
            && message.starts_with(b"Upcasting")
            && let Some(dtype) = vllm::upcast_target(message)
        {
            out(Record {
                time,
                replica: 0,
                event: Event::Start(Start::Setting(Factor::ModelDtype, dtype)),
            });
        }
        read
    }

    fn llamacpp(
        &mut self,
        message: &[u8],
        time: Option<Time>,
        out: &mut impl FnMut(Record),
    ) -> Read {
        if let Some(event) = llamacpp::line(message) {
            out(Record { time, replica: 0, event });
            return Read::Events;
        }
        self.rest(message, time, 0, llamacpp::looks_like, out)
    }

    /// A line without any prefix: vLLM's and SGLang's messages as people paste them, access lines, warnings.
    fn bare(&mut self, message: &[u8], time: Option<Time>, out: &mut impl FnMut(Record)) -> Read {
        let vllm_start = [
            &b"Engine "[..],
            b"Avg prompt throughput",
            b"SpecDecoding metrics",
            b"Speculative metrics",
        ];
        if vllm_start.iter().any(|start| message.starts_with(start)) {
            let read = self.vllm(message, time, out);
            if matches!(read, Read::Events) {
                self.engine = self.engine.or(Some(Engine::Vllm));
            }
            return read;
        }
        if sglang::is_batch_line(message) {
            self.engine = self.engine.or(Some(Engine::Sglang));
            return match sglang::batch_line(message) {
                Some(event) => {
                    out(Record { time, replica: 0, event });
                    Read::Events
                }
                None => Read::Unknown,
            };
        }
        if let Some(event @ Event::Start(Start::Args { .. } | Start::Limits { .. })) =
            sglang_start::start_line(message)
        {
            self.engine = self.engine.or(Some(Engine::Sglang));
            out(Record { time, replica: 0, event });
            return Read::Events;
        }
        self.rest(
            message,
            time,
            0,
            |message| message.starts_with(b"INFO:") || message.starts_with(b"WARNING:"),
            out,
        )
    }

    /// What every engine may write: requests, warnings, access lines.
    fn rest(
        &mut self,
        message: &[u8],
        time: Option<Time>,
        replica: u16,
        harmless: fn(&[u8]) -> bool,
        out: &mut impl FnMut(Record),
    ) -> Read {
        if let Some(rest) = message.strip_prefix(b"INFO:") {
            return match access(rest) {
                Some(status) => {
                    out(Record { time, replica, event: Event::Access { status } });
                    Read::Events
                }
                None => Read::Harmless,
            };
        }
        if request::is_request(message) {
            self.counts.request_lines += 1;
            return match request::line(message) {
                Some(request) => {
                    out(Record { time, replica, event: Event::Request(request) });
                    Read::Events
                }
                None => Read::Harmless,
            };
        }
        if let Some(warning) = warning::line(message) {
            out(Record { time, replica, event: Event::Warning(warning) });
            return Read::Events;
        }
        if harmless(message) { Read::Harmless } else { Read::Unknown }
    }
}

/// `     127.0.0.1:50611 - "POST /v1/chat/completions HTTP/1.1" 200 OK`: the status of a generation request.
fn access(rest: &[u8]) -> Option<u16> {
    let quote = memchr::memmem::find(rest, b" - \"POST /")?;
    let status = memchr::memmem::rfind(rest, b"\" ")?;
    let path = &rest[quote + 9..];
    let generates = [
        &b"/v1/chat"[..],
        b"/v1/completions",
        b"/v1/responses",
        b"/v1/messages",
        b"/generate",
        b"/completion",
    ];
    generates.iter().any(|p| path.starts_with(p)).then_some(())?;
    super::scan::count(&rest[status + 2..])
        .filter(|status| *status < 1000)
        .map(|status| status as u16)
}
