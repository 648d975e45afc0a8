//! A running server: what its endpoints said before and after some seconds, and which traces on the host are its own.

use dialects::config::Setting;
use dialects::info::{self, StepTimes};
use dialects::{Config, Engine, Factor, Key, Value, Version, metrics};
use serde_json::Value as Json;

use super::folder;
use crate::configs::{Found, Origin};
use crate::evidence::{Evidence, Item, Side};

/// The endpoints that are asked, all of them read-only: configuration, version, metrics, models.
pub const ENDPOINTS: &[&str] =
    &["/server_info", "/get_server_info", "/version", "/props", "/metrics", "/v1/models"];

/// What endpoints answered: the path and the text, for those that did.
pub type Answers = Vec<(&'static str, String)>;

/// The server that a diagnosis is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Target {
    /// Its port.
    pub port: u16,
    /// Its process on this host, where it is known.
    pub pid: Option<u32>,
    /// When it was started, in seconds since 1970.
    pub started: Option<f64>,
}

/// Adds what endpoints said: state and gauges of the later look, counters as what happened between the two.
pub fn add_answers(evidence: &mut Evidence, before: &Answers, after: &Answers, seconds: f64) {
    let said = |answers: &Answers, path: &str| {
        answers.iter().find(|(p, _)| *p == path).map(|(_, t)| t.clone())
    };
    for path in ["/server_info", "/get_server_info", "/props"] {
        let Some(text) = said(after, path) else { continue };
        if !folder::add_text(evidence, Side::Now, path, &text) {
            continue;
        }
        let steps = |text: &str| info::parse(text).and_then(|info| info.state.steps);
        let between = said(before, path)
            .and_then(|earlier| steps(&text)?.since(&steps(&earlier)?))
            .map(|sums| StepTimes { seconds, sums });
        let source = format!("{path} over {seconds:.0} s");
        evidence.steps.extend(between.map(|what| Item { side: Side::Now, source, what }));
        break;
    }
    if let Some(text) = said(after, "/metrics") {
        let later = metrics::parse(&text);
        let earlier =
            said(before, "/metrics").map(|text| metrics::parse(&text)).unwrap_or_default();
        let what = later.since(&earlier);
        let source = format!("/metrics over {seconds:.0} s");
        if !what.values.is_empty() {
            evidence.scrapes.push(Item { side: Side::Now, source, what });
        }
    }
    if let Some(version) = said(after, "/version").as_deref().and_then(version) {
        let of_now = |found: &&mut Found| found.side == Side::Now && found.config.version.is_none();
        for found in evidence.configs.iter_mut().filter(of_now) {
            found.config.version = Some(version.clone());
        }
    }
    if !evidence.configs.iter().any(|found| found.side == Side::Now) {
        evidence.gaps.push(
            "the server does not tell its configuration: run this on its host, or name its log"
                .to_owned(),
        );
    }
}

/// Replaces what was counted between two looks by what was counted under the probe's load alone.
///
/// Between the looks lies the warm-up too, and a first step after a pause is slow: over all of it the server's numbers
/// would speak of other work than the client's.
pub fn add_probe_steps(evidence: &mut Evidence, steps: StepTimes) {
    evidence.steps.retain(|item| item.side != Side::Now);
    let source = format!("/server_info over {:.0} s of probing", steps.seconds);
    evidence.steps.push(Item { side: Side::Now, source, what: steps });
}

/// `{"version": "0.33.0"}`, as vLLM answers.
fn version(text: &str) -> Option<Version> {
    let json: Json = serde_json::from_str(text).ok()?;
    json.get("version")?.as_str().and_then(Version::parse)
}

/// Adds a measurement that was saved when the server was good: the JSON of its run, and its settings by factor.
///
/// What was saved may be anything that an older version wrote; what cannot be read is a gap.
pub fn add_baseline(evidence: &mut Evidence, name: &str, run: &Json, settings: &Json) {
    let source = format!("baseline {name}");
    if !folder::add_text(evidence, Side::Before, &source, &run.to_string()) {
        return evidence.gaps.push(format!("{source}: not a measurement"));
    }
    let time = run.get("taken_at").and_then(Json::as_str).and_then(dialects::log::parse_iso);
    match settings_of(settings) {
        Some(config) => evidence.configs.push(Found {
            side: Side::Before,
            origin: Origin::LaunchRecord,
            path: source,
            line: None,
            time,
            name: name.to_owned(),
            config,
            command: None,
        }),
        None => evidence.gaps.push(format!("{source}: the configuration was not saved with it")),
    }
}

/// A configuration saved as values by factor.
pub fn settings_of(settings: &Json) -> Option<Config> {
    let map = settings.as_object()?;
    let engine = map.get("engine.name")?.as_str().and_then(Engine::from_name)?;
    let mut config = Config::new(engine);
    config.whole = true;
    config.version = map.get("engine.version").and_then(Json::as_str).and_then(Version::parse);
    for (name, value) in map {
        let key = match name.strip_prefix("raw.") {
            Some(raw) => Key::Raw(raw.to_owned()),
            None => match Factor::from_name(name) {
                Some(Factor::EngineName | Factor::EngineVersion) | None => continue,
                Some(factor) => Key::Known(factor),
            },
        };
        let Ok(value) = serde_json::from_value::<Value>(value.clone()) else { continue };
        config.settings.insert(key, Setting { value, flag: name.clone(), resolved: false });
    }
    Some(config)
}

/// Keeps what can speak for the target where a host has several servers.
///
/// Its own process is what runs now. Other processes, and configurations of another model on another port, are other
/// servers. A launch record of the process that runs now says nothing about before.
pub fn focus(evidence: &mut Evidence, target: &Target) {
    let is_target = |found: &Found| match target.pid {
        Some(pid) => found.path == format!("proc/{pid}/cmdline"),
        None => found.config.number(Factor::NetPort) == Some(f64::from(target.port)),
    };
    evidence.configs.retain(|found| {
        found.side != Side::Open || found.origin != Origin::Process || is_target(found)
    });
    for found in evidence.configs.iter_mut().filter(|found| found.origin == Origin::Process) {
        found.side = Side::Now;
    }
    let own = evidence.configs.iter().find(|found| found.side == Side::Now);
    let model = own.and_then(|found| found.config.get(Factor::ModelPath)).cloned();
    let elsewhere = |found: &Found| {
        let config = &found.config;
        let port = config.number(Factor::NetPort);
        let other_port = port.is_some_and(|port| port != f64::from(target.port));
        let theirs = config.get(Factor::ModelPath);
        other_port && theirs.zip(model.as_ref()).is_some_and(|(a, b)| a != b)
    };
    let of_this_run = |time: Option<f64>| {
        time.zip(target.started).is_some_and(|(time, started)| time > started - START_SLACK_S)
    };
    evidence.configs.retain(|found| {
        let this_run = found.origin == Origin::LaunchRecord && of_this_run(found.time);
        found.side != Side::Open || (!elsewhere(found) && !this_run)
    });
    evidence.launches.retain(|item| item.side != Side::Open || !of_this_run(item.what.time));
}

/// A record is written a little before or after the moment that the process counts as its start.
const START_SLACK_S: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(origin: Origin, path: &str, line: &str) -> Found {
        let command = dialects::find_commands(line, &|_| None).remove(0);
        Found {
            side: Side::Open,
            origin,
            path: path.to_owned(),
            line: None,
            time: Some(1000.0),
            name: "x".to_owned(),
            config: command.config,
            command: None,
        }
    }

    #[test]
    fn another_server_on_the_host_is_left_out() {
        let mut evidence = Evidence::new();
        evidence.configs = vec![
            found(Origin::Process, "proc/7/cmdline", "vllm serve m --port 8000 --max-num-seqs 1"),
            found(Origin::Process, "proc/8/cmdline", "vllm serve n --port 8001"),
            found(Origin::Unit, "etc/a.service", "vllm serve m --port 8000 --max-num-seqs 8"),
            found(Origin::Unit, "etc/b.service", "vllm serve n --port 8001 --max-num-seqs 9"),
            found(Origin::LaunchRecord, "ledger.jsonl", "vllm serve m --port 8000"),
        ];
        let target = Target { port: 8000, pid: Some(7), started: Some(1001.0) };
        let before = vec![(
            "/metrics",
            "vllm:generation_tokens_total 100\nvllm:num_requests_running 5\n".to_owned(),
        )];
        let after = vec![
            ("/version", r#"{"version": "0.33.0"}"#.to_owned()),
            (
                "/metrics",
                "vllm:generation_tokens_total 340\nvllm:num_requests_running 2\n".to_owned(),
            ),
        ];
        focus(&mut evidence, &target);
        add_answers(&mut evidence, &before, &after, 12.0);
        let left: Vec<&str> = evidence.configs.iter().map(|found| found.path.as_str()).collect();
        assert_eq!(left, ["proc/7/cmdline", "etc/a.service"]);
        assert_eq!(evidence.configs[0].config.version, Version::parse("0.33.0"));
        let scrape = &evidence.scrapes[0];
        assert_eq!(scrape.source, "/metrics over 12 s");
        assert_eq!(scrape.what.get(metrics::Metric::GenerationTokens), Some(240.0));
        assert_eq!(scrape.what.get(metrics::Metric::Running), Some(2.0));
        assert!(evidence.gaps.is_empty());
    }

    #[test]
    fn a_server_that_tells_nothing_is_a_gap() {
        let mut evidence = Evidence::new();
        add_answers(&mut evidence, &Vec::new(), &Vec::new(), 0.0);
        assert!(evidence.gaps[0].contains("does not tell its configuration"));
    }
}
