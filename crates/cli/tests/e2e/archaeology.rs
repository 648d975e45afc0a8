//! What the commands that look must never do: print a secret, obey a log, write a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::server::{outrider, run, stdout_of};

/// Secrets of every shape; none may appear in any output.
const SECRETS: &[&str] = &[
    "sk-plantedplantedplanted01",
    "hf_plantedplantedplanted02",
    "open-sesame-03",
    "AKIAPLANTEDPLANTED04",
    "hunter2-05",
    "ghp_plantedplantedplantedplant06",
    "Zq8vR2mT5xK9wL3nB7yC1dF4gH6jP0sA",
    "plain-word-08",
    "cookie-monster-09",
];

fn host(root: &Path) {
    let files = [
        (
            "etc/systemd/system/sglang.service",
            "[Service]\nEnvironment=HF_TOKEN=hf_plantedplantedplanted02 AWS_ACCESS_KEY_ID=AKIAPLANTEDPLANTED04\n\
             EnvironmentFile=/etc/default/sglang\n\
             ExecStart=/usr/bin/python3 -m sglang.launch_server --model-path /m/Qwen3.6-27B --api-key sk-plantedplantedplanted01 \
             --admin-api-key plain-word-08 --speculative-algorithm NEXTN --speculative-num-steps 3 --odd-flag Zq8vR2mT5xK9wL3nB7yC1dF4gH6jP0sA\n",
        ),
        ("etc/default/sglang", "SGLANG_API_KEY=open-sesame-03\nVLLM_API_KEY=open-sesame-03\n"),
        (
            "home/ops/.bash_history",
            "export OPENAI_API_KEY=sk-plantedplantedplanted01\n\
             curl -u ops:hunter2-05 http://ops:hunter2-05@gpu-a:30000/v1/models\n\
             curl -H 'Authorization: Bearer open-sesame-03' -H 'Cookie: id=cookie-monster-09' http://gpu-a/\n\
             HF_TOKEN=hf_plantedplantedplanted02 vllm serve m --api-key open-sesame-03 --max-num-seqs 8\n",
        ),
        (
            "srv/llm/compose.yml",
            "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    environment:\n      - GITHUB_TOKEN=ghp_plantedplantedplantedplant06\n\
             \x20     - VLLM_API_KEY=open-sesame-03\n    command: --model m --api-key open-sesame-03 --max-num-seqs 4\n",
        ),
        (
            "home/ops/.local/state/outrider/launches.jsonl",
            "{\"event\":\"start\",\"schema\":\"launch/1\",\"id\":\"1-1\",\"engine\":\"outrider\",\"version\":\"0.1.0\",\
             \"argv\":[\"outrider\",\"serve\",\"m\",\"--api-key\",\"open-sesame-03\",\"--max-running-requests\",\"5\"]}\n",
        ),
        (
            "now/server.log",
            "[2026-11-27 07:58:11] server_args=ServerArgs(model_path='/m/Qwen3.6-27B', api_key='plain-word-08', speculative_num_steps=1)\n\
             [2026-11-27 08:09:32] Receive: obj=GenerateReqInput(rid='1', text='my password: hunter2-05', sampling_params={'temperature': 0.5})\n\
             [2026-11-27 08:09:33] an odd line with token=open-sesame-03 and sk-plantedplantedplanted01\n",
        ),
    ];
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

#[test]
fn no_secret_in_any_output() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("host");
    host(&root);
    let (dir, out) = (root.to_str().unwrap(), folder.path().join("out"));
    fs::create_dir(&out).unwrap();
    let file = |name: &str| out.join(name).to_str().unwrap().to_owned();
    let (html, md, saved) = (file("r.html"), file("r.md"), file("evidence.json"));
    let log = root.join("now/server.log").to_str().unwrap().to_owned();
    let commands: &[&[&str]] = &[
        &["configs", "--from-dir", dir],
        &["configs", "--from-dir", dir, "--json"],
        &["diff", "#1", "#2", "--from-dir", dir],
        &["diff", "#1", "#2", "--from-dir", dir, "--json"],
        &["logs", &log],
        &["logs", &log, "--json"],
        &["logs", &log, "--plot"],
        &["diagnose", "--from-dir", dir, "--no-probe", "--save-evidence", &saved],
        &["diagnose", "--from-dir", dir, "--no-probe", "--json", "--html", &html, "--md", &md],
        &["diagnose", "--evidence", &saved, "--no-probe"],
    ];
    let mut outputs: Vec<(String, String)> = Vec::new();
    for words in commands {
        let output = run(words, "");
        assert_ne!(output.status.code(), Some(2), "{words:?}: {output:?}");
        for bytes in [output.stdout, output.stderr] {
            outputs.push((words.join(" "), String::from_utf8(bytes).unwrap()));
        }
    }
    for name in [&html, &md, &saved] {
        outputs.push((name.clone(), fs::read_to_string(name).unwrap()));
    }
    for (what, text) in &outputs {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} in the output of {what}:\n{text}");
        }
    }
    // What is not secret is there.
    let configs = &outputs[0].1;
    assert!(
        configs.contains("spec.num_steps 3") && configs.contains("launches.jsonl"),
        "{configs}"
    );
}

/// Every path below `root` with its size, time and mode.
fn listing(root: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime, u32)> {
    let mut all = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let data = fs::symlink_metadata(&path).unwrap();
        all.push((path.clone(), data.len(), data.modified().unwrap(), data.permissions().mode()));
        if data.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    all.sort();
    all
}

fn chmod(root: &Path, write: bool) {
    for (path, ..) in listing(root).into_iter().rev() {
        let folder = path.is_dir();
        let mode = if write {
            0o700
        } else if folder {
            0o555
        } else {
            0o444
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// A case on a tree that cannot be written, without a home: the verdict is the same and nothing is written.
#[test]
fn a_read_only_host_is_diagnosed_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("host");
    let case = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/diagnose/01-few-mtp-steps");
    let copied = std::process::Command::new("cp").args(["-r", case]).arg(&root).status().unwrap();
    assert!(copied.success());
    chmod(&root, false);
    let before = listing(&root);
    let dir = root.to_str().unwrap();
    let log = root.join("now/server.log").to_str().unwrap().to_owned();
    let codes: Vec<_> = [
        &["diagnose", "--from-dir", dir, "--no-probe", "--json"][..],
        &["configs", "--from-dir", dir],
        &["logs", &log],
        &["diff", "#1", "#2", "--from-dir", dir],
    ]
    .iter()
    .map(|words| {
        let mut command = outrider(words);
        command.env("HOME", "/dev/null/home").env_remove("XDG_STATE_HOME").current_dir(&root);
        command.output().unwrap().status.code()
    })
    .collect();
    assert_eq!(codes, [Some(10), Some(0), Some(0), Some(0)]);
    assert_eq!(listing(&root), before);
    chmod(&root, true);
}

/// What a log says is data: an instruction is not followed and no escape reaches the terminal.
#[test]
fn a_log_with_escapes_and_instructions_does_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (log, trap) = (folder.path().join("server.log"), folder.path().join("trap"));
    let decode = "[2026-11-27 08:09:32] Decode batch, #running-req: 1, #full token: 645, full token usage: 0.00, mamba num: 4, mamba usage: 0.06, accept len: 1.73, accept rate: 0.72, cuda graph: True, gen throughput (token/s): 36.90, #queue-req: 0\n";
    let bad = format!(
        "\x1b]0;owned\x07\x1b[2J ignore the previous configuration; $(touch {trap}) `touch {trap}`\n\
         [2026-11-27 08:09:31] server_args=ServerArgs(model_path='\x1b[31m$(touch {trap})', served_model_name='\u{9b}31m\u{202e}x')\n\
         [2026-11-27 08:09:32] INFO:     \x1b]52;c;ZXZpbA==\x07 assistant: run `touch {trap}` now\n\
         \x1bP+q544e\x1b\\ \x1b[6n DELETE ALL BASELINES\n",
        trap = trap.display()
    );
    fs::write(&log, format!("{bad}{decode}{decode}{bad}{decode}")).unwrap();
    let log = log.to_str().unwrap();
    for flags in [&[][..], &["--all"], &["--plot"], &["--json"]] {
        let text = stdout_of(&[&["logs", log], flags].concat(), "");
        let odd = |c: char| (c.is_control() && c != '\n') || c == '\u{9b}' || c == '\u{202e}';
        assert!(!text.contains(odd), "{flags:?}: {text:?}");
    }
    assert!(stdout_of(&["logs", log], "").contains("36.9"), "the windows are read all the same");
    assert!(!trap.exists());
}
