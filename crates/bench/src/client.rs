//! The HTTP side of a probe: one server, one model, streaming chat requests.

use std::future::ready;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::answer::{Answer, Flow};
use crate::load::MAX_IN_FLIGHT;
use crate::prompts::Message;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for an answer to a plain GET.
const GET: Duration = Duration::from_secs(5);
/// Longest body that is read from a plain GET.
const GET_BYTES: usize = 8 << 20;
/// Longest stream that is read; a server that sends more than this is broken.
const STREAM_BYTES: usize = 64 << 20;
/// Longest piece of an error body that is kept.
const ERROR_BYTES: usize = 400;

/// How an answer is asked for; the same for all requests of a probe.
#[derive(Clone, Debug)]
pub(crate) struct Sampling {
    pub(crate) model: String,
    pub(crate) max_tokens: u32,
    pub(crate) temperature: Option<f64>,
    pub(crate) thinking: Option<bool>,
}

/// A server under `/v1`, and what lies beside it.
pub(crate) struct Client {
    http: reqwest::Client,
    /// Without a slash at the end and without `/v1`.
    root: String,
    key: Option<String>,
    /// Longest silence inside a stream.
    idle: Duration,
    /// Cleared when the server refuses `stream_options`.
    asks_for_usage: AtomicBool,
    /// Events with text so far, over all requests: for the progress line.
    pub(crate) n_chunks: AtomicU64,
}

impl Client {
    pub(crate) fn new(url: &str, key: Option<String>, idle: Duration) -> Result<Client, String> {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // Another part of the program may have chosen a provider before; either will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let root = root_of(url)?;
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(MAX_IN_FLIGHT)
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback(&root) {
            // A proxy cannot reach this host's loopback, and it would be measured along.
            builder = builder.no_proxy();
        }
        Ok(Client {
            http: builder.build().map_err(|error| explain(&error))?,
            root,
            key,
            idle,
            asks_for_usage: AtomicBool::new(true),
            n_chunks: AtomicU64::new(0),
        })
    }

    /// The address that the OpenAI routes lie below.
    pub(crate) fn target(&self) -> String {
        format!("{}/v1", self.root)
    }

    /// Whether the server is named by this host's loopback.
    pub(crate) fn is_local(&self) -> bool {
        is_loopback(&self.root)
    }

    /// The body of a GET below the root, if the answer is a success.
    pub(crate) async fn get(&self, path: &str) -> Result<String, String> {
        let request = self.authorized(self.http.get(format!("{}{path}", self.root)));
        let read = async {
            let response = request.send().await.map_err(|error| explain(&error))?;
            let status = response.status();
            let mut body = Vec::new();
            let mut bytes = response.bytes_stream();
            while let Some(piece) = bytes.next().await {
                let piece = piece.map_err(|error| explain(&error))?;
                if body.len() + piece.len() > GET_BYTES {
                    return Err(format!("{path} answers with more than {GET_BYTES} bytes"));
                }
                body.extend_from_slice(&piece);
            }
            if status.is_success() {
                Ok(String::from_utf8_lossy(&body).into_owned())
            } else {
                Err(format!("{path} answers {status}"))
            }
        };
        tokio::time::timeout(GET, read).await.map_err(|_| format!("{path} does not answer"))?
    }

    /// Sends a conversation and follows the answer; times count from `intended`.
    ///
    /// Returns the answer and how much later than intended the request was sent.
    pub(crate) async fn chat(
        &self,
        messages: &[Message],
        sampling: &Sampling,
        intended: Instant,
    ) -> Result<(Answer, f64), String> {
        let delay = intended.elapsed().as_secs_f64();
        let mut response = self.post(messages, sampling).await?;
        let status = response.status();
        if status.as_u16() == 400 && self.asks_for_usage.load(Ordering::Relaxed) {
            let message = error_text(response).await;
            if !message.contains("stream_options") {
                return Err(format!("{status}: {message}"));
            }
            self.asks_for_usage.store(false, Ordering::Relaxed);
            response = self.post(messages, sampling).await?;
        }
        let status = response.status();
        if !status.is_success() {
            return Err(format!("{status}: {}", error_text(response).await));
        }
        Ok((self.follow(response, intended).await?, delay))
    }

    async fn post(
        &self,
        messages: &[Message],
        sampling: &Sampling,
    ) -> Result<reqwest::Response, String> {
        let mut body = json!({
            "model": sampling.model,
            "messages": messages,
            "max_tokens": sampling.max_tokens,
            "stream": true,
        });
        if let Some(temperature) = sampling.temperature {
            body["temperature"] = json!(temperature);
        }
        if let Some(thinking) = sampling.thinking {
            body["chat_template_kwargs"] = json!({ "enable_thinking": thinking });
        }
        if self.asks_for_usage.load(Ordering::Relaxed) {
            body["stream_options"] = json!({ "include_usage": true });
        }
        let url = format!("{}/v1/chat/completions", self.root);
        let request = self.authorized(self.http.post(url)).json(&body);
        request.send().await.map_err(|error| explain(&error))
    }

    async fn follow(
        &self,
        response: reqwest::Response,
        intended: Instant,
    ) -> Result<Answer, String> {
        let mut answer = Answer::default();
        // Several events can arrive in one read: all of them have the time of the read.
        let (read_at, n_bytes) = (AtomicU64::new(0), AtomicUsize::new(0));
        let bytes = response
            .bytes_stream()
            .inspect(|piece| {
                let now = intended.elapsed().as_secs_f64();
                read_at.store(now.to_bits(), Ordering::Relaxed);
                n_bytes.fetch_add(piece.as_ref().map_or(0, |p| p.len()), Ordering::Relaxed);
            })
            .take_while(|_| ready(n_bytes.load(Ordering::Relaxed) <= STREAM_BYTES));
        let mut events = std::pin::pin!(bytes.eventsource());
        loop {
            let next = tokio::time::timeout(self.idle, events.next()).await;
            let event = match next {
                Err(_) => return Err(format!("no event for {} s", self.idle.as_secs_f64())),
                Ok(None) if answer.finish.is_some() => return Ok(answer),
                Ok(None) => return Err("the stream ended before the answer".to_owned()),
                Ok(Some(Err(error))) => return Err(format!("the stream broke: {error}")),
                Ok(Some(Ok(event))) => event,
            };
            let n_before = answer.arrivals.len();
            match answer.absorb(f64::from_bits(read_at.load(Ordering::Relaxed)), &event.data) {
                Flow::Done => return Ok(answer),
                Flow::Failed(message) => return Err(message),
                Flow::More => {}
            }
            let n_new = (answer.arrivals.len() - n_before) as u64;
            self.n_chunks.fetch_add(n_new, Ordering::Relaxed);
        }
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }
}

/// The address without `/v1` and what may follow it.
fn root_of(url: &str) -> Result<String, String> {
    let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let parsed = reqwest::Url::parse(&with_scheme).map_err(|error| format!("{url}: {error}"))?;
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
        return Err(format!("{url} is not an http address"));
    }
    let mut root = with_scheme.trim_end_matches('/');
    for end in ["/chat/completions", "/completions", "/v1"] {
        root = root.strip_suffix(end).unwrap_or(root).trim_end_matches('/');
    }
    Ok(root.to_owned())
}

/// Whether the address names this host by its loopback.
fn is_loopback(root: &str) -> bool {
    let url = reqwest::Url::parse(root).ok();
    let host = url.as_ref().and_then(|url| url.host_str()).unwrap_or("");
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// What a server says in the body of an error.
async fn error_text(response: reqwest::Response) -> String {
    let body = tokio::time::timeout(GET, response.text()).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
    let message = parsed["error"]["message"].as_str().or(parsed["message"].as_str());
    let message = message.unwrap_or(&body);
    let mut end = message.len().min(ERROR_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].replace(char::is_control, " ")
}

/// An error with its causes: the outermost one alone says too little.
fn explain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{is_loopback, root_of};

    #[test]
    fn loopback_is_this_host() {
        for root in ["http://localhost:1", "http://127.0.0.2", "http://[::1]:8000"] {
            assert!(is_loopback(root), "{root}");
        }
        assert!(!is_loopback("http://10.0.0.1") && !is_loopback("https://localhost.example"));
    }

    #[test]
    fn addresses_are_understood_in_every_usual_form() {
        for url in [
            "http://127.0.0.1:8000",
            "http://127.0.0.1:8000/",
            "http://127.0.0.1:8000/v1/",
            "http://127.0.0.1:8000/v1/chat/completions",
            "127.0.0.1:8000/v1",
        ] {
            assert_eq!(root_of(url).unwrap(), "http://127.0.0.1:8000");
        }
        assert_eq!(root_of("https://host/llm/v1").unwrap(), "https://host/llm");
        for url in ["", "ftp://host", "http://"] {
            assert!(root_of(url).is_err(), "{url}");
        }
    }
}
