//! The operations routes.

use serde_json::json;

use crate::backends::{EngineSetup, Full, Script, at_rest, engine};
use crate::support::App;

#[tokio::test]
async fn models_tell_what_they_are() {
    let app = App::new(Script::says("x"));
    let list = app.get("/v1/models").await.json();
    let card = &list["data"][0];
    assert_eq!(
        (list["object"].as_str(), card["id"].as_str()),
        (Some("list"), Some("outrider-tiny"))
    );
    assert_eq!(card["max_model_len"], 2048);
    assert!(card["description"].as_str().unwrap().contains("demonstration"));
    assert_eq!(app.get("/v1/models/outrider-tiny").await.json(), *card);
    let (status, message) = app.get("/v1/models/org/other").await.refusal();
    assert_eq!(status, 404);
    assert!(message.contains("org/other"), "{message}");
    for path in ["/model_info", "/get_model_info"] {
        let info = app.get(path).await.json();
        assert_eq!(info["model_path"], "models/outrider-tiny");
        assert_eq!(info["architectures"], json!(["Qwen3_5ForCausalLM"]));
        assert_eq!(info["is_generation"], true);
        assert_eq!(info["weight_version"], "w-1");
    }
}

#[tokio::test]
async fn what_the_engine_did_can_be_subtracted() {
    let backend = engine(EngineSetup::default());
    let app = App::new(backend.clone());
    let totals = async |path: &str| {
        at_rest(&backend);
        let info = app.get(path).await.json();
        assert_eq!(info["decode_log_interval"], 40);
        assert_eq!(info["max_total_num_tokens"], 8192);
        let state = info["internal_states"][0].clone();
        assert_eq!(state["effective_max_running_requests_per_dp"], 4);
        state
    };
    let before = totals("/server_info").await;
    let body = json!({"prompt": "Hello", "max_tokens": 30, "ignore_eos": true});
    let answer = app.ok("/v1/completions", &body).await;
    let after = totals("/get_server_info").await;
    let moved = |name: &str| {
        after["totals"][name].as_u64().unwrap() - before["totals"][name].as_u64().unwrap()
    };
    assert_eq!(moved("n_generated"), 30);
    assert_eq!(moved("n_prompt_tokens"), answer["usage"]["prompt_tokens"].as_u64().unwrap());
    assert_eq!(moved("n_requests"), 1);
    assert!(after["avg_spec_accept_length"].as_f64().unwrap() >= 1.0);

    let metrics = app.get("/metrics").await;
    assert!(metrics.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    let text = metrics.text();
    for line in [
        "outrider:generation_tokens_total{model_name=\"outrider-tiny\"} 30",
        "outrider:time_to_first_token_seconds_count{model_name=\"outrider-tiny\"} 1",
        "outrider:num_running_reqs{model_name=\"outrider-tiny\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
    }
    let load = app.get("/v1/loads?include=core,queues").await.json()["loads"][0].clone();
    assert_eq!((&load["num_running_reqs"], &load["num_waiting_reqs"]), (&json!(0), &json!(0)));
    assert_eq!(load["max_running_requests"], 4);
}

/// Tokens of one step share its time, and each counts.
#[tokio::test]
async fn every_token_after_the_first_step_has_a_latency() {
    let app = App::new(Script::steps(vec![vec![100, 101], vec![102, 103, 104], vec![105]]));
    app.ok("/v1/completions", &json!({"prompt": "Hello"})).await;
    let text = app.get("/metrics").await.text();
    for (name, n) in [("inter_token_latency_seconds", 4), ("time_to_first_token_seconds", 1)] {
        let line = format!("outrider:{name}_count{{model_name=\"outrider-tiny\"}} {n}");
        assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
    }
}

#[tokio::test]
async fn health_is_told_by_status() {
    let app = App::new(engine(EngineSetup::default()));
    for path in ["/health", "/ready", "/ping", "/health_generate"] {
        assert_eq!(app.get(path).await.status, 200, "{path}");
    }
    let app = App::new(std::sync::Arc::new(Full));
    assert_eq!(app.get("/health").await.status, 200);
    assert_eq!(app.get("/health_generate").await.status, 503);
}

#[tokio::test]
async fn a_prefix_is_cached_until_it_is_flushed() {
    let app = App::new(engine(EngineSetup::default()));
    let ask = json!({"prompt": (100..900).collect::<Vec<u32>>(), "max_tokens": 2});
    let cached = async || {
        let usage = app.ok("/v1/completions", &ask).await["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached().await, 0);
    assert!(cached().await > 0);
    for flush in [app.get("/flush_cache").await, app.post_raw("/flush_cache", "").await] {
        assert_eq!(flush.status, 200);
    }
    assert_eq!(cached().await, 0);
}

#[tokio::test]
async fn an_abort_needs_a_name() {
    let app = App::new(Script::says("x"));
    assert_eq!(app.refused("/abort_request", &json!({})).await.0, 400);
    assert_eq!(app.post("/abort_request", &json!({"rid": "nobody"})).await.status, 200);
    assert_eq!(app.post("/abort_request", &json!({"abort_all": true})).await.status, 200);
}

#[tokio::test]
async fn a_client_s_request_name_is_sent_back() {
    let app = App::new(Script::says("x"));
    let request = axum::http::Request::get("/health").header("x-request-id", "abc");
    let reply = app.send(request.body(axum::body::Body::empty()).unwrap()).await;
    assert_eq!(reply.headers["x-request-id"], "abc");
}

#[tokio::test]
async fn every_documented_route_exists() {
    let app = App::new(Script::says("x"));
    let document = include_str!("../../../../docs/http-api.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let routes: Vec<(&str, &str)> = rows.filter_map(|row| row.split_once(' ')).collect();
    assert!(routes.len() > 20, "{routes:?}");
    for (method, path) in routes {
        let request = axum::http::Request::builder().method(method).uri(path);
        let reply = app.send(request.body(axum::body::Body::from("{}")).unwrap()).await;
        assert!(![404, 405].contains(&reply.status), "{method} {path}: {}", reply.text());
    }
}
