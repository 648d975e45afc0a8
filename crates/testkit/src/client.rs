//! A blocking HTTP/1.1 client for tests, over plain sockets: it can stop in the middle of anything.
//!
//! Failures of the connection are panics: in a test they are findings.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A server that takes longer than this hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// A client of one server; every request has its own connection.
#[derive(Clone, Debug)]
pub struct Client {
    addr: SocketAddr,
    headers: Vec<(String, String)>,
}

/// A whole response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, chunks joined.
    pub body: Vec<u8>,
}

/// A response whose body is still coming.
pub struct Open {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    stream: BufReader<TcpStream>,
    rest: Rest,
    /// Bytes of the body that are no whole line yet.
    line: Vec<u8>,
}

/// What is left of a body.
#[derive(Clone, Copy)]
enum Rest {
    Bytes(usize),
    Chunks,
    UntilClosed,
    Nothing,
}

impl Client {
    /// A client of the server at `addr`.
    pub fn new(addr: SocketAddr) -> Client {
        Client { addr, headers: Vec::new() }
    }

    /// Sends this header with every request.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Client {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A connection on which nothing was sent.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).expect("the server accepts");
        stream.set_read_timeout(Some(HANGS_AFTER)).expect("a socket has time limits");
        stream.set_nodelay(true).expect("a socket can send at once");
        stream
    }

    /// Sends a request and does not wait for the answer.
    pub fn send(&self, method: &str, path: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.addr);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += "Content-Type: application/json\r\n";
        }
        head += &format!("Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).expect("the server reads the head");
        // A server that refuses a body may answer and close before it has read all of it.
        let _ = stream.write_all(body);
        stream
    }

    /// Sends a request and reads the head of the answer.
    pub fn open(&self, method: &str, path: &str, body: &[u8]) -> Open {
        read_head(self.send(method, path, body))
    }

    /// `GET`.
    pub fn get(&self, path: &str) -> Reply {
        self.open("GET", path, b"").finish()
    }

    /// `POST` with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_raw(path, body.to_string().as_bytes())
    }

    /// `POST` with any bytes.
    pub fn post_raw(&self, path: &str, body: &[u8]) -> Reply {
        self.open("POST", path, body).finish()
    }

    /// `POST` that is answered with events: the head must be 200 and say so.
    pub fn stream(&self, path: &str, body: &Value) -> Open {
        let open = self.open("POST", path, body.to_string().as_bytes());
        if open.status != 200 {
            let reply = open.finish();
            panic!("status {}: {}", reply.status, String::from_utf8_lossy(&reply.body));
        }
        let kind = header(&open.headers, "content-type").unwrap_or_default();
        assert!(kind.starts_with("text/event-stream"), "content type {kind}");
        open
    }
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

/// The value of the header `name`, which is in lower case.
fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}

/// Reads the head of a response.
pub fn read_head(stream: TcpStream) -> Open {
    let mut stream = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    };
    let status = line();
    let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.unwrap_or_else(|| panic!("not a status line: {status:?}"));
    let mut headers = Vec::new();
    loop {
        let line = line();
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let chunked = header(&headers, "transfer-encoding") == Some("chunked");
    let length = header(&headers, "content-length").and_then(|length| length.parse().ok());
    let rest = match (chunked, length) {
        (true, _) => Rest::Chunks,
        (false, Some(length)) => Rest::Bytes(length),
        (false, None) => Rest::UntilClosed,
    };
    Open { status: code, headers, stream, rest, line: Vec::new() }
}

impl Open {
    /// Reads the rest of the body.
    pub fn finish(mut self) -> Reply {
        let mut body = std::mem::take(&mut self.line);
        while let Some(piece) = self.piece() {
            body.extend(piece);
        }
        Reply { status: self.status, headers: self.headers, body }
    }

    /// The next piece of the body.
    fn piece(&mut self) -> Option<Vec<u8>> {
        match self.rest {
            Rest::Nothing => None,
            Rest::Bytes(n) => {
                self.rest = Rest::Nothing;
                Some(self.exactly(n))
            }
            Rest::UntilClosed => {
                self.rest = Rest::Nothing;
                let mut rest = Vec::new();
                self.stream.read_to_end(&mut rest).expect("the body comes");
                Some(rest)
            }
            Rest::Chunks => {
                let mut size = String::new();
                self.stream.read_line(&mut size).expect("a chunk comes");
                let size = usize::from_str_radix(size.trim(), 16)
                    .unwrap_or_else(|_| panic!("not the size of a chunk: {size:?}"));
                let mut chunk = self.exactly(size + 2);
                chunk.truncate(size);
                if size == 0 {
                    self.rest = Rest::Nothing;
                    return None;
                }
                Some(chunk)
            }
        }
    }

    fn exactly(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.stream.read_exact(&mut bytes).expect("the body comes");
        bytes
    }

    /// The next line of the body, without its end.
    pub fn next_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.line, rest);
                line.pop();
                return Some(String::from_utf8(line).expect("lines are UTF-8"));
            }
            let piece = self.piece()?;
            self.line.extend(piece);
        }
    }

    /// The next event; `None` after `[DONE]`. Comments are skipped.
    pub fn next_event(&mut self) -> Option<Value> {
        loop {
            let line = self.next_line().expect("a stream ends with [DONE]");
            match line.strip_prefix("data: ") {
                Some("[DONE]") => return None,
                Some(data) => {
                    return Some(
                        serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}")),
                    );
                }
                None => assert!(line.is_empty() || line.starts_with(':'), "not an event: {line}"),
            }
        }
    }

    /// All events up to `[DONE]`.
    pub fn events(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next_event()).collect()
    }

    /// Closes the connection at once, in the middle of whatever comes.
    pub fn close(self) {
        close(self.stream.get_ref());
    }
}

/// Closes a connection at once.
pub fn close(stream: &TcpStream) {
    // It may be closed already, which is what is wanted.
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// What the client reads from a server that answers `answer` to anything.
    fn against(answer: &'static str) -> Open {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        client.open("GET", "/", b"")
    }

    #[test]
    fn a_body_of_known_length_is_read() {
        let reply =
            against("HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\n{\"a\":1}").finish();
        assert_eq!((reply.status, reply.json()["a"].as_i64()), (404, Some(1)));
        assert_eq!(reply.header("content-length"), Some("7"));
    }

    #[test]
    fn events_are_read_whatever_the_chunks() {
        let mut open = against(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             b\r\n: hi\n\ndata:\r\n6\r\n {\"a\":\r\n5\r\n1}\n\nd\r\nc\r\nata: [DONE]\n\r\n1\r\n\n\r\n0\r\n\r\n",
        );
        assert_eq!(open.next_event().unwrap()["a"], 1);
        assert_eq!(open.next_event(), None);
    }
}
