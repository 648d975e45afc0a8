//! Probes against a small stand-in server on loopback that misbehaves on demand.

mod stand_in;

use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use self::stand_in::{Answer, StandIn};
use crate::load::Load;
use crate::probe::{self, ProbeArgs, ProbeError};
use crate::prompts::PromptSet;
use crate::report::{ProbeReport, Run};
use crate::stop::Stop;

/// A short probe without the pass over the prefix cache.
fn args(server: &StandIn) -> ProbeArgs {
    ProbeArgs {
        runs: 8,
        seconds: 20.0,
        cache_pass: false,
        idle_s: 2.0,
        ..ProbeArgs::new(&server.url())
    }
}

fn probe(args: &ProbeArgs) -> Result<ProbeReport, ProbeError> {
    probe::run(args, &mut |_, _| {})
}

#[test]
fn an_answer_is_measured_from_its_events_and_counted_by_usage() {
    let answer = Answer { reasoning: 2, chunks: 8, tokens_per_chunk: 3, ..Answer::usual() };
    let server = StandIn::start(move |_| answer.clone());
    let report = probe(&args(&server)).unwrap();
    let run = &report.runs[0];
    assert_eq!(report.model, "stand-in");
    assert_eq!(run.workload.id, "chat-v1");
    assert!(run.workload.thinking);
    for sample in &run.requests {
        assert_eq!((sample.prompt, sample.out, sample.chunks), (50, 24, 8));
        assert!(!sample.estimated);
        // The server waits at least this long; a busy machine may add to every one of them.
        assert!(sample.ttft_s >= 0.02, "{sample:?}");
        assert!(sample.ttfo_s.unwrap() >= 0.02 + 2.0 * 0.003, "{sample:?}");
        assert!(sample.e2e_s >= 0.02 + 7.0 * 0.003, "{sample:?}");
        assert_eq!(sample.finish.as_deref(), Some("stop"));
    }
    let class = &run.summary.classes[0];
    assert_eq!(class.tokens_per_chunk, Some(3.0));
    assert_eq!(class.token_gap_ms, None, "gaps between events are not gaps between tokens");
    assert!(run.notices.iter().any(|notice| notice.contains("3.00 tokens")));
    assert!(report.notices[0].contains("does not say whether others use it"));
    assert!(report.text().contains("chat-v1 · 1 at a time"), "{}", report.text());
}

#[test]
fn a_steady_server_needs_fewer_requests_and_every_prompt_is_new() {
    let server = StandIn::start(|_| Answer { gap_ms: 30, ..Answer::usual() });
    let args = ProbeArgs { runs: 40, precision: 0.2, ..args(&server) };
    let report = probe(&args).unwrap();
    let n = report.runs[0].requests.len();
    assert!((6..40).contains(&n), "{n} answers");
    let bodies = server.bodies();
    let mut texts: Vec<String> =
        bodies.iter().map(|body| body["messages"][0]["content"].to_string()).collect();
    assert!(texts.iter().all(|text| text.starts_with("\"Reference ")));
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), bodies.len(), "no two prompts share a salt");
    assert_eq!(bodies[0]["stream_options"]["include_usage"], true);
    assert_eq!(bodies[0]["temperature"], 0.0);
    assert!(bodies[0].get("chat_template_kwargs").is_none(), "nothing that was not asked for");
}

#[test]
fn streams_run_together_and_kinds_of_work_are_kept_apart() {
    let server = StandIn::start(|_| Answer { gap_ms: 10, ..Answer::usual() });
    let args = ProbeArgs {
        sets: vec![PromptSet::Chat, PromptSet::Code],
        loads: vec![Load::Concurrency(1), Load::Concurrency(4)],
        precision: 0.0,
        thinking: Some(false),
        ..args(&server)
    };
    let report = probe(&args).unwrap();
    assert_eq!(server.most_at_once(), 4);
    let [one, four] = &report.runs[..] else { panic!("{} runs", report.runs.len()) };
    for run in [one, four] {
        let names: Vec<_> = run.summary.classes.iter().map(|class| class.class.as_str()).collect();
        assert!(names.contains(&"chat") && names.contains(&"code"), "{names:?}");
        assert_eq!(run.requests.len(), 16);
    }
    let together = |run: &Run| run.summary.steady.unwrap().tok_s;
    assert!(together(four) > 1.8 * together(one), "{} {}", together(four), together(one));
    let json = report.json();
    assert_eq!(
        (&json["workload"]["concurrency"], json["more"].as_array().unwrap().len()),
        (&1.into(), 1)
    );
    let body = &server.bodies()[0];
    assert_eq!(body["chat_template_kwargs"]["enable_thinking"], false);
}

#[test]
fn a_rate_is_kept_whatever_the_server_does() {
    let server = StandIn::start(|_| Answer { first_ms: 400, ..Answer::usual() });
    let args = ProbeArgs { loads: vec![Load::Rate(20.0)], runs: 20, ..args(&server) };
    let report = probe(&args).unwrap();
    let run = &report.runs[0];
    assert_eq!(run.requests.len(), 20);
    assert_eq!(
        (run.workload.concurrency.as_str(), run.workload.rate_per_s),
        (Some("open loop"), Some(20.0))
    );
    assert!(server.most_at_once() > 3, "requests do not wait for each other");
    assert!(run.dispatch_delay_s.unwrap().p50 < 0.1);
}

#[test]
fn broken_answers_are_failures_and_the_others_count() {
    type Break = fn(&mut Answer);
    let breaks: [Break; 7] = [
        |answer| answer.cut_after = Some(3),
        |answer| answer.status = 503,
        |answer| answer.error_event = true,
        |answer| answer.hang = true,
        |answer| answer.chunks = 0,
        |answer| answer.garbage = true,
        |answer| answer.noise = true,
    ];
    // Every third answer is broken, each time in another way; the warm-up is not.
    let server = StandIn::start(move |n| {
        let mut answer = Answer::usual();
        if n >= 6 && n % 3 == 0 {
            breaks[(n / 3) % breaks.len()](&mut answer);
        }
        answer
    });
    let args = ProbeArgs {
        runs: 24,
        precision: 0.0,
        idle_s: 0.5,
        loads: vec![Load::Concurrency(3)],
        ..args(&server)
    };
    let run = probe(&args).unwrap().runs.remove(0);
    assert_eq!(run.requests.len() + run.failures.len(), 24);
    let errors: Vec<&str> = run.failures.iter().map(|failure| failure.error.as_str()).collect();
    for expected in ["ended before", "503", "overloaded", "no event", "no tokens"] {
        assert!(errors.iter().any(|error| error.contains(expected)), "{expected} in {errors:?}");
    }
    let goodput = run.summary.goodput.unwrap();
    assert!(goodput.share < 1.0, "failed requests are not good");
    assert!(run.notices[0].contains("requests failed"));
}

#[test]
fn several_events_in_one_read_and_events_in_pieces() {
    let server =
        StandIn::start(|n| Answer { torn: n % 2 == 0, lumped: n % 2 == 1, ..Answer::usual() });
    let run = probe(&args(&server)).unwrap().runs.remove(0);
    assert!(run.failures.is_empty(), "{:?}", run.failures);
    assert!(run.requests.iter().all(|sample| (sample.out, sample.chunks) == (10, 10)));
}

#[test]
fn without_usage_tokens_are_estimated() {
    let server = StandIn::start(|_| Answer { usage: false, ..Answer::usual() });
    let run = probe(&args(&server)).unwrap().runs.remove(0);
    assert!(run.requests.iter().all(|sample| sample.estimated && sample.out >= 10));
    assert!(run.notices.iter().any(|notice| notice.contains("estimated")));
}

#[test]
fn a_server_that_refuses_stream_options_is_asked_without() {
    let server = StandIn::start(|_| Answer { refuses_stream_options: true, ..Answer::usual() });
    let run = probe(&args(&server)).unwrap().runs.remove(0);
    assert!(run.failures.is_empty() && run.requests.len() >= 6);
    let n_asked = |bodies: &[Value]| {
        bodies.iter().filter(|body| body.get("stream_options").is_some()).count()
    };
    assert_eq!(n_asked(&server.bodies()), 1);
}

#[test]
fn a_busy_server_is_left_alone_unless_told() {
    let server = StandIn::start(|_| Answer::usual());
    server.serve("/metrics", "sglang:num_running_reqs 2\nsglang:num_queue_reqs 1\n");
    let busy = probe(&args(&server)).unwrap_err();
    assert!(matches!(busy, ProbeError::Busy(activity) if activity.running == 2.0));
    assert!(server.bodies().is_empty(), "not one request");
    let report = probe(&ProbeArgs { force: true, ..args(&server) }).unwrap();
    assert!(report.notices[0].contains("others used the server"));
    assert_eq!(report.observed.metrics.unwrap().running_most, Some(2.0));
    assert!(report.notices[1].contains("2 requests ran where the probe sent 1"));
}

#[test]
fn what_is_interrupted_keeps_what_is_complete() {
    let server = StandIn::start(|_| Answer { gap_ms: 20, ..Answer::usual() });
    let stop = Stop::new();
    let args = ProbeArgs { runs: 500, precision: 0.0, ..args(&server) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let later = stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            later.stop();
        });
        probe::probe(&args, &stop, &mut |_, _| {}).await.unwrap()
    });
    assert!(report.interrupted);
    let run = &report.runs[0];
    assert!((1..500).contains(&run.requests.len()));
    assert!(report.text().contains("interrupted"));
}

#[test]
fn time_is_bounded() {
    let server = StandIn::start(|_| Answer { gap_ms: 20, ..Answer::usual() });
    let args = ProbeArgs { runs: 10_000, precision: 0.0, seconds: 1.0, ..args(&server) };
    let run = probe(&args).unwrap().runs.remove(0);
    let last = run.requests.iter().map(|sample| sample.started_s).fold(0.0, f64::max);
    assert!(last <= 1.2, "a request started at {last} s");
}

#[test]
fn a_server_that_is_not_there_or_refuses_is_named() {
    let gone = StandIn::start(|_| Answer::usual());
    let url = gone.url();
    drop(gone);
    assert!(matches!(probe(&ProbeArgs::new(&url)), Err(ProbeError::Unreachable(_))));
    assert!(matches!(probe(&ProbeArgs::new("not a url")), Err(ProbeError::Unreachable(_))));
    let refusing = StandIn::start(|_| Answer { status: 401, ..Answer::usual() });
    match probe(&args(&refusing)) {
        Err(ProbeError::Refused(reason)) => assert!(reason.contains("401"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_repeated_prompt_shows_the_prefix_cache() {
    let server = StandIn::start(|_| Answer { caches: true, first_ms: 60, ..Answer::usual() });
    let report = probe(&ProbeArgs { cache_pass: true, runs: 2, ..args(&server) }).unwrap();
    let cache = report.cache.unwrap();
    assert_eq!((cache.n, cache.cached_share), (3, Some(0.64)));
    assert!(cache.warm_ttft_s < cache.cold_ttft_s, "{cache:?}");
    assert!(report.text().contains("prefix cache"));
}

#[test]
fn the_log_is_followed_and_progress_is_shown_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.log");
    std::fs::write(&path, "").unwrap();
    let log = Mutex::new(std::fs::OpenOptions::new().append(true).open(&path).unwrap());
    let server = StandIn::start(move |_| {
        let line = "[2026-05-11 23:46:31 TP0] Decode batch, #running-req: 1, #full token: 252, full token usage: 0.01, mamba num: 3, mamba usage: 0.43, accept len: 1.75, accept rate: 0.75, cuda graph: True, gen throughput (token/s): 35.81, #queue-req: 0\n";
        std::io::Write::write_all(&mut *log.lock().unwrap(), line.as_bytes()).unwrap();
        Answer { gap_ms: 20, ..Answer::usual() }
    });
    let args = ProbeArgs {
        log: Some(path.to_str().unwrap().parse().unwrap()),
        precision: 0.0,
        ..args(&server)
    };
    let mut shown = Vec::new();
    let report = probe::run(&args, &mut |what, progress| shown.push(format!("{what}: {progress}")));
    let log = report.unwrap().observed.log.unwrap();
    assert_eq!(log.n_decode, 8, "the lines of the warm-up came before");
    assert!((log.accept_len.unwrap() - 1.75).abs() < 1e-6);
    assert!(shown.iter().any(|line| line.starts_with("1 at a time: ")), "{shown:?}");
}

/// The form of the common file: the names and types that a diagnosis reads.
#[test]
fn the_report_is_probe_1() {
    let server = StandIn::start(|_| Answer::usual());
    let json = probe(&args(&server)).unwrap().json();
    assert_eq!(json["schema"], "probe/1");
    assert!(json["taken_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(json["target"], format!("{}/v1", server.url()));
    let workload = &json["workload"];
    assert_eq!((&workload["concurrency"], &workload["max_tokens"]), (&1.into(), &256.into()));
    assert_eq!((&workload["temperature"], &workload["thinking"]), (&0.0.into(), &false.into()));
    for name in ["prompt", "out", "ttft_s", "e2e_s", "chunks", "max_gap_s"] {
        assert!(json["requests"][0][name].is_number(), "{name}");
    }
    assert!(json["dispatch_delay_s"]["p99"].is_number());
    let run: Run = serde_json::from_value(json).unwrap();
    assert!(run.requests.len() >= 6);
}
