//! A small HTTP server on loopback whose answers a test decides.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request as it arrived; header names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
}

/// An answer. `sent` is how much of the body really goes out before the connection closes.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    sent: usize,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self { status, headers: Vec::new(), sent: body.len(), body }
    }

    pub(crate) fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_string(), value.to_string()));
        self
    }

    pub(crate) fn cut_after(mut self, sent: usize) -> Self {
        self.sent = sent;
        self
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Serves until the process ends; one connection per request.
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(request) = read_request(&stream) {
                    let reply = answer(&request);
                    let is_head = request.method == "HEAD";
                    log.lock().unwrap().push(request);
                    // The client may be gone already; that is part of some tests.
                    let _ = write_reply(stream, &reply, is_head);
                }
            }
        });
        Self { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_string(), words.next()?.to_string());
    let headers = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_lowercase(), value.trim().to_string()))
        })
        .collect();
    Some(Request { method, path, headers })
}

fn write_reply(mut stream: TcpStream, reply: &Reply, is_head: bool) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} -\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !reply.headers.iter().any(|(name, _)| name == "content-length") {
        head.push_str(&format!("content-length: {}\r\n", reply.body.len()));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if !is_head {
        stream.write_all(&reply.body[..reply.sent])?;
    }
    stream.shutdown(Shutdown::Both)
}
