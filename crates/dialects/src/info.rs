//! Information endpoints: where each engine answers, and what the answers mean.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::command::find_commands;
use crate::config::Config;
use crate::engine::{Engine, Version};
use crate::factor::Factor;
use crate::value::Value;

/// Paths of an engine's read-only endpoints, the newest spelling first.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    /// Configuration and state.
    pub info: &'static [&'static str],
    /// Prometheus text.
    pub metrics: &'static str,
    /// Liveness that generates nothing where the engine offers it.
    pub health: &'static str,
    /// The model list.
    pub models: &'static str,
}

/// Where an engine answers.
pub fn endpoints(engine: Engine) -> Endpoints {
    let info: &'static [&'static str] = match engine {
        Engine::Sglang | Engine::Outrider => &["/server_info", "/get_server_info"],
        Engine::Vllm => &["/server_info", "/version"],
        Engine::LlamaCpp => &["/props", "/slots"],
    };
    Endpoints { info, metrics: "/metrics", health: "/health", models: "/v1/models" }
}

/// What an information endpoint said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// The configuration in force.
    pub config: Config,
    /// Numbers of the running server.
    pub state: State,
}

/// Numbers of the running server, where the endpoint gives them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// KV pool in tokens.
    pub kv_tokens: Option<f64>,
    /// Requests that may run at once after every cap.
    pub max_running: Option<f64>,
    /// Generation speed of the last log interval; it keeps its value when the server is idle.
    pub last_gen_tok_s: Option<f64>,
    /// Accept length over the whole life of the server.
    pub accept_len_lifetime: Option<f64>,
    /// GiB of weights.
    pub weights_gib: Option<f64>,
    /// Where the time of Outrider's decode steps went.
    #[serde(default)]
    pub steps: Option<Steps>,
}

/// Sums of Outrider since its start, over the steps that decoded and computed no prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Steps {
    /// Such steps.
    pub n_steps: f64,
    /// Sequences that decoded, summed over them.
    pub n_rounds: f64,
    /// Drafts verified.
    pub n_drafted: f64,
    /// Drafts accepted.
    pub n_accepted: f64,
    /// Seconds in the target's forward pass: with drafts, the verify pass.
    pub forward_s: f64,
    /// Seconds in the draft head.
    pub draft_s: f64,
    /// Seconds drawing and verifying tokens.
    pub sample_s: f64,
    /// Seconds in the rest of the steps.
    pub other_s: f64,
    /// Seconds that requests waited before their first row.
    pub queue_wait_s: f64,
    /// Requests behind it.
    pub n_queue_waits: f64,
    /// Bytes of weights that a forward pass reads; no sum.
    pub forward_bytes: f64,
    /// Bytes of weights that one pass of the draft head reads; no sum.
    pub draft_bytes: f64,
    /// Bytes per second that all cores together can read, where the server was told to measure it; no sum.
    pub bandwidth: Option<f64>,
}

/// What happened between two answers of the same server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Seconds between them.
    pub seconds: f64,
    /// What was counted in between.
    pub sums: Steps,
}

impl Steps {
    fn parse(info: &Json, internal: &Json) -> Option<Steps> {
        let totals = internal.get("totals")?;
        let mut steps: Steps = serde_json::from_value(totals.get("decode")?.clone()).ok()?;
        let number = |value: &Json, key: &str| value.get(key).and_then(Json::as_f64).unwrap_or(0.0);
        steps.queue_wait_s = number(totals, "queue_wait_s");
        steps.n_queue_waits = number(totals, "n_queue_waits");
        if let Some(bytes) = info.get("step_bytes") {
            (steps.forward_bytes, steps.draft_bytes) =
                (number(bytes, "forward"), number(bytes, "draft"));
        }
        let hardware = info.get("hardware");
        let gb_per_s = hardware.and_then(|h| h.get("read_gb_per_s")?.as_f64());
        steps.bandwidth = gb_per_s.map(|gb| gb * 1e9);
        Some(steps)
    }

    /// What happened since an earlier answer of the same server; nothing when it was restarted in between, or idle.
    pub fn since(&self, earlier: &Steps) -> Option<Steps> {
        let between = Steps {
            n_steps: self.n_steps - earlier.n_steps,
            n_rounds: self.n_rounds - earlier.n_rounds,
            n_drafted: self.n_drafted - earlier.n_drafted,
            n_accepted: self.n_accepted - earlier.n_accepted,
            forward_s: self.forward_s - earlier.forward_s,
            draft_s: self.draft_s - earlier.draft_s,
            sample_s: self.sample_s - earlier.sample_s,
            other_s: self.other_s - earlier.other_s,
            queue_wait_s: self.queue_wait_s - earlier.queue_wait_s,
            n_queue_waits: self.n_queue_waits - earlier.n_queue_waits,
            ..*self
        };
        (between.n_steps > 0.0 && between.forward_s > 0.0).then_some(between)
    }

    /// Seconds of a step.
    pub fn step_s(&self) -> f64 {
        (self.forward_s + self.draft_s + self.sample_s + self.other_s) / self.n_steps
    }

    /// Sequences that decode in a step.
    pub fn running(&self) -> f64 {
        self.n_rounds / self.n_steps
    }

    /// Tokens that a sequence gains in a step, bonus included.
    pub fn accept_len(&self) -> f64 {
        1.0 + self.n_accepted / self.n_rounds
    }

    /// Bytes of weights that a step reads: the forward pass, and the draft head once per draft of a sequence.
    pub fn bytes(&self) -> f64 {
        self.forward_bytes + self.draft_bytes * self.n_drafted / self.n_rounds
    }
}

/// Reads SGLang's or Outrider's `/server_info`, or llama.cpp's `/props`.
pub fn parse(text: &str) -> Option<Info> {
    let Json::Object(map) = serde_json::from_str(text).ok()? else { return None };
    if map.contains_key("default_generation_settings") || map.contains_key("build_info") {
        return Some(llamacpp(&Json::Object(map)));
    }
    let looks_like_args = ["model_path", "model", "max_running_requests", "max_num_seqs"]
        .iter()
        .any(|key| map.contains_key(*key));
    if !looks_like_args {
        return None;
    }
    let engine = if map.contains_key("max_num_seqs") || map.contains_key("max_model_len") {
        Engine::Vllm
    } else if map.get("engine").and_then(Json::as_str) == Some("outrider") {
        Engine::Outrider
    } else {
        Engine::Sglang
    };
    let mut config = Config::new(engine);
    let mut state = State::default();
    let internal =
        map.get("internal_states").and_then(|states| states.get(0)).cloned().unwrap_or(Json::Null);
    let number = |value: &Json, key: &str| value.get(key).and_then(Json::as_f64);
    let top = Json::Object(map.clone());
    state.kv_tokens = number(&top, "max_total_num_tokens");
    state.max_running = number(&internal, "effective_max_running_requests_per_dp");
    state.last_gen_tok_s = number(&internal, "last_gen_throughput");
    state.accept_len_lifetime = number(&internal, "avg_spec_accept_length");
    state.weights_gib = internal.get("memory_usage").and_then(|usage| number(usage, "weight"));
    state.steps = Steps::parse(&top, &internal);
    let arguments: serde_json::Map<String, Json> = map
        .into_iter()
        .filter(|(key, _)| {
            !matches!(
                key.as_str(),
                "internal_states"
                    | "max_total_num_tokens"
                    | "engine"
                    | "plan"
                    | "hardware"
                    | "scheduler_info"
                    | "step_bytes"
            )
        })
        .collect();
    config.set_dump(&arguments);
    config.whole = true;
    // The command line, where it is given, tells which of these values somebody asked for.
    let command = arguments.get("launch_command").and_then(Json::as_str);
    if let Some(command) =
        command.and_then(|line| find_commands(line, &|_| None).into_iter().next())
    {
        let mut asked = command.config;
        asked.fill(&config);
        config = asked;
    }
    Some(Info { config, state })
}

fn llamacpp(props: &Json) -> Info {
    let mut config = Config::new(Engine::LlamaCpp);
    let int = |value: Option<&Json>| value.and_then(Json::as_i64).map(Value::Int);
    let settings = props.get("default_generation_settings");
    let slots = int(props.get("total_slots"));
    if let Some(context) = int(settings.and_then(|s| s.get("n_ctx"))) {
        config.state(Factor::ModelMaxContext, context, "/props n_ctx");
    }
    if let Some(slots) = slots {
        config.state(Factor::SchedMaxRunning, slots, "/props total_slots");
    }
    if let Some(path) = props.get("model_path").and_then(Json::as_str) {
        config.state(
            Factor::ModelPath,
            Value::Text(crate::redact::text(path)),
            "/props model_path",
        );
    }
    if let Some(depth) = int(settings.and_then(|s| s.get("speculative.n_max"))) {
        config.state(Factor::SpecNumSteps, depth, "/props speculative.n_max");
    }
    config.version = props.get("build_info").and_then(Json::as_str).and_then(Version::parse);
    Info { config, state: State::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_info_separates_asked_and_effective() {
        let info = parse(
            r#"{"model_path": "/m", "max_running_requests": 16, "api_key": "secretword", "version": "0.5.23", "max_total_num_tokens": 743739,
                "internal_states": [{"last_gen_throughput": 264.2, "effective_max_running_requests_per_dp": 3}]}"#,
        )
        .unwrap();
        assert_eq!(info.config.get(Factor::SchedMaxRunning), Some(&Value::Int(16)));
        assert_eq!(info.state.max_running, Some(3.0));
        assert_eq!(info.config.version, Version::parse("0.5.23"));
        assert!(!format!("{info:?}").contains("secretword"));
    }

    #[test]
    fn steps_of_outrider() {
        let at = |steps: u32, forward: f64| {
            let text = format!(
                r#"{{"engine": "outrider", "model_path": "m", "step_bytes": {{"forward": 100, "draft": 10}}, "internal_states": [{{"totals":
                {{"queue_wait_s": 0.5, "n_queue_waits": 5, "decode": {{"n_steps": {steps}, "n_rounds": {steps}, "n_drafted": {}, "n_accepted": {steps}, "forward_s": {forward}, "draft_s": 0.5, "sample_s": 0, "other_s": 0}}}}}}]}}"#,
                3 * steps
            );
            parse(&text).unwrap().state.steps.unwrap()
        };
        let between = at(300, 3.0).since(&at(100, 1.0)).unwrap();
        assert_eq!((between.step_s(), between.accept_len(), between.running()), (0.01, 2.0, 1.0));
        assert_eq!(between.bytes(), 130.0);
        assert_eq!(at(100, 1.0).since(&at(300, 3.0)), None, "restarted in between");
        assert_eq!(at(100, 1.0).since(&at(100, 1.0)), None, "idle in between");
    }

    #[test]
    fn props_of_llama_cpp() {
        let info = parse(r#"{"default_generation_settings": {"n_ctx": 65536}, "total_slots": 2, "model_path": "/x.gguf", "build_info": "b6123-abc"}"#).unwrap();
        assert_eq!(info.config.engine, Engine::LlamaCpp);
        assert_eq!(info.config.version.unwrap().to_string(), "b6123-abc");
    }
}
