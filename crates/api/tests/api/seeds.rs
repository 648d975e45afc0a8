//! Case C08: seeds belong to the request, and `n` gives distinct answers.

use engine::config::Speculation;
use serde_json::{Value, json};

use crate::backends::{DRAFTS, EngineSetup, engine};
use crate::support::{App, put_together, with};

const COMPLETIONS: &str = "/v1/completions";

fn apps() -> [App; 2] {
    [DRAFTS, Speculation::Off]
        .map(|speculation| App::new(engine(EngineSetup { speculation, ..EngineSetup::default() })))
}

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap();
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_batch_mate_changes_nothing() {
    let seeded = json!({"prompt": "Once there was", "seed": 1234, "temperature": 0.9,
        "max_tokens": 28, "ignore_eos": true});
    let mate = json!({"prompt": "In a far town", "temperature": 0.9, "max_tokens": 28,
        "ignore_eos": true});
    let mut found = Vec::new();
    for app in apps() {
        for seed in [Value::Null, Value::Null, json!(99), json!(99)] {
            let mate = with(&mate, json!({"seed": seed}));
            let (answer, _) =
                tokio::join!(app.ok(COMPLETIONS, &seeded), app.ok(COMPLETIONS, &mate));
            found.extend(texts(&answer));
        }
    }
    assert!(found.iter().all(|text| *text == found[0]), "{found:?}");
}

#[tokio::test]
async fn several_answers_differ_and_come_again() {
    let ask = json!({"prompt": "Once there was", "n": 3, "seed": 1234, "temperature": 1.0,
        "max_tokens": 24});
    for app in apps() {
        let three = app.ok(COMPLETIONS, &ask).await;
        let found = texts(&three);
        assert_eq!(found.len(), 3);
        let indices: Vec<u64> = three["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["index"].as_u64().unwrap())
            .collect();
        assert_eq!(indices, [0, 1, 2]);
        assert!(found[0] != found[1] && found[1] != found[2], "{found:?}");
        assert_eq!(texts(&app.ok(COMPLETIONS, &ask).await), found);
        // The first is the one that `n` = 1 gives.
        assert_eq!(texts(&app.ok(COMPLETIONS, &with(&ask, json!({"n": 1}))).await)[0], found[0]);

        let events = app.stream(COMPLETIONS, &ask).await;
        for (index, text) in found.iter().enumerate() {
            let streamed = put_together(&events, index);
            assert_eq!(&streamed.content, text);
            assert!(streamed.finish_reason.is_some());
        }

        let one = app.ok(COMPLETIONS, &with(&ask, json!({"n": 1}))).await;
        assert_eq!(three["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    }
}

#[tokio::test]
async fn a_list_of_prompts_is_answered_as_each_alone() {
    let app = &apps()[0];
    let ask = json!({"seed": 5, "temperature": 1.0, "max_tokens": 12, "n": 2});
    let both = app.ok(COMPLETIONS, &with(&ask, json!({"prompt": ["One", "Two"]}))).await;
    let one = app.ok(COMPLETIONS, &with(&ask, json!({"prompt": "One"}))).await;
    let two = app.ok(COMPLETIONS, &with(&ask, json!({"prompt": "Two"}))).await;
    assert_eq!(texts(&both), [texts(&one), texts(&two)].concat());
}

#[tokio::test]
async fn without_a_seed_answers_differ_and_the_seed_is_reported() {
    let app = &apps()[0];
    let ask = json!({"prompt": "Once there was", "temperature": 1.0, "max_tokens": 40});
    let (a, b) = tokio::join!(app.ok(COMPLETIONS, &ask), app.ok(COMPLETIONS, &ask));
    let c = app.ok(COMPLETIONS, &ask).await;
    assert!(texts(&a) != texts(&b) && texts(&b) != texts(&c));
    let same = app.ok(COMPLETIONS, &with(&ask, json!({"seed": a["metadata"]["seed"]}))).await;
    assert_eq!(texts(&same), texts(&a));
    let twice = json!({"prompt": ["Once there was", "Once there was"], "temperature": 1.0,
        "max_tokens": 40});
    let twice = texts(&app.ok(COMPLETIONS, &twice).await);
    assert_ne!(twice[0], twice[1]);
}
