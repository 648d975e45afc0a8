//! Writes folders as they are found on hosts: logs in the engines' own grammar, probes, configurations.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use diagnose::commands::{self, DiagnoseArgs};
use serde_json::{Value as Json, json};

/// A folder that is removed at the end.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> &Folder {
        self.write_bytes(path, text.as_bytes())
    }

    pub(crate) fn write_bytes(&self, path: &str, bytes: &[u8]) -> &Folder {
        let full = self.path().join(path);
        fs::create_dir_all(full.parent().expect("a parent")).expect("folders");
        fs::write(full, bytes).expect("a file");
        self
    }

    /// Copies a folder; `change` may change the text of a file.
    pub(crate) fn copy(&self, from: &Path, change: &dyn Fn(&str, String) -> String) {
        let mut open = vec![from.to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let inside =
                    path.strip_prefix(from).expect("inside").to_str().expect("a path").to_owned();
                let text = String::from_utf8(fs::read(&path).expect("a file")).expect("text");
                self.write(&inside, &change(&inside, text));
            }
        }
    }

    pub(crate) fn diagnose(&self) -> Json {
        let mut out = Vec::new();
        let args = DiagnoseArgs {
            from_dir: Some(self.path().to_owned()),
            json: true,
            ..DiagnoseArgs::default()
        };
        commands::diagnose(&args, &mut out).expect("diagnosed");
        serde_json::from_slice(&out).expect("JSON")
    }
}

/// Small deterministic wobble around 1.
pub(crate) fn wobble(i: usize) -> f64 {
    1.0 + 0.02 * ((i as f64 * 2.399).sin())
}

/// `[2026-11-20 10:00:00]` plus seconds, on a day of November 2026.
fn stamp(day: u32, seconds: f64) -> String {
    let s = seconds as u64 + 36_000;
    format!("2026-11-{day:02} {:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// A SGLang server of the 27B hybrid.
#[derive(Clone)]
pub(crate) struct Sglang {
    pub(crate) day: u32,
    /// Arguments that differ from the usual ones: key and Python value.
    pub(crate) args: Vec<(&'static str, &'static str)>,
    pub(crate) weights_gib: f64,
    pub(crate) slots: u64,
    pub(crate) kv_tokens: u64,
    pub(crate) limit: u64,
    pub(crate) capped: bool,
    pub(crate) draft_tokens: u64,
    /// Whether the printed accept rate counts the bonus token, as releases up to 0.5.10 do.
    pub(crate) bonus_in_rate: bool,
    pub(crate) running: u64,
    pub(crate) queue: u64,
    pub(crate) accept_len: f64,
    pub(crate) steps_per_s: f64,
    /// Step rate of every third stretch of windows, where it has two modes.
    pub(crate) slow_mode: Option<f64>,
    pub(crate) graph: bool,
    pub(crate) kv_usage: f64,
    pub(crate) windows: usize,
    /// Prompt and cached tokens of the prefill before every tenth window.
    pub(crate) prompt: (u64, u64),
    pub(crate) prefill_rate: f64,
    /// Lines that are written after every window.
    pub(crate) noise: Vec<String>,
}

impl Sglang {
    pub(crate) fn new(day: u32) -> Sglang {
        Sglang {
            day,
            args: Vec::new(),
            weights_gib: 29.6,
            slots: 95,
            kv_tokens: 460_754,
            limit: 16,
            capped: false,
            draft_tokens: 4,
            bonus_in_rate: false,
            running: 1,
            queue: 0,
            accept_len: 2.7,
            steps_per_s: 38.7,
            slow_mode: None,
            graph: true,
            kv_usage: 0.02,
            windows: 40,
            prompt: (900, 0),
            prefill_rate: 4800.0,
            noise: Vec::new(),
        }
    }

    pub(crate) fn log(&self) -> String {
        let mut args = vec![
            ("model_path", "'/models/Qwen3.6-27B-FP8'"),
            ("context_length", "131072"),
            ("dtype", "'auto'"),
            ("quantization", "'fp8'"),
            ("mem_fraction_static", "0.88"),
            ("max_running_requests", "16"),
            ("chunked_prefill_size", "8192"),
            ("mamba_full_memory_ratio", "0.9"),
            ("tp_size", "1"),
            ("log_level", "'info'"),
            ("log_requests", "False"),
            ("decode_log_interval", "40"),
            ("speculative_algorithm", "'EAGLE'"),
            ("speculative_num_steps", "3"),
            ("speculative_eagle_topk", "1"),
            ("speculative_num_draft_tokens", "4"),
            ("disable_radix_cache", "False"),
            ("disable_cuda_graph", "False"),
            ("cuda_graph_max_bs_decode", "None"),
            ("max_mamba_cache_size", "None"),
            ("max_total_tokens", "None"),
            ("random_seed", "42"),
        ];
        for (key, value) in &self.args {
            match args.iter_mut().find(|(known, _)| known == key) {
                Some(entry) => entry.1 = value,
                None => args.push((key, value)),
            }
        }
        let dump: Vec<String> =
            args.iter().map(|(key, value)| format!("'{key}': {value}")).collect();
        let chunk = args
            .iter()
            .find(|(key, _)| *key == "chunked_prefill_size")
            .map_or("8192", |(_, value)| value);
        let at = |s: f64| stamp(self.day, s);
        let mut out = String::new();
        let _ = writeln!(out, "[{}] server_args={{{}}}", at(0.0), dump.join(", "));
        let _ = writeln!(out, "[{}] Load weight begin. avail mem=94.31 GB", at(1.0));
        let _ = writeln!(
            out,
            "[{}] Load weight end. elapsed=41.80 s, type=Qwen3_5ForConditionalGeneration, avail mem={:.2} GB, mem usage={:.2} GB.",
            at(40.0),
            94.31 - self.weights_gib,
            self.weights_gib
        );
        let _ = writeln!(
            out,
            "[{}] Mamba Cache is allocated. max_mamba_cache_size: {}, conv_state size: 0.26GB, ssm_state size: {:.2}GB intermediate_ssm_state_cache size: 9.63GB intermediate_conv_window_cache size: 0.12GB ",
            at(41.0),
            self.slots,
            0.142 * self.slots as f64
        );
        if self.capped {
            let _ = writeln!(
                out,
                "[{}] max_running_requests is capped to {} by the mamba state cache (max_mamba_cache_size={}, 5 state slots per request). To raise it: increase --mamba-full-memory-ratio or --max-mamba-cache-size.",
                at(41.0),
                self.limit,
                self.slots
            );
        }
        let _ = writeln!(
            out,
            "[{}] KV Cache is allocated. dtype: torch.bfloat16, #tokens: {}, K size: 14.06 GB, V size: 14.06 GB",
            at(42.0),
            self.kv_tokens
        );
        if self.graph {
            let _ = writeln!(
                out,
                "[{}] Capture target verify CUDA graph begin. backend=full, num_tokens_per_req={}, avail mem=10.97 GB",
                at(43.0),
                self.draft_tokens
            );
        }
        let _ = writeln!(
            out,
            "[{}] max_total_num_tokens={}, chunked_prefill_size={chunk}, max_prefill_tokens=16384, max_running_requests={}, context_len=131072, available_gpu_mem=9.77 GB",
            at(60.0),
            self.kv_tokens,
            self.limit
        );
        let _ = writeln!(out, "[{}] The server is fired up and ready to roll!", at(61.0));
        let mut t = 300.0;
        for i in 0..self.windows {
            if i % 10 == 0 {
                let (new, cached) = self.prompt;
                let mut left = new;
                let chunk: u64 = chunk.parse::<u64>().unwrap_or(u64::MAX);
                while left > 0 {
                    let part = left.min(chunk);
                    left -= part;
                    t += part as f64 / self.prefill_rate;
                    let _ = writeln!(
                        out,
                        "[{}] Prefill batch, #new-seq: 1, #new-token: {part}, #cached-token: {}, full token usage: {:.2}, mamba usage: 0.10, #running-req: {}, #queue-req: {}, #pending-token: {left}, cuda graph: False, input throughput (token/s): {:.2}",
                        at(t),
                        if left == 0 { cached } else { 0 },
                        self.kv_usage,
                        self.running.saturating_sub(1),
                        self.queue,
                        self.prefill_rate
                    );
                }
            }
            let len = self.accept_len * wobble(i);
            let slow = self.slow_mode.filter(|_| i / 5 % 3 == 2);
            let steps = slow.unwrap_or(self.steps_per_s) * (1.0 + 0.002 * (i as f64).cos());
            let interval =
                if self.args.contains(&("decode_log_interval", "1")) { 1.0 } else { 40.0 };
            t += interval / steps;
            let shown = if i % 10 == 0 { 0.6 } else { 1.0 };
            let rate = match self.bonus_in_rate {
                true => len / self.draft_tokens as f64,
                false => (len - 1.0) / (self.draft_tokens - 1).max(1) as f64,
            };
            let accept = if self.draft_tokens > 1 {
                format!("accept len: {len:.2}, accept rate: {rate:.2}, ")
            } else {
                String::new()
            };
            let committed = if self.draft_tokens > 1 { len } else { 1.0 };
            let _ = writeln!(
                out,
                "[{}] Decode batch, #running-req: {}, #full token: 9000, full token usage: {:.2}, mamba num: 8, mamba usage: {:.2}, {accept}cuda graph: {}, gen throughput (token/s): {:.2}, #queue-req: {}",
                at(t),
                self.running,
                self.kv_usage,
                (4.0 * self.running as f64 / self.slots as f64).min(1.0),
                if self.graph { "True" } else { "False" },
                committed * steps * self.running as f64 * shown,
                self.queue
            );
            for line in &self.noise {
                let _ = writeln!(out, "[{}] {line}", at(t));
            }
        }
        out
    }
}

/// A vLLM server.
#[derive(Clone)]
pub(crate) struct Vllm {
    pub(crate) day: u32,
    pub(crate) args: Vec<(&'static str, &'static str)>,
    pub(crate) resolved: Vec<(&'static str, &'static str)>,
    pub(crate) warnings: Vec<&'static str>,
    pub(crate) weights_gib: f64,
    pub(crate) kv_tokens: &'static str,
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    pub(crate) depth: u64,
    pub(crate) accept_len: f64,
    pub(crate) steps_per_s: f64,
    pub(crate) hit_rate: f64,
    pub(crate) kv_usage: f64,
    pub(crate) windows: usize,
}

impl Vllm {
    pub(crate) fn new(day: u32) -> Vllm {
        Vllm {
            day,
            args: Vec::new(),
            resolved: Vec::new(),
            warnings: Vec::new(),
            weights_gib: 28.94,
            kv_tokens: "806,400",
            running: 1,
            waiting: 0,
            depth: 3,
            accept_len: 2.7,
            steps_per_s: 40.0,
            hit_rate: 0.0,
            kv_usage: 0.01,
            windows: 20,
        }
    }

    pub(crate) fn log(&self) -> String {
        let mut args = vec![
            ("model", "'/models/Qwen3.6-27B-FP8'"),
            ("port", "8000"),
            ("max_model_len", "65536"),
            ("max_num_seqs", "32"),
            ("gpu_memory_utilization", "0.9"),
        ];
        let spec = format!("{{'method': 'mtp', 'num_speculative_tokens': {}}}", self.depth);
        if self.depth > 0 {
            args.push(("speculative_config", &spec));
        }
        args.extend(self.args.iter().copied());
        let dump: Vec<String> =
            args.iter().map(|(key, value)| format!("'{key}': {value}")).collect();
        let mut resolved = vec![
            ("dtype", "torch.bfloat16"),
            ("tensor_parallel_size", "1"),
            ("quantization", "fp8"),
            ("enforce_eager", "False"),
            ("enable_prefix_caching", "True"),
        ];
        for (key, value) in &self.resolved {
            match resolved.iter_mut().find(|(known, _)| known == key) {
                Some(entry) => entry.1 = value,
                None => resolved.push((key, value)),
            }
        }
        let resolved: Vec<String> =
            resolved.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let at = |s: f64| stamp(self.day, s)[5..].to_owned();
        let mut out = String::new();
        let _ = writeln!(
            out,
            "(APIServer pid=7) INFO {} [startup.py:52] vLLM API server version 0.33.0",
            at(0.0)
        );
        let _ = writeln!(
            out,
            "(APIServer pid=7) INFO {} [startup.py:96] non-default args: {{{}}}",
            at(0.0),
            dump.join(", ")
        );
        for warning in &self.warnings {
            let _ = writeln!(out, "(APIServer pid=7) WARNING {} [config.py:10] {warning}", at(2.0));
        }
        let _ = writeln!(
            out,
            "(EngineCore pid=8) INFO {} [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: model='/m', {}",
            at(9.0),
            resolved.join(", ")
        );
        let _ = writeln!(
            out,
            "(EngineCore pid=8) INFO {} [gpu_model_runner.py:5089] Model loading took {:.2} GiB memory and 37.4 seconds",
            at(40.0),
            self.weights_gib
        );
        let _ = writeln!(
            out,
            "(EngineCore pid=8) INFO {} [kv_cache_utils.py:1149] GPU KV cache size: {} tokens, Maximum concurrency for 65,536 tokens per request: 12.30x",
            at(50.0),
            self.kv_tokens
        );
        let _ = writeln!(
            out,
            "(APIServer pid=7) INFO {} [launcher.py:62] Application startup complete.",
            at(60.0)
        );
        for i in 0..self.windows {
            let t = 120.0 + 10.0 * i as f64;
            let len = if self.depth > 0 { self.accept_len * wobble(i) } else { 1.0 };
            let speed = len * self.steps_per_s * self.running as f64;
            let _ = writeln!(
                out,
                "(APIServer pid=7) INFO {} [loggers.py:283] Engine 000: Avg prompt throughput: 150.0 tokens/s, Avg generation throughput: {speed:.1} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {:.1}%, Prefix cache hit rate: {:.1}%",
                at(t),
                self.running,
                self.waiting,
                self.kv_usage * 100.0,
                self.hit_rate * 100.0
            );
            if self.depth > 0 {
                let steps = 10.0 * self.steps_per_s * self.running as f64;
                let (accepted, drafted) = ((len - 1.0) * steps, self.depth as f64 * steps);
                let _ = writeln!(
                    out,
                    "(APIServer pid=7) INFO {} [metrics.py:121] SpecDecoding metrics: Mean acceptance length: {len:.2}, Accepted throughput: {:.2} tokens/s, Drafted throughput: {:.2} tokens/s, Accepted: {accepted:.0} tokens, Drafted: {drafted:.0} tokens, Avg Draft acceptance rate: {:.1}%",
                    at(t),
                    accepted / 10.0,
                    drafted / 10.0,
                    accepted / drafted * 100.0
                );
            }
        }
        out
    }
}

/// A closed-loop probe of like requests.
pub(crate) struct Probe {
    pub(crate) day: u32,
    pub(crate) concurrency: u64,
    pub(crate) temperature: f64,
    pub(crate) n: usize,
    pub(crate) tok_s: f64,
    pub(crate) ttft_s: f64,
    pub(crate) max_gap_s: f64,
    pub(crate) tokens_per_chunk: f64,
}

impl Probe {
    pub(crate) fn new(day: u32, tok_s: f64) -> Probe {
        Probe {
            day,
            concurrency: 1,
            temperature: 0.0,
            n: 16,
            tok_s,
            ttft_s: 0.2,
            max_gap_s: 0.03,
            tokens_per_chunk: 2.7,
        }
    }

    pub(crate) fn json(&self) -> String {
        let requests: Vec<Json> = (0..self.n)
            .map(|i| {
                let out = 400.0 + (i * 37 % 200) as f64;
                let ttft = self.ttft_s * wobble(i + 3);
                let seconds = ttft + (out - 1.0) / (self.tok_s * wobble(i));
                json!({ "prompt": 900, "out": out, "ttft_s": ttft, "e2e_s": seconds, "chunks": (out / self.tokens_per_chunk).round(), "max_gap_s": self.max_gap_s * wobble(i + 7) })
            })
            .collect();
        json!({
            "schema": "probe/1", "taken_at": format!("2026-11-{:02}T20:00:00Z", self.day), "target": "http://127.0.0.1:30000/v1",
            "workload": { "id": "chat-fixed-v1", "concurrency": self.concurrency, "temperature": self.temperature, "thinking": false, "max_tokens": 700 },
            "requests": requests,
        })
        .to_string()
    }
}

/// Verdict and blamed factor, with the whole report when they are wrong.
#[track_caller]
pub(crate) fn blames(report: &Json, verdict: &str, factor: &str) {
    let got = (report["verdict"].as_str(), report["primary"]["factor"].as_str());
    assert_eq!(got, (Some(verdict), Some(factor)), "{:#}", brief(report));
}

#[track_caller]
pub(crate) fn blames_nothing(report: &Json) {
    assert_eq!(report["verdict"], "no_regression", "{:#}", brief(report));
    assert!(
        report["primary"].is_null() && report["claims"].as_array().is_some_and(Vec::is_empty),
        "{:#}",
        brief(report)
    );
}

pub(crate) fn brief(report: &Json) -> Json {
    let mut report = report.clone();
    if let Some(map) = report.as_object_mut() {
        map.remove("decomposition");
    }
    report
}

pub(crate) fn now(report: &Json, quantity: &str) -> f64 {
    report["decomposition"][quantity]["now"].as_f64().unwrap_or(f64::NAN)
}
