//! A server on loopback that answers chat requests as it is told, also wrongly.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

/// How one chat request is answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Wait before the first event.
    pub(crate) first_ms: u64,
    /// Wait between events.
    pub(crate) gap_ms: u64,
    /// Events with text, and how many tokens usage counts for each.
    pub(crate) chunks: usize,
    pub(crate) tokens_per_chunk: usize,
    /// How many of the events are reasoning.
    pub(crate) reasoning: usize,
    /// Whether usage is sent.
    pub(crate) usage: bool,
    pub(crate) refuses_stream_options: bool,
    /// The connection closes after this many events.
    pub(crate) cut_after: Option<usize>,
    pub(crate) error_event: bool,
    /// Nothing comes after the headers.
    pub(crate) hang: bool,
    /// Bytes that are no events come in between.
    pub(crate) garbage: bool,
    /// The stream is four KiB of bytes that mean nothing.
    pub(crate) noise: bool,
    /// Events are sent in pieces of three bytes, through the middle of characters.
    pub(crate) torn: bool,
    /// All events are sent in one write.
    pub(crate) lumped: bool,
    /// A prompt that came before starts at once and counts as cached.
    pub(crate) caches: bool,
}

impl Answer {
    /// Ten tokens in ten events, 20 ms to the first and 3 ms between two.
    pub(crate) fn usual() -> Answer {
        Answer {
            status: 200,
            first_ms: 20,
            gap_ms: 3,
            chunks: 10,
            tokens_per_chunk: 1,
            reasoning: 0,
            usage: true,
            refuses_stream_options: false,
            cut_after: None,
            error_event: false,
            hang: false,
            garbage: false,
            noise: false,
            torn: false,
            lumped: false,
            caches: false,
        }
    }
}

type Script = Box<dyn Fn(usize) -> Answer + Send + Sync>;

struct Shared {
    script: Script,
    n_requests: AtomicUsize,
    n_running: AtomicUsize,
    most_running: AtomicUsize,
    bodies: Mutex<Vec<Value>>,
    seen: Mutex<HashSet<String>>,
    pages: Mutex<HashMap<String, String>>,
    closed: AtomicBool,
}

/// The server; it closes when dropped.
pub(crate) struct StandIn {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl StandIn {
    /// Starts a server whose n-th chat request (from 0) is answered as `script` says.
    pub(crate) fn start(script: impl Fn(usize) -> Answer + Send + Sync + 'static) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            n_requests: AtomicUsize::new(0),
            n_running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            bodies: Mutex::default(),
            seen: Mutex::default(),
            pages: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let for_thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if for_thread.closed.load(Ordering::SeqCst) {
                    return;
                }
                let shared = for_thread.clone();
                // A client that goes away in the middle is part of the tests.
                std::thread::spawn(move || stream.and_then(|stream| serve(stream, &shared)));
            }
        });
        StandIn { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers a GET of `path` with `text`.
    pub(crate) fn serve(&self, path: &str, text: &str) {
        self.shared.pages.lock().unwrap().insert(path.to_owned(), text.to_owned());
    }

    /// Bodies of the chat requests so far.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.shared.bodies.lock().unwrap().clone()
    }

    /// Most chat requests that were being answered at one time.
    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.most_running.load(Ordering::SeqCst)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then lets go of the port.
        let _ = TcpStream::connect(self.address);
        while TcpStream::connect(self.address).is_ok() {
            sleep(Duration::from_millis(1));
        }
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("").to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let lower = line.to_ascii_lowercase();
        if let Some(n) = lower.strip_prefix("content-length:") {
            length = n.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if path == "/v1/chat/completions" {
        return chat(&mut stream, shared, &serde_json::from_slice(&body).unwrap());
    }
    let page = match path.as_str() {
        "/v1/models" => Some(json!({"data": [{"id": "stand-in"}]}).to_string()),
        path => shared.pages.lock().unwrap().get(path).cloned(),
    };
    match page {
        Some(page) => respond(&mut stream, 200, &page),
        None => respond(&mut stream, 404, "{}"),
    }
}

fn respond(stream: &mut TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes())
}

/// A request that is being answered.
struct Running<'a>(&'a Shared);

impl Running<'_> {
    fn begin(shared: &Shared) -> Running<'_> {
        let n_running = shared.n_running.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most_running.fetch_max(n_running, Ordering::SeqCst);
        Running(shared)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.n_running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn chat(stream: &mut TcpStream, shared: &Shared, body: &Value) -> std::io::Result<()> {
    let running = Running::begin(shared);
    let answer = (shared.script)(shared.n_requests.fetch_add(1, Ordering::SeqCst));
    shared.bodies.lock().unwrap().push(body.clone());
    if answer.refuses_stream_options && body.get("stream_options").is_some() {
        let error = json!({"error": {"message": "unknown field stream_options"}});
        return respond(stream, 400, &error.to_string());
    }
    if answer.status != 200 {
        return respond(stream, answer.status, r#"{"error":{"message":"no"}}"#);
    }
    let cached = answer.caches && !shared.seen.lock().unwrap().insert(body["messages"].to_string());
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n",
    )?;
    if answer.hang {
        sleep(Duration::from_millis(1500));
        return Ok(());
    }
    if answer.noise {
        let mut state = 1_u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(4096)
        .collect();
        return stream.write_all(&noise);
    }
    sleep(Duration::from_millis(if cached { 1 } else { answer.first_ms }));
    let mut events = events(&answer, cached);
    if answer.lumped {
        events = vec![events.concat()];
    }
    let last = events.pop().unwrap_or_default();
    for (i, event) in events.into_iter().enumerate() {
        if answer.cut_after == Some(i) {
            return Ok(());
        }
        let piece = if answer.torn { 3 } else { event.len() };
        for bytes in event.chunks(piece) {
            stream.write_all(bytes)?;
            stream.flush()?;
        }
        sleep(Duration::from_millis(answer.gap_ms));
    }
    // The client may send its next request as soon as it has the last event.
    drop(running);
    stream.write_all(&last)
}

/// The events of an answer, as bytes.
fn events(answer: &Answer, cached: bool) -> Vec<Vec<u8>> {
    let event = |value: Value| format!("data: {value}\n\n").into_bytes();
    let delta = |delta: Value| event(json!({"choices": [{"index": 0, "delta": delta}]}));
    let mut events = vec![delta(json!({"role": "assistant", "content": ""}))];
    for i in 0..answer.chunks {
        let name = if i < answer.reasoning { "reasoning_content" } else { "content" };
        events.push(delta(json!({ name: "wörd " })));
        if answer.garbage {
            events.push(b": comment\n\nevent: odd\ndata: {]\n\nnonsense\r\n\r\ndata\n\n".to_vec());
        }
        if answer.error_event {
            events.push(event(json!({"error": {"message": "overloaded"}})));
        }
    }
    events.push(event(json!({"choices": [{"delta": {}, "finish_reason": "stop"}]})));
    if answer.usage {
        let mut usage = json!({
            "prompt_tokens": 50, "completion_tokens": answer.chunks * answer.tokens_per_chunk,
        });
        if answer.caches {
            let n_cached = if cached { 32 } else { 0 };
            usage["prompt_tokens_details"] = json!({ "cached_tokens": n_cached });
        }
        events.push(event(json!({"choices": [], "usage": usage})));
    }
    events.push(b"data: [DONE]\n\n".to_vec());
    events
}
