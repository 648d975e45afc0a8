//! Rendered chats and template snippets, byte for byte as Python's jinja2 renders them
//! (`oracle/make.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;
use text::{ChatRequest, ChatTemplate, TemplateError, Tokenizer};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tokenizer(folder: &str) -> Arc<Tokenizer> {
    let json = std::fs::read(root().join(folder).join("tokenizer.json")).unwrap();
    Arc::new(Tokenizer::from_json(&json).unwrap())
}

fn folder_template(folder: &str) -> ChatTemplate {
    let path = root().join(folder);
    let config = std::fs::read(path.join("tokenizer_config.json")).unwrap();
    let jinja = std::fs::read_to_string(path.join("chat_template.jinja")).ok();
    ChatTemplate::new(jinja.as_deref(), &config, tokenizer(folder)).unwrap()
}

#[test]
fn renderings_equal_those_of_jinja2() {
    let cases: Vec<Json> = serde_json::from_str(include_str!("oracle/renderings.json")).unwrap();
    let folders = ["models/outrider-tiny", "golden/hybrid-tiny-f32"];
    let folder_templates = folders.map(folder_template);
    let tiny = tokenizer(folders[0]);
    let mut wrong = Vec::new();
    for case in &cases {
        let own;
        let template = match case["source"].as_str() {
            Some(source) => {
                own = ChatTemplate::new(Some(source), b"{}", tiny.clone()).unwrap();
                &own
            }
            None => &folder_templates[folders.iter().position(|f| case["template"] == *f).unwrap()],
        };
        let rendered = template.render(ChatRequest {
            messages: case["messages"].as_array().unwrap(),
            tools: case["tools"].as_array().unwrap(),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            kwargs: case["kwargs"].as_object().unwrap(),
        });
        let got = match rendered {
            Ok(rendered) => Ok(rendered.text),
            Err(TemplateError::Refused { message, .. }) => Err(message),
            Err(error) => Err(format!("unexpected: {error}")),
        };
        let want = case["text"].as_str().map_or_else(
            || Err(case["error"].as_str().unwrap().to_owned()),
            |text| Ok(text.to_owned()),
        );
        if got != want {
            wrong.push(format!(
                "{}\n  got  {got:?}\n  want {want:?}",
                case["source"].as_str().unwrap_or_else(|| case["template"].as_str().unwrap())
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
