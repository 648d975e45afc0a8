//! Launch records: what a server was started with, and what it achieved.
//!
//! The ledger of `outrider serve` ([`dialects::ledger`]) has one line for each start and one for each stop; records of
//! other servers have both in one object.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use dialects::{Engine, Key, Value, Version, flags, from_argv};

use crate::configs::{Found, Origin, date_in_name};
use crate::evidence::Side;

/// What a launch record says beyond the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// When the server was started, in seconds since 1970.
    pub time: Option<f64>,
    /// What was sent when it was measured.
    pub workload: Option<String>,
    /// Requests in flight when it was measured.
    pub concurrency: Option<f64>,
    /// Output tokens per second of all streams.
    pub aggregate_tok_s: Option<f64>,
    /// Decode tokens per second of one stream.
    pub decode_tok_s: Option<f64>,
    /// Accept length.
    pub accept_len: Option<f64>,
}

/// Reads a launch record, or a ledger with one record per line.
pub fn parse(text: &str, path: &str, side: Side) -> Vec<(Found, Launch)> {
    if let Some(record) =
        serde_json::from_str::<Json>(text).ok().and_then(|json| one(&json, path, None, side))
    {
        return vec![record];
    }
    let lines = text.lines().enumerate();
    let mut records: Vec<(u32, Json)> = lines
        .filter_map(|(i, line)| Some((i as u32 + 1, serde_json::from_str(line).ok()?)))
        .collect();
    let is_stop = |json: &Json| json["event"] == "stop";
    let stops: HashMap<String, Json> = records
        .iter()
        .filter(|(_, json)| is_stop(json))
        .filter_map(|(_, json)| Some((json["id"].as_str()?.to_owned(), json["measured"].clone())))
        .collect();
    for (_, json) in &mut records {
        if let Some(measured) = json["id"].as_str().and_then(|id| stops.get(id)) {
            json["measured"] = measured.clone();
        }
    }
    records.iter().filter_map(|(line, json)| one(json, path, Some(*line), side)).collect()
}

fn one(json: &Json, path: &str, line: Option<u32>, side: Side) -> Option<(Found, Launch)> {
    let argv: Vec<String> = json
        .get("argv")?
        .as_array()?
        .iter()
        .filter_map(|word| word.as_str().map(str::to_owned))
        .collect();
    let environment: Vec<(String, String)> = json
        .get("env")
        .and_then(Json::as_object)
        .map(|env| {
            env.iter()
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                .collect()
        })
        .unwrap_or_default();
    let mut command = from_argv(&argv, &environment)?;
    if let Some(engine) = json.get("engine").and_then(Json::as_str).and_then(Engine::from_name) {
        command.config.engine = engine;
    }
    command.config.version = json
        .get("version")
        .and_then(Json::as_str)
        .and_then(Version::parse)
        .or(command.config.version);
    state_effective(&mut command.config, json);
    let stamp = ["started_at", "time", "start", "at"]
        .iter()
        .find_map(|key| json.get(*key)?.as_str())
        .and_then(dialects::log::parse_iso);
    let time = stamp.or_else(|| date_in_name(path));
    let measured = ["measured", "achieved", "result"].iter().find_map(|key| json.get(*key));
    let number = |keys: &[&str]| keys.iter().find_map(|key| measured?.get(*key)?.as_f64());
    let launch = Launch {
        time,
        workload: measured
            .and_then(|m| m.get("workload")?.as_str())
            .map(|id| dialects::redact::line(id, 60)),
        concurrency: number(&["concurrency"]),
        aggregate_tok_s: number(&["aggregate_tok_s", "output_tok_s"]),
        decode_tok_s: number(&["decode_tok_s_p50", "decode_tok_s", "stream_tok_s"]),
        accept_len: number(&["accept_len", "accept_length"]),
    };
    let found = Found {
        side,
        origin: Origin::LaunchRecord,
        path: path.to_owned(),
        line,
        time,
        name: json
            .get("host")
            .and_then(Json::as_str)
            .map_or_else(|| "launch".to_owned(), |host| dialects::redact::line(host, 40)),
        config: command.config,
        command: Some(command.line),
    };
    Some((found, launch))
}

/// What nobody asked for and the plan decided.
fn state_effective(config: &mut dialects::Config, json: &Json) {
    for (name, value) in json["effective"].as_object().into_iter().flatten() {
        let flag = flags::canonical_name(&format!("--{name}"));
        let Some((known, _)) = flags::lookup(config.engine, &flag) else { continue };
        if !config.settings.contains_key(&Key::Known(known.factor)) {
            let word = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            config.state(known.factor, Value::parse(&dialects::redact::value(&flag, &word)), &flag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dialects::Factor;

    #[test]
    fn a_record_and_a_ledger() {
        let record = r#"{"schema": "launch/1", "engine": "vllm", "version": "0.33.0", "argv": ["vllm", "serve", "m"], "measured": {"concurrency": 6, "aggregate_tok_s": 429.9}}"#;
        let read = parse(record, "launch-records/2026-11-02T0915.json", Side::Open);
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].1.aggregate_tok_s, Some(429.9));
        assert!(read[0].0.time.is_some());
        let ledger = parse(&format!("{record}\nbroken\n{record}\n"), "launches.jsonl", Side::Open);
        assert_eq!(
            ledger.iter().map(|(found, _)| found.line).collect::<Vec<_>>(),
            [Some(1), Some(3)]
        );
        assert!(parse("{\"schema\": \"expected/1\"}", "x", Side::Open).is_empty());
    }

    #[test]
    fn a_start_and_its_stop_are_one_record() {
        let start = r#"{"event":"start","schema":"launch/1","id":"7-1","started_at":"2026-11-30T08:00:00Z","engine":"outrider","version":"0.1.0","argv":["/usr/bin/outrider","serve","m","--speculative-num-steps","3"],"effective":{"max_running_requests":16,"speculative_num_steps":3}}"#;
        let stop = r#"{"event":"stop","schema":"launch/1","id":"7-1","measured":{"accept_len":2.5,"decode_tok_s":61.0}}"#;
        let other = start.replace("7-1", "8-2");
        let read = parse(&format!("{start}\n{other}\n{stop}\n"), "launches.jsonl", Side::Open);
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].1.accept_len, read[0].1.decode_tok_s), (Some(2.5), Some(61.0)));
        assert_eq!(read[1].1.accept_len, None, "it still runs, or was killed");
        let config = &read[0].0.config;
        assert_eq!(config.get(Factor::SchedMaxRunning), Some(&Value::Int(16)));
        assert!(config.settings[&Key::Known(Factor::SchedMaxRunning)].resolved);
        assert!(!config.settings[&Key::Known(Factor::SpecNumSteps)].resolved, "asked for");
    }
}
