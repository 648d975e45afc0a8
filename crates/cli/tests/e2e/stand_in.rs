//! A server on loopback that answers as other engines do, word for word as the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// What comes back: pieces of the body, each after a pause.
pub(crate) type Pieces = Vec<(u64, String)>;
/// Answers the chat requests by number, and other paths by the number of chat requests so far.
pub(crate) type Chat = fn(usize) -> Pieces;
pub(crate) type Page = fn(&str, usize) -> Option<String>;

/// The server; its threads end with the test.
pub(crate) struct StandIn {
    address: SocketAddr,
    n_chats: Arc<AtomicUsize>,
}

impl StandIn {
    pub(crate) fn start(chat: Chat, page: Page) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let n_chats = Arc::new(AtomicUsize::new(0));
        let count = n_chats.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let count = count.clone();
                // A client that goes away in the middle is part of the tests.
                thread::spawn(move || answer(stream, chat, page, &count));
            }
        });
        StandIn { address, n_chats }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn n_chats(&self) -> usize {
        self.n_chats.load(Ordering::SeqCst)
    }
}

fn answer(
    mut stream: TcpStream,
    chat: Chat,
    page: Page,
    count: &AtomicUsize,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut path, mut length) = (String::new(), String::new(), 0);
    while reader.read_line(&mut line)? > 0 && !line.trim().is_empty() {
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap_or("").to_owned();
        }
        if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = n.trim().parse().unwrap();
        }
        line.clear();
    }
    reader.read_exact(&mut vec![0; length])?;
    let mut head = |status: &str, kind: &str| {
        let head =
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: {kind}\r\n\r\n");
        stream.write_all(head.as_bytes())
    };
    if path == "/v1/chat/completions" {
        head("200 OK", "text/event-stream")?;
        for (pause_ms, piece) in chat(count.fetch_add(1, Ordering::SeqCst)) {
            thread::sleep(Duration::from_millis(pause_ms));
            stream.write_all(piece.as_bytes())?;
        }
        return Ok(());
    }
    let models = || (path == "/v1/models").then(|| r#"{"data":[{"id":"q"}]}"#.to_owned());
    match page(&path, count.load(Ordering::SeqCst)).or_else(models) {
        Some(body) => {
            head("200 OK", "text/plain")?;
            stream.write_all(body.as_bytes())
        }
        None => head("404 Not Found", "text/plain"),
    }
}

/// One event of a stream.
pub(crate) fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// An event with text.
pub(crate) fn delta(field: &str, text: &str) -> String {
    event(&format!(r#"{{"choices":[{{"index":0,"delta":{{"{field}":"{text}"}}}}]}}"#))
}
