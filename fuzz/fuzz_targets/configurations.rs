//! Whatever lies on a host as a unit, a compose file, a history or an answer of an endpoint.

#![no_main]

use std::collections::BTreeMap;

use diagnose::configs::{self, Tree};
use diagnose::evidence::Side;
use diagnose::{collect, evidence::Evidence, report};
use dialects::{Engine, benchmark, compose, effective, find_commands, history, info, metrics, pyrepr, unit, yaml};

/// Where a file of each kind lies.
const PATHS: &[&str] = &[
    "etc/systemd/system/llm.service",
    "etc/systemd/system/llm.service.bak",
    "etc/systemd/system/llm.service.d/10-more.conf",
    "etc/default/llm",
    "srv/llm/compose.yml",
    "srv/llm/docker-compose.override.yml",
    "srv/llm/run.sh",
    "home/ops/.bash_history",
    "home/ops/.zsh_history",
    "home/ops/.local/share/fish/fish_history",
    "docker-inspect.json",
    "now/proc/7/cmdline",
    "now/ps.txt",
    "home/ops/.local/state/outrider/launches.jsonl",
    "now/server_info.json",
    "now/metrics.prom",
    "now/probe.json",
    "now/nvidia-smi.csv",
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    match kind % 12 {
        0 => {
            let (head, tail) = text.split_once('\0').unwrap_or((&text, ""));
            let mut parsed = unit::Unit::default();
            parsed.apply(head);
            let files = vec![("/etc/default/llm".to_owned(), tail.to_owned())];
            drop((parsed.commands(&files, "one"), unit::environment_file(tail)));
        }
        1 => drop(yaml::parse(&text)),
        2 => drop((compose::from_yaml(&text), compose::from_inspect(&text))),
        3 => {
            for command in find_commands(&text, &|_| None) {
                drop(effective::of(&command.config));
            }
        }
        4 => drop(history::parse(&text)),
        5 => drop(info::parse(&text)),
        6 => drop(metrics::parse(&text)),
        7 => drop((pyrepr::parse(&text), pyrepr::parse_keywords(&text))),
        8 => drop(benchmark::parse(&text)),
        9 => {
            let mut evidence = Evidence::new();
            let path = PATHS[rest.len() % PATHS.len()];
            let _ = collect::add_text(&mut evidence, Side::Now, path, &text);
            drop(report::build(&evidence));
        }
        10 => {
            // Two files: the first byte of each part says which.
            let mut files = BTreeMap::new();
            for part in rest.splitn(3, |byte| *byte == 0xff) {
                if let Some((path, content)) = part.split_first() {
                    files.insert(PATHS[usize::from(*path) % PATHS.len()].to_owned(), content.to_vec());
                }
            }
            let dug = configs::dig(&Tree::of_files(files));
            for (a, b) in dug.found.iter().zip(dug.found.iter().skip(1)) {
                drop(effective::differences(&a.config, &b.config));
            }
        }
        _ => {
            let engine = [Engine::Sglang, Engine::Vllm, Engine::LlamaCpp, Engine::Outrider][rest.len() % 4];
            let mut config = dialects::Config::new(engine);
            for line in text.lines() {
                let (flag, word) = line.split_once('=').map_or((line, None), |(f, w)| (f, Some(w)));
                config.set_flag(flag, word);
            }
            let same = config.clone();
            assert!(effective::differences(&config, &same).is_empty(), "a configuration differs from itself");
        }
    }
});
