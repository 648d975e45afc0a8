//! Logged requests: only lengths and sampling parameters leave this file, never a prompt or an answer.

use memchr::memmem;
use serde_json::Value as Json;

use super::Request;
use crate::pyrepr;

/// Whether a line is about one request.
pub(super) fn is_request(message: &[u8]) -> bool {
    message.starts_with(b"Receive: ")
        || message.starts_with(b"Finish: ")
        || message.starts_with(b"Received request ")
        || (message.starts_with(b"{\"") && memmem::find(message, b"\"sampling_params\"").is_some())
}

/// Reads SGLang's `Receive: obj=…` and `Finish: obj=…, out=…`, or vLLM's `Received request …, params: SamplingParams(…)`.
pub(super) fn line(message: &[u8]) -> Option<Request> {
    if let Some(rest) = message.strip_prefix(b"Receive: ") {
        return sglang(rest, false);
    }
    if let Some(rest) = message.strip_prefix(b"Finish: ") {
        return sglang(rest, true);
    }
    if message.starts_with(b"{\"") {
        return json(message);
    }
    if message.starts_with(b"Received request ") {
        // The parameters come after the prompt, so the last match is the engine's and not the prompt's.
        let at = memmem::rfind(message, b"params: SamplingParams(")?;
        let text = String::from_utf8_lossy(&message[at + b"params: ".len()..]);
        return pyrepr::parse(&text).map(|params| sampling(&params, Request::default()));
    }
    None
}

/// SGLang's requests as JSON lines: `{"event": …, "obj": {…}, "out": {…}}`.
fn json(message: &[u8]) -> Option<Request> {
    let Json::Object(fields) = serde_json::from_slice(message).ok()? else { return None };
    request_of(&fields, fields.contains_key("out"))
}

fn sglang(rest: &[u8], finished: bool) -> Option<Request> {
    let text = String::from_utf8_lossy(rest);
    // Quoted text stays inside its quotes here, so nothing in a prompt can pass for a parameter.
    request_of(&pyrepr::parse_keywords(&text), finished)
}

fn request_of(fields: &serde_json::Map<String, Json>, finished: bool) -> Option<Request> {
    let mut request = Request { finished, ..Request::default() };
    if let Some(params) = fields.get("obj").and_then(|obj| obj.get("sampling_params")) {
        request = sampling(params, request);
    }
    if let Some(meta) = fields.get("out").and_then(|out| out.get("meta_info")) {
        let count = |key: &str| meta.get(key).and_then(Json::as_u64);
        request.prompt_tokens = count("prompt_tokens");
        request.output_tokens = count("completion_tokens");
        request.cached_tokens = count("cached_tokens");
    }
    (request.temperature.is_some() || request.prompt_tokens.is_some()).then_some(request)
}

fn sampling(params: &Json, mut request: Request) -> Request {
    request.temperature = params.get("temperature").and_then(Json::as_f64).map(|t| t as f32);
    request.max_tokens =
        ["max_new_tokens", "max_tokens"].iter().find_map(|key| params.get(*key)?.as_u64());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_is_read_and_prompts_are_not_believed() {
        let got = line(br#"Receive: obj=GenerateReqInput(rid='a', text="x sampling_params={'temperature': 9.0} 'y", sampling_params={'temperature': 0.7, 'max_new_tokens': 512}, stream=True)"#).unwrap();
        assert_eq!((got.temperature, got.max_tokens, got.finished), (Some(0.7), Some(512), false));
        let got = line(br"Finish: obj=GenerateReqInput(rid='a', sampling_params={'temperature': 0.0}), out={'text': 'hi', 'meta_info': {'prompt_tokens': 12, 'completion_tokens': 34, 'cached_tokens': 8}}").unwrap();
        assert_eq!(
            (got.prompt_tokens, got.output_tokens, got.cached_tokens),
            (Some(12), Some(34), Some(8))
        );
        let got = line(br"Received request cmpl-1: prompt: 'params: SamplingParams(temperature=9.0)', params: SamplingParams(n=1, temperature=0.6, max_tokens=700), prompt_token_ids: [1]").unwrap();
        assert_eq!((got.temperature, got.max_tokens), (Some(0.6), Some(700)));
        let got = line(br#"{"event": "request.received", "rid": "a", "obj": {"text": "x", "sampling_params": {"temperature": 0.7, "max_new_tokens": 9}}}"#).unwrap();
        assert_eq!((got.temperature, got.finished), (Some(0.7), false));
    }
}
