//! What needs connections: clients that leave, slow clients, many clients, and a shutdown.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::backend::Backend;
use api::state::{ApiOptions, ApiState};
use serde_json::{Value, json};
use testkit::client::{Client, close, read_head};
use tokio::sync::oneshot;

use crate::backends::{EngineSetup, Script, Silent, engine};
use crate::support::{chat, options, put_together, with};

const CHAT: &str = "/v1/chat/completions";

/// A server on a socket, on its own threads.
struct Server {
    client: Client,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(options: ApiOptions) -> Server {
        let (stop, stopped) = oneshot::channel();
        let (told, addr) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                let stopped = async {
                    let _ = stopped.await;
                };
                api::run(listener, ApiState::new(options), stopped).await;
            });
        });
        let client = Client::new(addr.recv().unwrap());
        Server { client, stop: Some(stop), thread: Some(thread) }
    }

    fn begin_shutdown(&mut self) {
        self.stop.take();
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.begin_shutdown();
        if !std::thread::panicking() {
            self.wait();
        }
    }
}

/// A request that runs until the context is full, which takes the scripted model long.
fn story() -> Value {
    let more = json!({"max_tokens": 4000, "ignore_eos": true, "temperature": 1});
    with(&chat("Write a very long story."), more)
}

/// Waits until `holds`; a test that waits longer than this has found something.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_idle(backend: &Arc<impl Backend>) -> bool {
    let gauges = backend.stats().gauges;
    gauges.n_running + gauges.n_waiting + gauges.n_slots_used == 0
        && gauges.n_blocks_used == gauges.n_blocks_cached
}

/// Case C23: a client that goes away frees its place, whatever it was waiting for.
#[test]
fn a_client_that_goes_away_frees_its_place() {
    let backend = engine(EngineSetup { max_running: 2, ..EngineSetup::default() });
    let server = Server::start(options(backend.clone()));
    let streamed = with(&story(), json!({"stream": true}));
    for _ in 0..3 {
        // Two run and two wait in the queue; all leave.
        let gone: Vec<_> = (0..4)
            .map(|_| server.client.send("POST", CHAT, story().to_string().as_bytes()))
            .collect();
        eventually("four requests", || {
            let gauges = backend.stats().gauges;
            gauges.n_running + gauges.n_waiting == 4
        });
        gone.iter().for_each(close);
        eventually("an idle engine", || is_idle(&backend));

        let mut streams: Vec<_> = (0..4)
            .map(|_| server.client.open("POST", CHAT, streamed.to_string().as_bytes()))
            .collect();
        assert!(streams[0].next_event().is_some());
        streams.into_iter().for_each(|stream| stream.close());
        eventually("an idle engine", || is_idle(&backend));
    }
    // A connection may have been closed before its request came to the engine.
    let n_ended = || {
        let totals = backend.stats().totals;
        totals.n_cancelled + totals.n_length
    };
    eventually("an end of every request", || n_ended() == 24);
    let generated = backend.stats().totals.n_generated;
    std::thread::sleep(Duration::from_millis(50));
    let later = backend.stats().totals.n_generated;
    assert_eq!(later, generated, "nobody listens, nothing is generated");
    let probe = server.client.post(CHAT, &with(&chat("Hi"), json!({"max_tokens": 4})));
    assert_eq!(probe.status, 200);
    assert_eq!(server.client.get("/health").status, 200);
    assert!(backend.stats().totals.n_cancelled > 12, "most stories were cut off");
}

/// A stream that ended does not cancel what comes after it.
#[test]
fn a_finished_stream_aborts_nobody() {
    let backend = engine(EngineSetup::default());
    let server = Server::start(options(backend.clone()));
    let short = with(&chat("Hi"), json!({"max_tokens": 3, "ignore_eos": true, "stream": true}));
    for _ in 0..5 {
        let events = server.client.stream(CHAT, &short).events();
        assert_eq!(put_together(&events, 0).finish_reason.as_deref(), Some("length"));
    }
    assert_eq!(backend.stats().totals.n_cancelled, 0);
}

#[test]
fn a_request_can_be_aborted_by_its_name() {
    let backend = engine(EngineSetup::default());
    let server = Server::start(options(backend.clone()));
    let body = with(&story(), json!({"rid": "story-1", "stream": true}));
    let mut stream = server.client.stream(CHAT, &body);
    assert_eq!(stream.next_event().unwrap()["id"], "story-1");
    assert_eq!(server.client.post("/abort_request", &json!({"rid": "story-2"})).status, 200);
    assert!(stream.next_event().is_some());
    assert_eq!(server.client.post("/abort_request", &json!({"rid": "story-1"})).status, 200);
    let events = stream.events();
    let reason = &events.last().unwrap()["choices"][0]["finish_reason"];
    assert_eq!(reason, "abort");
    eventually("an idle engine", || is_idle(&backend));
}

/// A reader that stops for a while loses nothing, and the engine does not wait for it.
#[test]
fn a_slow_reader_neither_blocks_the_engine_nor_loses_anything() {
    let backend = engine(EngineSetup::default());
    let server = Server::start(options(backend.clone()));
    let body =
        with(&story(), json!({"seed": 3, "stream": true, "logprobs": true, "top_logprobs": 20}));
    let slow = server.client.stream(CHAT, &body);
    // The whole answer is generated while nothing of it is read.
    eventually("the end of the answer", || is_idle(&backend));
    let fast = server.client.post(CHAT, &with(&body, json!({"stream": false}))).json();
    let streamed = put_together(&slow.events(), 0);
    assert_eq!(streamed.content, fast["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(streamed.finish_reason.as_deref(), Some("length"));
}

/// A reader that never takes anything is given up.
#[test]
fn a_reader_that_never_reads_is_given_up() {
    let backend = Script::steps(vec![(0..2000).map(|i| 100 + i % 3000).collect(); 1]);
    let mut options = options(backend);
    options.timeouts.stall = Duration::from_millis(200);
    options.max_connections = 1;
    let server = Server::start(options);
    let body =
        with(&story(), json!({"stream": false, "logprobs": true, "top_logprobs": 20, "n": 16}));
    let stuck = server.client.send("POST", CHAT, body.to_string().as_bytes());
    // There is one place: it is free again only when the stuck client is given up.
    assert_eq!(server.client.get("/health").status, 200);
    close(&stuck);
}

/// Heads and bodies that do not come are not waited for.
#[test]
fn slow_requests_are_given_up() {
    let mut options = options(Script::says("x</think>y"));
    options.timeouts.head = Duration::from_millis(100);
    options.timeouts.body = Duration::from_millis(100);
    let server = Server::start(options);
    let mut head = server.client.connect();
    head.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n").unwrap();
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut head, &mut rest).unwrap();
    let mut body = server.client.connect();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    body.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_head(body).finish().status, 408);
    assert_eq!(server.client.get("/health").status, 200);
}

/// Case C07 over a socket: a refusal of a large body arrives; the connection is not reset.
#[test]
fn a_large_body_is_answered() {
    let server = Server::start(options(Script::says("x</think>y")));
    let reply = server.client.post(CHAT, &chat(&"plain words ".repeat((3 << 20) / 12)));
    assert_eq!(reply.status, 400);
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("2048"));
}

/// The same for a body that is over every limit, with and without a declared length.
#[test]
fn a_body_over_the_limit_is_answered() {
    let server = Server::start(options(Script::says("x</think>y")));
    // More than the buffers of a socket hold: it can be written only while the server reads.
    let body = chat(&"plain words ".repeat((48 << 20) / 12)).to_string();
    let declared = format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let chunked =
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for rest in [declared, chunked] {
        let mut stream = server.client.connect();
        stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n").unwrap();
        stream.write_all(rest.as_bytes()).unwrap();
        assert_eq!(read_head(stream).finish().status, 413);
    }
}

/// A stream that waits sends comments, and a client that leaves it cancels it.
#[test]
fn a_stream_that_waits_sends_comments() {
    let backend = Arc::new(Silent::default());
    let mut options = options(backend.clone());
    options.timeouts.keep_alive = Duration::from_millis(10);
    options.timeouts.drain = Duration::from_millis(10);
    let server = Server::start(options);
    let body = with(&chat("Hi"), json!({"stream": true, "n": 2}));
    let mut stream = server.client.stream(CHAT, &body);
    for _ in 0..3 {
        assert_eq!(stream.next_line().as_deref(), Some(": keep-alive"));
        assert_eq!(stream.next_line().as_deref(), Some(""));
    }
    stream.close();
    eventually("two cancels", || backend.cancelled.lock().unwrap().len() == 2);
}

#[test]
fn two_hundred_clients_are_served_at_once() {
    let backend = engine(EngineSetup { max_queued: 256, ..EngineSetup::default() });
    let mut options = options(backend);
    options.sizes.max_queued_requests = 256;
    let server = Server::start(options);
    let body = with(&chat("Hi"), json!({"max_tokens": 2, "ignore_eos": true})).to_string();
    let sent: Vec<_> =
        (0..200).map(|_| server.client.send("POST", CHAT, body.as_bytes())).collect();
    for stream in sent {
        let reply = read_head(stream).finish();
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    }
}

/// Health is answered while text work and the engine are busy.
#[test]
fn health_answers_under_load() {
    let backend = engine(EngineSetup::default());
    let server = Server::start(options(backend));
    let busy = Arc::new(AtomicBool::new(true));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (client, busy) = (server.client.clone(), Arc::clone(&busy));
            std::thread::spawn(move || {
                let words = "many words in a long text ".repeat(40_000);
                while busy.load(Ordering::Relaxed) {
                    client.post("/tokenize", &json!({"prompt": words}));
                    client.post(CHAT, &with(&chat("Hi"), json!({"max_tokens": 20})));
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let start = Instant::now();
        assert_eq!(server.client.get("/health").status, 200);
        assert!(start.elapsed() < Duration::from_secs(1), "health waits for other work");
    }
    busy.store(false, Ordering::Relaxed);
    load.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A shutdown lets running requests end, and takes no new ones.
#[test]
fn a_shutdown_drains() {
    let backend = engine(EngineSetup::default());
    let mut server = Server::start(options(backend.clone()));
    let body = with(&chat("Hi"), json!({"max_tokens": 300, "ignore_eos": true, "stream": true}));
    let mut stream = server.client.stream(CHAT, &body);
    let mut events = vec![stream.next_event().unwrap()];
    server.begin_shutdown();
    events.extend(stream.events());
    let streamed = put_together(&events, 0);
    assert_eq!(streamed.finish_reason.as_deref(), Some("length"));
    server.wait();
    assert!(is_idle(&backend));
}

/// A request that was on its way when the shutdown came is told to go elsewhere.
#[test]
fn a_request_that_comes_too_late_is_refused() {
    let mut server = Server::start(options(engine(EngineSetup::default())));
    let mut stream = server.client.stream(CHAT, &with(&story(), json!({"stream": true})));
    assert!(stream.next_event().is_some());
    let body = chat("Hi").to_string();
    let mut late = server.client.connect();
    let length = body.len();
    write!(late, "POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{{").unwrap();
    // The head must have been read before the shutdown: an idle connection is closed.
    std::thread::sleep(Duration::from_millis(100));
    server.begin_shutdown();
    std::thread::sleep(Duration::from_millis(100));
    late.write_all(&body.as_bytes()[1..]).unwrap();
    let reply = read_head(late).finish();
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()["error"]["code"], "shutting_down");
    assert!(reply.header("retry-after").is_some());
    stream.close();
}

/// When the drain time is over, what runs ends as aborted: every stream still ends properly.
#[test]
fn a_shutdown_ends_what_does_not_end() {
    let backend = engine(EngineSetup::default());
    let mut options = options(backend.clone());
    options.timeouts.drain = Duration::from_millis(20);
    let mut server = Server::start(options);
    let mut stream = server.client.stream(CHAT, &with(&story(), json!({"stream": true, "n": 3})));
    assert!(stream.next_event().is_some());
    server.begin_shutdown();
    let events = stream.events();
    let ends: Vec<&Value> = events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap())
        .filter(|choice| !choice["finish_reason"].is_null())
        .collect();
    assert_eq!(ends.len(), 3);
    assert!(ends.iter().all(|choice| choice["finish_reason"] == "abort"), "{ends:?}");
    server.wait();
    assert_eq!(backend.stats().totals.n_shutdown, 3);
}
