//! Follows the server's log while it is measured: a file, a journal unit or a container.
//!
//! Lines are parsed where they are read and then forgotten: logs may hold other people's prompts.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dialects::log::{Event, Lines, Parser, Record};
use serde::Serialize;

/// How often a file is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How long the last lines may come after the last answer.
const LINGER: Duration = Duration::from_millis(300);
/// Longest complaint of a program that is told on, in bytes.
const COMPLAINT: usize = 200;
/// Most records that are kept.
const MOST: usize = 200_000;

/// Where the server's log is.
#[derive(Clone, Debug, PartialEq)]
pub enum LogSource {
    /// A file that grows.
    File(PathBuf),
    /// A unit of the system's journal.
    Journal(String),
    /// A container.
    Docker(String),
}

impl FromStr for LogSource {
    type Err = String;

    /// `FILE`, `journal:UNIT` or `docker:NAME`.
    fn from_str(text: &str) -> Result<LogSource, String> {
        // A name is an argument of a fixed command; it must not look like an option.
        let name = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:\\".contains(c);
            let good = !name.is_empty() && !name.starts_with('-') && name.chars().all(plain);
            good.then(|| name.to_owned()).ok_or_else(|| format!("{name:?} is not a name"))
        };
        if let Some(unit) = text.strip_prefix("journal:") {
            name(unit).map(LogSource::Journal)
        } else if let Some(container) = text.strip_prefix("docker:") {
            name(container).map(LogSource::Docker)
        } else {
            Ok(LogSource::File(PathBuf::from(text)))
        }
    }
}

impl fmt::Display for LogSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogSource::File(path) => write!(f, "{}", path.display()),
            LogSource::Journal(unit) => write!(f, "journal:{unit}"),
            LogSource::Docker(name) => write!(f, "docker:{name}"),
        }
    }
}

/// What the log said during the probe.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogSummary {
    /// Lines that were written.
    pub n_lines: u64,
    /// Lines about decoding among them.
    pub n_decode: usize,
    /// Tokens per verify step over the decode lines, weighted by running requests.
    pub accept_len: Option<f64>,
    /// Warnings, by what they say.
    pub warnings: Vec<String>,
    /// Everything that was understood, for a diagnosis; never a text of a request.
    #[serde(skip)]
    pub records: Vec<Record>,
    /// When each of them was read.
    #[serde(skip)]
    pub(crate) read_at: Vec<Instant>,
    /// Why the log was not followed to the end, if it was not.
    #[serde(skip)]
    pub(crate) gap: Option<String>,
}

/// A log that is being followed.
pub(crate) struct LogTail {
    /// Its name, for gaps.
    source: String,
    found: Arc<Mutex<Found>>,
    end: Arc<AtomicBool>,
    child: Option<Child>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Found {
    n_lines: u64,
    /// The first line: it may be the complaint of a program.
    first: Vec<u8>,
    records: Vec<Record>,
    read_at: Vec<Instant>,
}

impl LogTail {
    pub(crate) fn start(source: &LogSource) -> std::io::Result<LogTail> {
        let found = Arc::new(Mutex::new(Found::default()));
        let end = Arc::new(AtomicBool::new(false));
        let source_name = source.to_string();
        let mut tail =
            LogTail { source: source_name, found, end, child: None, threads: Vec::new() };
        match source {
            LogSource::File(path) => {
                let follow = Follow::at_the_end(path)?;
                let (found, end) = (tail.found.clone(), tail.end.clone());
                tail.threads.push(std::thread::spawn(move || follow.until(&end, &found)));
            }
            LogSource::Journal(unit) => {
                tail.run(
                    "journalctl",
                    &["--follow", "--lines=0", "--output=short-iso", "-u", unit],
                )?;
            }
            LogSource::Docker(name) => {
                tail.run("docker", &["logs", "--follow", "--tail", "0", name])?;
            }
        }
        Ok(tail)
    }

    /// Follows what a reading command prints; containers log on both streams.
    fn run(&mut self, program: &str, arguments: &[&str]) -> std::io::Result<()> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| std::io::Error::new(error.kind(), format!("{program}: {error}")))?;
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as _),
            child.stderr.take().map(|stream| Box::new(stream) as _),
        ];
        for mut stream in streams.into_iter().flatten() {
            let found = self.found.clone();
            self.threads.push(std::thread::spawn(move || {
                let mut intake = Intake::new(&found);
                let mut buffer = [0; 8192];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    intake.feed(&buffer[..n]);
                }
            }));
        }
        self.child = Some(child);
        Ok(())
    }

    /// Waits for the last lines, ends what follows them, and sums up.
    pub(crate) fn finish(mut self) -> LogSummary {
        std::thread::sleep(LINGER);
        self.end.store(true, Ordering::Relaxed);
        let mut ended = None;
        if let Some(child) = &mut self.child {
            ended = child.try_wait().ok().flatten();
            if ended.is_none() {
                kill_group(child);
            }
            // Both fail only if the command has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        // A command that ended may have left somebody who holds its output open: that one is not waited for.
        let begin = Instant::now();
        while self.threads.iter().any(|thread| !thread.is_finished()) && begin.elapsed() < LINGER {
            std::thread::sleep(POLL / 10);
        }
        let found = std::mem::take(&mut *lock(&self.found));
        let gap = ended.map(|status| {
            // More lines, or a good end: then it is a line of the log and nobody's business.
            let complains = found.n_lines == 1 && status.code().is_some_and(|code| code != 0);
            let said = String::from_utf8_lossy(if complains { &found.first } else { &[] });
            let said = dialects::redact::line(said.trim(), COMPLAINT);
            let colon = if said.is_empty() { "" } else { ": " };
            let source = &self.source;
            format!(
                "log {source}: the command that follows it ended by itself ({status}){colon}{said}"
            )
        });
        LogSummary { gap, ..summarise(found) }
    }
}

/// Ends a command with everything that it started: it may be a script around the real one. It was not waited for yet, so
/// that its number is still its own.
fn kill_group(child: &Child) {
    let kill = format!("kill -s KILL -- -{}", child.id());
    // It may have ended by itself.
    let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
}

fn lock(found: &Mutex<Found>) -> std::sync::MutexGuard<'_, Found> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns bytes into records.
struct Intake<'a> {
    found: &'a Mutex<Found>,
    lines: Lines,
    parser: Parser,
}

impl<'a> Intake<'a> {
    fn new(found: &'a Mutex<Found>) -> Intake<'a> {
        Intake { found, lines: Lines::default(), parser: Parser::new() }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let mut found = lock(self.found);
        let parser = &mut self.parser;
        self.lines.feed(bytes, &mut |line: &[u8]| {
            found.n_lines += 1;
            if found.n_lines == 1 {
                found.first = line[..line.len().min(COMPLAINT)].to_vec();
            }
            parser.line(line, &mut |record| {
                if found.records.len() < MOST {
                    found.records.push(record);
                    found.read_at.push(Instant::now());
                }
            });
        });
    }
}

/// A file that is read from its end on, also over truncation and rotation.
struct Follow {
    path: PathBuf,
    file: File,
    at: u64,
}

impl Follow {
    fn at_the_end(path: &Path) -> std::io::Result<Follow> {
        let mut file = File::open(path)?;
        let at = file.seek(SeekFrom::End(0))?;
        Ok(Follow { path: path.to_owned(), file, at })
    }

    fn until(mut self, end: &AtomicBool, found: &Mutex<Found>) {
        let mut intake = Intake::new(found);
        loop {
            let last = end.load(Ordering::Relaxed);
            self.read_new(&mut intake);
            if self.was_replaced()
                && let Ok(file) = File::open(&self.path)
            {
                (self.file, self.at) = (file, 0);
                self.read_new(&mut intake);
            }
            if last {
                return;
            }
            std::thread::sleep(POLL);
        }
    }

    fn read_new(&mut self, intake: &mut Intake<'_>) {
        if self.file.metadata().is_ok_and(|now| now.len() < self.at) {
            // Truncated in place: what is there now is new.
            self.at = self.file.seek(SeekFrom::Start(0)).unwrap_or(0);
        }
        let mut buffer = [0; 8192];
        while let Ok(n @ 1..) = self.file.read(&mut buffer) {
            self.at += n as u64;
            intake.feed(&buffer[..n]);
        }
    }

    fn was_replaced(&self) -> bool {
        match (self.file.metadata(), std::fs::metadata(&self.path)) {
            (Ok(open), Ok(named)) => !same_file(&open, &named),
            _ => false,
        }
    }
}

#[cfg(unix)]
fn same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn same_file(a: &Metadata, b: &Metadata) -> bool {
    a.created().ok() == b.created().ok()
}

fn summarise(found: Found) -> LogSummary {
    let (mut n_decode, mut tokens, mut steps) = (0, 0.0, 0.0);
    let mut warnings = Vec::new();
    for record in &found.records {
        match &record.event {
            Event::Decode(decode) => {
                n_decode += 1;
                if let Some(accept_len) = decode.accept_len {
                    tokens += f64::from(accept_len) * f64::from(decode.running);
                    steps += f64::from(decode.running);
                }
            }
            Event::Interval(_) | Event::Timing(_) => n_decode += 1,
            Event::Accept(accept) => {
                if let (Some(mean), Some(n)) = (accept.mean_len, accept.steps()) {
                    tokens += f64::from(mean) * n;
                    steps += n;
                }
            }
            Event::Warning(warning) => {
                let says = warning.kind.says().to_owned();
                if !warnings.contains(&says) {
                    warnings.push(says);
                }
            }
            _ => {}
        }
    }
    LogSummary {
        n_lines: found.n_lines,
        n_decode,
        accept_len: (steps > 0.0).then(|| tokens / steps),
        warnings,
        records: found.records,
        read_at: found.read_at,
        gap: None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{LogSource, LogTail};

    const OLD: &str = "[2026-05-11 23:46:29 TP0] Decode batch, #running-req: 1, #full token: 200, full token usage: 0.01, mamba num: 3, mamba usage: 0.43, accept len: 1.10, accept rate: 0.10, cuda graph: True, gen throughput (token/s): 20.00, #queue-req: 0\n";

    fn decode(accept_len: &str) -> String {
        OLD.replace("accept len: 1.10", &format!("accept len: {accept_len}"))
    }

    #[test]
    fn only_lines_of_the_probe_count_over_truncation_and_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        std::fs::write(&path, OLD).unwrap();
        let tail = LogTail::start(&path.to_str().unwrap().parse().unwrap()).unwrap();
        let pause = || std::thread::sleep(super::POLL * 3);
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        // A line in two pieces, and terminal escapes, as logs have them.
        file.write_all(&decode("1.75").as_bytes()[..90]).unwrap();
        pause();
        file.write_all(&decode("1.75").as_bytes()[90..]).unwrap();
        pause();
        std::fs::write(&path, decode("1.65")).unwrap();
        pause();
        std::fs::rename(&path, folder.path().join("server.log.1")).unwrap();
        std::fs::write(&path, format!("\x1b]0;title\x07noise\n{}", decode("2.00"))).unwrap();
        let summary = tail.finish();
        assert_eq!((summary.n_lines, summary.n_decode), (4, 3));
        let accept_len = summary.accept_len.unwrap();
        assert!((accept_len - 1.8).abs() < 1e-6, "{accept_len}");
    }

    #[test]
    fn sources_are_read_and_options_are_not_names() {
        assert_eq!(
            "journal:sglang.service".parse(),
            Ok(LogSource::Journal("sglang.service".into()))
        );
        assert_eq!("docker:llm-1".parse(), Ok(LogSource::Docker("llm-1".into())));
        assert_eq!("a/b.log".parse(), Ok(LogSource::File("a/b.log".into())));
        for text in ["journal:", "journal:--vacuum-size=1", "docker:a b", "docker:$(x)"] {
            assert!(text.parse::<LogSource>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_log_that_is_not_there_is_an_error() {
        assert!(LogTail::start(&LogSource::File("/nonexistent/server.log".into())).is_err());
    }
}
