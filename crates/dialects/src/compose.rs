//! Container definitions: compose files, Kubernetes manifests and `docker inspect` output.

use serde_json::{Map, Value as Json};

use crate::command::{Command, from_argv, image_version};
use crate::shell;
use crate::yaml;

/// A server found in a container definition.
#[derive(Clone, Debug)]
pub struct Service {
    /// The service, container or pod name.
    pub name: String,
    /// Its command.
    pub command: Command,
    /// Environment files it names.
    pub env_files: Vec<String>,
    /// When the container was created, as `docker inspect` writes it.
    pub created: Option<String>,
}

/// Finds servers in a compose file or a manifest.
pub fn from_yaml(text: &str) -> Vec<Service> {
    let mut out = Vec::new();
    for document in yaml::parse(text) {
        walk(&document, "", 0, &mut out);
    }
    out
}

/// Finds servers in the output of `docker inspect`.
pub fn from_inspect(text: &str) -> Vec<Service> {
    let Ok(document) = serde_json::from_str::<Json>(text) else { return Vec::new() };
    let containers = match document {
        Json::Array(items) => items,
        other => vec![other],
    };
    containers.iter().filter_map(inspected).collect()
}

fn inspected(container: &Json) -> Option<Service> {
    let config = container.get("Config")?.as_object()?;
    let mut words: Vec<String> =
        container.get("Config").and_then(|c| c.get("Entrypoint")).map(list).unwrap_or_default();
    words.extend(config.get("Cmd").map(list).unwrap_or_default());
    if words.is_empty() {
        words.extend(container.get("Path").and_then(Json::as_str).map(str::to_owned));
        words.extend(container.get("Args").map(list).unwrap_or_default());
    }
    let image = config.get("Image").and_then(Json::as_str).unwrap_or_default();
    let environment = config.get("Env").map(assignments).unwrap_or_default();
    let name = container
        .get("Name")
        .and_then(Json::as_str)
        .unwrap_or("container")
        .trim_start_matches('/')
        .to_owned();
    let created = container.get("Created").and_then(Json::as_str).map(str::to_owned);
    Some(Service {
        name,
        command: command(image, words, &environment)?,
        env_files: Vec::new(),
        created,
    })
}

/// Any map with an image and a command is a container, wherever it stands.
fn walk(value: &Json, name: &str, depth: u32, out: &mut Vec<Service>) {
    if depth > 24 {
        return;
    }
    match value {
        Json::Object(map) => {
            if let Some(service) = container(map, name) {
                out.push(service);
                return;
            }
            for (key, inner) in map {
                walk(inner, key, depth + 1, out);
            }
        }
        Json::Array(items) => items.iter().for_each(|inner| walk(inner, name, depth + 1, out)),
        _ => {}
    }
}

fn container(map: &Map<String, Json>, name: &str) -> Option<Service> {
    if !(map.contains_key("command") || map.contains_key("args") || map.contains_key("entrypoint"))
    {
        return None;
    }
    let mut words: Vec<String> = Vec::new();
    for key in ["entrypoint", "command", "args"] {
        words.extend(map.get(key).map(list).unwrap_or_default());
    }
    let image = map.get("image").and_then(Json::as_str).unwrap_or_default();
    let environment: Vec<(String, String)> = ["environment", "env"]
        .iter()
        .filter_map(|key| map.get(*key))
        .flat_map(assignments)
        .collect();
    let name = map
        .get("container_name")
        .or(map.get("name"))
        .and_then(Json::as_str)
        .unwrap_or(name)
        .to_owned();
    let env_files = map.get("env_file").map(list).unwrap_or_default();
    Some(Service { name, command: command(image, words, &environment)?, env_files, created: None })
}

fn command(image: &str, words: Vec<String>, environment: &[(String, String)]) -> Option<Command> {
    let mut argv = vec![image.to_owned()];
    argv.extend(words);
    let mut command = from_argv(&argv, environment)?;
    command.config.environment_known = true;
    if command.config.version.is_none() {
        command.config.version = image_version(image);
    }
    Some(command)
}

/// A list of words, or one string split as a shell would.
fn list(value: &Json) -> Vec<String> {
    match value {
        Json::String(text) => shell::words(text),
        Json::Array(items) => items
            .iter()
            .filter_map(|item| match item {
                Json::String(text) => Some(text.clone()),
                Json::Number(number) => Some(number.to_string()),
                Json::Bool(b) => Some(b.to_string()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// `["A=b"]`, `{A: b}` and `[{name: A, value: b}]`.
fn assignments(value: &Json) -> Vec<(String, String)> {
    let text = |value: &Json| match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    match value {
        Json::Object(map) => map.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        Json::Array(items) => items
            .iter()
            .filter_map(|item| match item {
                Json::String(line) => {
                    line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
                }
                Json::Object(map) => {
                    Some((map.get("name")?.as_str()?.to_owned(), text(map.get("value")?)))
                }
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, Version};
    use crate::factor::Factor;
    use crate::value::Value;

    #[test]
    fn a_compose_service() {
        let found = from_yaml(
            "services:\n  llm:\n    image: lmsysorg/sglang:v0.5.12-cu129\n    command: python3 -m sglang.launch_server --model-path m --speculative-num-steps 3\n    environment:\n      HF_TOKEN: hf_aaaaaaaaaaaaaaaaaaaa\n      CUDA_VISIBLE_DEVICES: \"0,1\"\n    env_file: .env\n  db:\n    image: postgres\n    command: postgres -c x=1\n",
        );
        assert_eq!(found.len(), 1);
        let config = &found[0].command.config;
        assert_eq!((found[0].name.as_str(), config.engine), ("llm", Engine::Sglang));
        assert_eq!(config.version, Version::parse("0.5.12"));
        assert_eq!(config.get(Factor::SpecNumSteps), Some(&Value::Int(3)));
        assert!(!format!("{found:?}").contains("hf_aaaa"));
        assert_eq!(found[0].env_files, [".env"]);
    }

    #[test]
    fn a_manifest_and_an_inspected_container() {
        let found = from_yaml(
            "kind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n        - name: vllm\n          image: vllm/vllm-openai:v0.19.0\n          args: [\"--model\", \"m\", \"--max-model-len\", \"8192\"]\n          env:\n            - name: VLLM_LOGGING_LEVEL\n              value: DEBUG\n",
        );
        assert_eq!(found[0].command.config.get(Factor::ModelMaxContext), Some(&Value::Int(8192)));
        assert_eq!(found[0].command.config.get(Factor::ObsLogLevel), Some(&"debug".into()));
        let found = from_inspect(
            r#"[{"Name": "/llm", "Created": "2026-11-01T00:00:00Z", "Config": {"Image": "ghcr.io/ggml-org/llama.cpp:server-cuda-b6123",
                "Entrypoint": ["/app/llama-server"], "Cmd": ["-m", "x.gguf", "-c", "4096"], "Env": ["LLAMA_ARG_N_PARALLEL=4", "TOKEN=x"]}}]"#,
        );
        assert_eq!(found[0].command.config.get(Factor::SchedMaxRunning), Some(&Value::Int(4)));
    }
}
