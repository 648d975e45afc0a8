//! Finds a server's command line in words, scripts and process arguments, and reads it.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::engine::{Engine, Version};
use crate::factor::Factor;
use crate::flags::{self, Takes};
use crate::redact;
use crate::shell;

/// A server's command line as it was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// What it asks for.
    pub config: Config,
    /// The command itself on one line, redacted.
    pub line: String,
    /// The file named by `--config`, whose settings come below the flags.
    pub config_file: Option<String>,
}

/// Programs that speak about a server without being one.
const TALKERS: &[&str] = &[
    "grep",
    "egrep",
    "rg",
    "pkill",
    "pgrep",
    "kill",
    "killall",
    "vim",
    "vi",
    "nvim",
    "nano",
    "emacs",
    "less",
    "more",
    "cat",
    "tail",
    "head",
    "man",
    "which",
    "whereis",
    "type",
    "echo",
    "printf",
    "journalctl",
    "systemctl",
    "service",
    "watch",
    "ps",
    "ls",
    "git",
    "pip",
    "pip3",
    "uv",
    "sed",
    "awk",
    "diff",
    "cp",
    "mv",
    "rm",
    "history",
    "tldr",
    "sglang-bench",
];

/// Finds every server command in a script or a line. `lookup` gives the values of variables.
pub fn find_commands(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<Command> {
    let mut found = Vec::new();
    for words in shell::split(text, lookup) {
        collect(&words, &[], 0, &mut found);
    }
    found
}

/// Reads process arguments together with the environment the process was given.
pub fn from_argv(argv: &[String], environment: &[(String, String)]) -> Option<Command> {
    let mut found = Vec::new();
    collect(argv, environment, 0, &mut found);
    found.into_iter().next()
}

fn collect(
    words: &[String],
    environment: &[(String, String)],
    depth: u32,
    found: &mut Vec<Command>,
) {
    let first = words.iter().find(|word| {
        !is_assignment(word) && !matches!(word.as_str(), "sudo" | "exec" | "nohup" | "env" | "time")
    });
    let Some(first) = first else { return };
    if TALKERS.contains(&basename(first)) {
        return;
    }
    if let Some(start) = start_of_server(words) {
        if let Some(command) = read(words, start, environment) {
            found.push(command);
        }
        return;
    }
    // `bash -c "…"`: the script is one word.
    if depth < 3 {
        for word in words.iter().filter(|word| word.contains(' ')) {
            for inner in shell::split(word, &|_| None) {
                if inner.len() > 1 {
                    collect(&inner, environment, depth + 1, found);
                }
            }
        }
    }
}

/// Where the arguments of a server begin among the words of its command, and which engine it is.
pub fn arguments_start(words: &[String]) -> Option<(Engine, usize)> {
    start_of_server(words).map(|start| (start.engine, start.args))
}

/// Where a server command was recognised.
#[derive(Clone, Copy)]
struct Start {
    engine: Engine,
    /// Index of the first argument.
    args: usize,
    /// Index of the container image, whose tag may tell the version.
    image: Option<usize>,
}

fn start_of_server(words: &[String]) -> Option<Start> {
    let mut image = None;
    for (i, word) in words.iter().enumerate() {
        let next = words.get(i + 1).map(String::as_str);
        let start = |engine, args| Some(Start { engine, args, image });
        if word.ends_with("sglang.launch_server") || word.ends_with("sglang/launch_server.py") {
            return start(Engine::Sglang, i + 1);
        }
        if word.ends_with("vllm.entrypoints.openai.api_server")
            || word.ends_with("vllm/entrypoints/openai/api_server.py")
        {
            return start(Engine::Vllm, i + 1);
        }
        match basename(word) {
            "sglang" if next == Some("serve") => return start(Engine::Sglang, i + 2),
            "vllm" if next == Some("serve") => return start(Engine::Vllm, i + 2),
            "outrider" if next == Some("serve") => return start(Engine::Outrider, i + 2),
            "llama-server" | "llama-server.exe" => return start(Engine::LlamaCpp, i + 1),
            "server" if word.contains("llama") => return start(Engine::LlamaCpp, i + 1),
            _ => {}
        }
        if let Some(engine) = image_engine(word) {
            image = Some(i);
            let names_program = words[i + 1..].iter().any(|w| {
                w.contains("sglang") || basename(w) == "vllm" || basename(w) == "llama-server"
            });
            if engine != Engine::Sglang
                && !names_program
                && next.is_some_and(|next| next.starts_with('-'))
            {
                return Some(Start { engine, args: i + 1, image }); // the image's own entry point is the server
            }
        }
    }
    None
}

/// The engine that a container image serves with.
pub fn image_engine(image: &str) -> Option<Engine> {
    if image.starts_with('-') || image.contains('=') || !image.contains('/') {
        return None;
    }
    let name = image.to_ascii_lowercase();
    if name.contains("vllm-openai") || name.contains("vllm/vllm") {
        Some(Engine::Vllm)
    } else if name.contains("llama.cpp:server") || name.contains("llama.cpp:full") {
        Some(Engine::LlamaCpp)
    } else if name.contains("sglang:") || name.ends_with("/sglang") {
        Some(Engine::Sglang)
    } else if name.contains("outrider:") {
        Some(Engine::Outrider)
    } else {
        None
    }
}

/// The version in an image tag, such as `lmsysorg/sglang:v0.5.10-cu129`.
pub fn image_version(image: &str) -> Option<Version> {
    let tag = image.rsplit_once(':')?.1;
    let tag = tag.strip_prefix("server-").unwrap_or(tag);
    let tag = tag.split('-').next()?;
    let numbered = tag.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit())
        || (tag.len() > 3 && tag.starts_with('b'));
    numbered.then(|| Version::parse(tag)).flatten()
}

/// Settings that a container's own keys give: its image and its environment.
fn read(words: &[String], start: Start, environment: &[(String, String)]) -> Option<Command> {
    let args = &words[start.args.min(words.len())..];
    if args.iter().any(|arg| arg == "--help" || arg == "-h" || arg == "--version") {
        return None;
    }
    let mut config = Config::new(start.engine);
    config.version = start.image.and_then(|i| image_version(&words[i]));
    let config_file = read_args(&mut config, args);
    let before = &words[..start.args.min(words.len())];
    for (i, word) in before.iter().enumerate() {
        let inline =
            word.strip_prefix("--env=").or_else(|| word.strip_prefix("-e=")).unwrap_or(word);
        let assignment = if matches!(word.as_str(), "-e" | "--env") {
            before.get(i + 1).map(String::as_str)
        } else {
            Some(inline)
        };
        if let Some((name, value)) =
            assignment.filter(|a| is_assignment(a)).and_then(|a| a.split_once('='))
        {
            config.set_variable(name, value);
        }
    }
    config.environment_known = !environment.is_empty();
    for (name, value) in environment {
        config.set_variable(name, value);
    }
    let line = shown(words);
    Some(Command { config, line: redact::line(&line, 4000), config_file })
}

/// The command on one line.
fn shown(words: &[String]) -> String {
    let parts: Vec<String> = redacted(words).iter().map(|word| quoted(word)).collect();
    parts.join(" ")
}

/// The words of a command line without secrets. Each word is judged as the value of the flag before it, so that a key
/// without a telling shape does not slip through.
#[must_use]
pub fn redacted(words: &[String]) -> Vec<String> {
    let mut parts = Vec::with_capacity(words.len());
    let mut flag = "";
    for word in words {
        parts.push(match word.split_once('=') {
            Some((name, value)) if is_flag(name) || is_assignment(word) => {
                format!("{name}={}", redact::value(name, value))
            }
            _ => redact::value(flag, word),
        });
        flag = if is_flag(word) { word } else { "" };
    }
    parts
}

/// Reads the arguments after the program; returns the file named by `--config`.
pub fn read_args(config: &mut Config, args: &[String]) -> Option<String> {
    let mut config_file = None;
    let mut i = 0;
    while i < args.len() {
        let arg = &args[i];
        i += 1;
        if !is_flag(arg) {
            let takes_model =
                matches!(config.engine, Engine::Vllm | Engine::Outrider | Engine::Sglang);
            if takes_model && config.get(Factor::ModelPath).is_none() && !arg.is_empty() {
                config.set_flag("--model", Some(arg));
            }
            continue;
        }
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) if arg.starts_with("--") => (name, Some(value)),
            _ => (arg.as_str(), None),
        };
        let (name, inline) = match name
            .strip_prefix("-O")
            .filter(|level| !level.is_empty() && config.engine == Engine::Vllm)
        {
            Some(level) => ("-O", Some(level)),
            None => (name, inline),
        };
        let known = flags::lookup(config.engine, name);
        let next = args.get(i).map(String::as_str);
        let next_is_value = next.is_some_and(|next| !is_flag(next));
        let word =
            match known.map(|(flag, _)| flag.takes) {
                Some(Takes::Turns(_)) => inline
                    .or(next.filter(|next| matches!(*next, "true" | "false" | "True" | "False"))),
                Some(Takes::Optional) => inline
                    .or(next.filter(|next| matches!(*next, "on" | "off" | "auto" | "0" | "1"))),
                Some(_) => inline.or(next.filter(|next| next_is_value || next.starts_with('{'))),
                None if flags::is_plain_switch(config.engine, name) => inline,
                None => inline.or(next.filter(|_| next_is_value)),
            };
        if inline.is_none() && word.is_some() {
            i += 1;
        }
        if matches!(known.map(|(flag, _)| flag.takes), Some(Takes::Many)) {
            while args.get(i).is_some_and(|next| !is_flag(next)) {
                i += 1;
            }
        }
        if name == "--config" {
            config_file = word.map(redact::text);
            continue;
        }
        config.set_flag(name, word);
    }
    config_file
}

/// A flag starts with a dash and is not a negative number.
fn is_flag(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    })
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn basename(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn quoted(word: &str) -> String {
    let plain = !word.is_empty()
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=,@%+<>".contains(c));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Value;

    fn one(text: &str) -> Command {
        let found = find_commands(text, &|_| None);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn a_sglang_line_in_all_its_spellings() {
        let c = one("CUDA_VISIBLE_DEVICES=0,1 nohup python3 -m sglang.launch_server --model-path /m/ --tp 2 --mem_fraction_static=0.88 \\\n --speculative-algorithm NEXTN --foo-bar 3 --api-key sk-aaaaaaaaaaaaaaaa > log 2>&1 &").config;
        assert_eq!(c.engine, Engine::Sglang);
        assert_eq!(c.get(Factor::ModelPath), Some(&Value::Text("/m".into())));
        assert_eq!(c.get(Factor::ParTp), Some(&Value::Int(2)));
        assert_eq!(c.get(Factor::MemStaticFraction), Some(&Value::Float(0.88)));
        assert_eq!(c.get(Factor::GpuVisible), Some(&Value::Text("0,1".into())));
        assert!(c.settings.keys().any(|key| key.to_string() == "raw.foo-bar"));
        assert!(!format!("{c:?}").contains("sk-aaaa"));
    }

    #[test]
    fn repeated_flags_take_the_last_value() {
        let c =
            one("vllm serve m --max-num-seqs 4 --max-num-seqs=8 --no-enable-prefix-caching -O3")
                .config;
        assert_eq!(c.get(Factor::SchedMaxRunning), Some(&Value::Int(8)));
        assert_eq!(c.get(Factor::CachePrefix), Some(&Value::Bool(false)));
        assert_eq!(c.get(Factor::ExecCompile), Some(&Value::Int(3)));
        assert_eq!(c.get(Factor::ModelPath), Some(&Value::Text("m".into())));
    }

    #[test]
    fn llama_short_flags() {
        let c = one("/srv/llama.cpp/build/bin/llama-server -m a.gguf -c 65536 -np 1 -fa auto -ctk q8_0 --jinja --metrics -lv 4").config;
        assert_eq!(c.get(Factor::ModelMaxContext), Some(&Value::Int(65_536)));
        assert_eq!(c.get(Factor::ObsMetrics), Some(&Value::Bool(true)));
        assert_eq!(c.get(Factor::MemKvDtype), Some(&Value::Text("q8_0".into())));
    }

    #[test]
    fn containers_and_nested_shells() {
        let c = one("docker run --gpus all -e CUDA_VISIBLE_DEVICES=1 vllm/vllm-openai:v0.33.0 --model m --max-model-len 64K").config;
        assert_eq!(c.version, Version::parse("0.33.0"));
        assert_eq!(c.get(Factor::ModelMaxContext), Some(&Value::Int(65_536)));
        assert_eq!(c.get(Factor::GpuVisible), Some(&"1".into()));
        let c = one("docker run lmsysorg/sglang:v0.5.10 bash -c 'cd / && python -m sglang.launch_server --model-path m --dp 2'").config;
        assert_eq!(c.get(Factor::ParDp), Some(&Value::Int(2)));
    }

    #[test]
    fn talk_about_a_server_is_no_server() {
        for line in [
            "grep 'vllm serve' x",
            "pkill -f sglang.launch_server",
            "vim run-sglang.sh",
            "vllm serve --help",
            "pip install vllm",
            "journalctl -u vllm serve",
        ] {
            assert!(find_commands(line, &|_| None).is_empty(), "{line}");
        }
    }

    #[test]
    fn a_negative_number_is_a_value() {
        let c = one("sglang serve --model-path m --chunked-prefill-size -1 --tp 2").config;
        assert_eq!(c.get(Factor::SchedPrefillChunk), Some(&Value::Int(-1)));
        assert_eq!(c.get(Factor::ParTp), Some(&Value::Int(2)));
    }
}
