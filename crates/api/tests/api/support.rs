//! A server in a test: its state, and requests to it without sockets.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::auth::Keys;
use api::backend::Backend;
use api::state::{ApiOptions, ApiState, ModelInfo, Parsers, SamplingDefaults, Sizes, Timeouts};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use serde_json::{Map, Value, json};
use telemetry::log_line::Pools;
use telemetry::reporter::{self, ReporterOptions};
pub(crate) use testkit::openai::{chat, put_together, with};
use text::{ChatTemplate, Tokenizer};
use tower::ServiceExt;

/// `<|im_end|>` of outrider-tiny.
pub(crate) const EOS: u32 = 4086;
/// A control token that does not end an answer.
pub(crate) const FIM_PREFIX: u32 = 4093;
/// Context length of the servers here.
pub(crate) const CONTEXT_LEN: usize = 2048;

fn model_file(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/outrider-tiny");
    std::fs::read(folder.join(name)).unwrap()
}

/// The tokenizer of outrider-tiny.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let read = || Arc::new(Tokenizer::from_json(&model_file("tokenizer.json")).unwrap());
    Arc::clone(TOKENIZER.get_or_init(read))
}

/// Options of a server that a test may change before it starts.
pub(crate) fn options(backend: Arc<dyn Backend>) -> ApiOptions {
    let template = String::from_utf8(model_file("chat_template.jinja")).unwrap();
    let config = model_file("tokenizer_config.json");
    let chat_template = ChatTemplate::new(Some(&template), &config, tokenizer()).unwrap();
    let (_, last_window) = reporter::start(ReporterOptions {
        pools: Pools { block_len: 64, speculates: true },
        decode_log_interval: 40,
        print: Box::new(|_| {}),
        trace: None,
        now_unix_s: 0.0,
    })
    .unwrap();
    ApiOptions {
        backend,
        tokenizer: tokenizer(),
        chat_template: Some(chat_template),
        model: ModelInfo {
            served_name: "outrider-tiny".into(),
            model_path: "models/outrider-tiny".into(),
            architecture: "Qwen3_5ForCausalLM".into(),
            model_type: "qwen3_5_text".into(),
            weight_version: "w-1".into(),
            note: Some("A demonstration and test model; it knows nothing.".into()),
            eos_token_ids: vec![EOS],
            vocab_size: tokenizer().n_vocab(),
        },
        defaults: SamplingDefaults {
            temperature: 0.5,
            top_p: 0.75,
            top_k: 20,
            min_p: 0.0,
            repetition_penalty: 1.0,
        },
        sizes: Sizes {
            context_len: CONTEXT_LEN,
            max_total_num_tokens: 4 * CONTEXT_LEN,
            block_len: 64,
            max_running_requests: 4,
            max_queued_requests: 64,
            speculates: true,
        },
        parsers: Parsers { reasoning: true, tools: true },
        keys: Keys::default(),
        timeouts: Timeouts::default(),
        max_connections: 512,
        last_window,
        server_info: Map::from_iter([("decode_log_interval".to_owned(), json!(40))]),
    }
}

/// A server without a socket.
#[derive(Clone)]
pub(crate) struct App {
    router: Router,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl App {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> App {
        App::with(options(backend))
    }

    pub(crate) fn with(options: ApiOptions) -> App {
        App { router: api::router(ApiState::new(options)) }
    }

    /// Any request.
    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let answer = async {
            let response = self.router.clone().oneshot(request).await.unwrap();
            let (head, body) = response.into_parts();
            let body = to_bytes(body, usize::MAX).await.unwrap().to_vec();
            Reply { status: head.status.as_u16(), headers: head.headers, body }
        };
        tokio::time::timeout(Duration::from_secs(60), answer).await.expect("an answer comes")
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post_raw(&self, path: &str, body: impl Into<Body>) -> Reply {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(body.into()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_raw(path, body.to_string()).await
    }

    /// A request that is answered with 200 and JSON.
    pub(crate) async fn ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body).await;
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
        reply.json()
    }

    /// A request that is refused with OpenAI's error shape: status and message.
    pub(crate) async fn refused(&self, path: &str, body: &Value) -> (u16, String) {
        self.post(path, body).await.refusal()
    }

    /// A request that is answered with events; `stream` is set here.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let reply = self.post(path, &body).await;
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
        reply.events()
    }
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Checks the shape of an error; its status and message.
    pub(crate) fn refusal(&self) -> (u16, String) {
        assert!(self.status >= 400, "accepted: {}", self.text());
        let error = self.json()["error"].clone();
        for name in ["message", "type", "param", "code"] {
            assert!(error.get(name).is_some(), "no {name}: {error}");
        }
        (self.status, error["message"].as_str().unwrap().to_owned())
    }

    /// The events of a stream, whose framing is checked.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["x-accel-buffering"], "no");
        assert!(self.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        let text = self.text();
        let mut events: Vec<&str> = text.strip_suffix("\n\n").unwrap().split("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let event = |line: &str| {
            let data =
                line.strip_prefix("data: ").unwrap_or_else(|| panic!("not an event: {line}"));
            serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"))
        };
        events.into_iter().filter(|line| !line.starts_with(':')).map(event).collect()
    }
}
