//! The commands on a host's files: archaeology, differences, logs, and that nothing is changed or leaked.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use diagnose::commands::{self, ConfigsArgs, DiagnoseArgs, DiffArgs, LogsArgs};
use diagnose::evidence::{Item, Side};
use diagnose::{collect, render, report};
use dialects::info::{StepTimes, Steps};
use serde_json::Value as Json;

use crate::scenario::{Folder, Probe, Sglang};

/// Secrets of every shape, planted in every place where a configuration is kept.
const SECRETS: &[&str] = &[
    "hf_plantedUnit000000000001",
    "sk-planted-flag-00000002",
    "plantedpassword3",
    "planted-plain-key-4",
    "ghp_plantedhistory5000000000000",
    "AKIAPLANTED600000000",
    "plantedurl7",
    "plantedinspect8",
    "plantedenvfile9",
    "plantedprocess10",
    "plantedargs11",
    "plantedyaml12",
    "a8Fk29dLq0Zx71Pb55Tn3RwQ",
];

/// A host that remembers one server in every way there is.
fn host() -> Folder {
    let folder = Folder::new();
    let command = "python3 -m sglang.launch_server --model-path /models/q --speculative-algorithm NEXTN --speculative-eagle-topk 1";
    folder
        .write("etc/systemd/system/llm.service", &format!("[Service]\nEnvironment=HF_TOKEN=hf_plantedUnit000000000001\nEnvironmentFile=/etc/default/llm\nExecStart={command} --speculative-num-steps $STEPS --api-key sk-planted-flag-00000002\n"))
        .write("etc/systemd/system/llm.service.d/10-tp.conf", "[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=0,1\n")
        .write("etc/systemd/system/llm.service.bak-20261009", &format!("[Service]\nExecStart={command} --speculative-num-steps 3 --admin-api-key=plantedpassword3\n"))
        .write("etc/default/llm", "STEPS=1\nADMIN_PASSWORD=plantedenvfile9\n")
        .write("etc/default/llm.old", "STEPS=2\n")
        .write("srv/llm/compose.yaml", "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model m --api-key planted-plain-key-4 --license a8Fk29dLq0Zx71Pb55Tn3RwQ\n    environment: {OPENAI_API_KEY: plantedyaml12}\n")
        .write("srv/llm/inspect.json", r#"[{"Name": "/old", "Created": "2026-10-01T00:00:00Z", "Config": {"Image": "lmsysorg/sglang:v0.5.10", "Cmd": ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "2"], "Env": ["DB_PASSWORD=plantedinspect8"]}}]"#)
        .write("srv/llm/run.sh", "#!/bin/sh\nCTX=65536\nexport WANDB_API_KEY=AKIAPLANTED600000000\nexec llama-server -m a.gguf -c $CTX -np ${SLOTS:-2}\n")
        .write("srv/llm/.git-run.sh.diff", "--- a/run.sh\n+++ b/run.sh\n@@ -1 +1 @@\n-exec llama-server -m a.gguf -c 32768\n+exec llama-server -m a.gguf -c 65536\n")
        .write("home/ops/.bash_history", "#1791529390\nvllm serve m --max-num-seqs 4 --hf-token ghp_plantedhistory5000000000000\n#1791529400\nmysql -u root -phunter2plain\n#1791529500\nsudo vim /etc/systemd/system/llm.service\n")
        .write("home/ops/.zsh_history", ": 1794474900:0;vllm serve https://user:plantedurl7@hub.example/m\n")
        .write("home/ops/.local/share/fish/fish_history", "- cmd: outrider serve m --speculative-num-steps 3\n  when: 1794474901\n")
        .write("proc/77/cmdline", "python3\0-m\0sglang.launch_server\0--model-path\0/models/q\0--tp\x002\0")
        .write("proc/77/environ", "HOME=/root\0SECRET_KEY=plantedprocess10\0CUDA_VISIBLE_DEVICES=3\0")
        .write("launch-records/2026-11-02T0915.json", r#"{"schema": "launch/1", "engine": "sglang", "version": "0.5.23", "argv": ["sglang", "serve", "--model-path", "m", "--api-key", "plantedargs11"]}"#);
    folder
}

fn configs(folder: &Folder, json: bool) -> String {
    let mut out = Vec::new();
    let args =
        ConfigsArgs { from_dir: Some(folder.path().to_owned()), json, ..ConfigsArgs::default() };
    assert_eq!(commands::configs(&args, &mut out).unwrap(), 0);
    String::from_utf8(out).unwrap()
}

#[test]
fn every_place_is_found() {
    let list: Json = serde_json::from_str(&configs(&host(), true)).unwrap();
    let found = list["configs"].as_array().unwrap();
    let one = |origin: &str, path: &str| {
        found
            .iter()
            .find(|c| c["origin"] == origin && c["path"].as_str().unwrap().ends_with(path))
            .unwrap_or_else(|| panic!("no {origin} at {path}: {list:#}"))
    };
    let unit = one("unit", "llm.service");
    assert_eq!(
        unit["asked"]["spec.num_steps"]["value"], 1,
        "the environment file fills the variable"
    );
    assert_eq!(unit["asked"]["gpu.visible"]["value"], "0,1", "the drop-in adds its variable");
    assert_eq!(unit["effective"]["spec.draft_tokens"]["value"], 2);
    let backup = one("backup", "llm.service.bak-20261009");
    assert_eq!(
        (&backup["asked"]["spec.num_steps"]["value"], &backup["date"]),
        (&3.into(), &"2026-10-09 00:00".into())
    );
    assert_eq!(one("backup", "default/llm.old")["asked"]["spec.num_steps"]["value"], 2);
    assert_eq!(one("compose", "compose.yaml")["engine"], "vllm");
    assert_eq!(one("container", "inspect.json")["asked"]["par.tp"]["value"], 2);
    let script = one("script", "run.sh");
    assert_eq!(
        (
            &script["asked"]["model.max_context"]["value"],
            &script["asked"]["sched.max_running"]["value"]
        ),
        (&65_536.into(), &2.into())
    );
    assert_eq!(one("old_version", "run.sh.diff")["asked"]["model.max_context"]["value"], 32_768);
    let typed = one("history", ".bash_history");
    assert_eq!(
        (&typed["line"], &typed["asked"]["sched.max_running"]["value"]),
        (&2.into(), &4.into())
    );
    one("history", ".zsh_history");
    assert_eq!(one("history", "fish_history")["engine"], "outrider");
    let process = one("process", "proc/77/cmdline");
    assert_eq!(process["asked"]["gpu.visible"]["value"], "3");
    assert_eq!(one("launch_record", "0915.json")["version"], "0.5.23");
    let edits = list["edits"].as_array().unwrap();
    assert_eq!(edits.len(), 1, "{edits:?}");
    assert!(edits[0]["text"].as_str().unwrap().contains("vim"));
}

#[test]
fn planted_secrets_are_in_no_output() {
    let folder = host();
    folder.write(
        "now/server.log",
        &format!("{}key line: Authorization: Bearer plantedpassword3\n", Sglang::new(26).log()),
    );
    let evidence = collect::from_folder(folder.path()).unwrap();
    let built = report::build(&evidence);
    let outputs = [
        configs(&folder, false),
        configs(&folder, true),
        evidence.to_json().unwrap(),
        render::text(&built),
        render::markdown(&built),
        render::html(&built),
        render::json(&built).to_string(),
    ];
    for output in &outputs {
        for secret in SECRETS {
            assert!(!output.contains(secret), "{secret} is shown");
        }
        assert!(!output.contains("hunter2plain"), "a line about no server was kept");
    }
}

#[test]
fn nothing_is_changed_by_looking() {
    fn state(folder: &Path, out: &mut BTreeMap<PathBuf, (Vec<u8>, Option<std::time::SystemTime>)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                state(&path, out);
            } else {
                out.insert(
                    path.clone(),
                    (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().ok()),
                );
            }
        }
    }
    let folder = host();
    folder.write("now/server.log", &Sglang::new(26).log());
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    state(folder.path(), &mut before);
    configs(&folder, false);
    folder.diagnose();
    state(folder.path(), &mut after);
    assert_eq!(before, after);
}

#[test]
fn differences_by_number_file_and_command_line() {
    let folder = host();
    let diff = |a: &str, b: &str, json: bool| {
        let mut out = Vec::new();
        let args = DiffArgs {
            a: a.to_owned(),
            b: b.to_owned(),
            from_dir: Some(folder.path().to_owned()),
            json,
        };
        commands::diff(&args, &mut out).map(|_| String::from_utf8(out).unwrap())
    };
    let unit = folder.path().join("etc/systemd/system/llm.service").display().to_string();
    let backup =
        folder.path().join("etc/systemd/system/llm.service.bak-20261009").display().to_string();
    let text = diff(&backup, &unit, false).unwrap();
    let row = text.lines().find(|line| line.contains("spec.draft_tokens")).unwrap();
    assert!(row.contains("4 (not asked)"), "{text}");
    let json: Json = serde_json::from_str(
        &diff(
            "vllm serve m --max-num-seqs 4",
            "vllm serve m --max-num-seqs 8 --enforce-eager",
            true,
        )
        .unwrap(),
    )
    .unwrap();
    let factors: Vec<&str> = json["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["factor"].as_str().unwrap())
        .collect();
    assert_eq!(factors, ["sched.max_running", "exec.cuda_graph"]);
    assert!(diff("#1", "#2", false).is_ok());
    assert!(diff("#999", "#1", false).is_err());
    assert!(diff("no-such-file", "#1", false).is_err());
}

#[test]
fn a_log_as_table_plot_and_json() {
    let folder = Folder::new();
    folder.write(
        "server.log",
        &(Sglang::new(19).log()
            + "garbage \u{1b}[31mred\n"
            + &Sglang { accept_len: 1.9, ..Sglang::new(26) }.log()),
    );
    let show = |json: bool, plot: bool| {
        let mut out = Vec::new();
        commands::logs(
            &LogsArgs { files: vec![folder.path().join("server.log")], json, plot, all: false },
            &mut out,
        )
        .unwrap();
        String::from_utf8(out).unwrap()
    };
    let table = show(false, false);
    assert!(table.contains("run 1 of 2") && table.contains("run 2 of 2"), "{table}");
    assert!(
        table.contains("1 not understood")
            && table.contains("garbage red")
            && !table.contains('\u{1b}'),
        "{table}"
    );
    assert!(
        table.contains("spec.num_steps 3;")
            && table
                .contains("left out, because their speed misleads: 1 after idle, 3 across prefill"),
        "{table}"
    );
    assert!(show(false, true).contains('█'));
    let json: Json = serde_json::from_str(&show(true, false)).unwrap();
    assert_eq!(json["log"]["runs"].as_array().unwrap().len(), 2);
}

#[test]
fn reports_and_evidence_go_where_they_are_told() {
    let folder = Folder::new();
    folder.write("case/before/server.log", &Sglang::new(19).log());
    folder.write(
        "case/now/server.log",
        &Sglang {
            args: vec![("disable_cuda_graph", "True")],
            graph: false,
            steps_per_s: 20.0,
            ..Sglang::new(26)
        }
        .log(),
    );
    let path = |name: &str| Some(folder.path().join(name));
    let args = DiagnoseArgs {
        from_dir: path("case"),
        html: path("r.html"),
        markdown: path("r.md"),
        save_evidence: path("e.json"),
        ..DiagnoseArgs::default()
    };
    let mut text = Vec::new();
    assert_eq!(commands::diagnose(&args, &mut text).unwrap(), 10);
    assert!(String::from_utf8(text).unwrap().contains("exec.cuda_graph"));
    let html = fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(
        html.contains("<title>")
            && !html.contains("http://")
            && !html.contains("https://")
            && !html.contains("<script")
    );
    assert!(
        fs::read_to_string(folder.path().join("r.md"))
            .unwrap()
            .starts_with("# Regression explained")
    );
    let again = DiagnoseArgs { evidence: path("e.json"), json: true, ..DiagnoseArgs::default() };
    let mut json = Vec::new();
    assert_eq!(commands::diagnose(&again, &mut json).unwrap(), 10);
    let json: Json = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["primary"]["factor"], "exec.cuda_graph");
    let missing = DiagnoseArgs { from_dir: path("none"), ..DiagnoseArgs::default() };
    assert!(commands::diagnose(&missing, &mut Vec::new()).is_err());
}

#[test]
fn a_log_of_another_place_counts_as_now() {
    let folder = Folder::new();
    folder
        .write("case/before/server.log", &Sglang::new(19).log())
        .write("elsewhere.txt", &Sglang { steps_per_s: 20.0, ..Sglang::new(26) }.log());
    let args = DiagnoseArgs {
        from_dir: Some(folder.path().join("case")),
        logs: vec![folder.path().join("elsewhere.txt")],
        complaint: Some("slow \u{1b}[31m since monday".to_owned()),
        json: true,
        ..DiagnoseArgs::default()
    };
    let mut out = Vec::new();
    assert_eq!(commands::diagnose(&args, &mut out).unwrap(), 11);
    let report: Json = serde_json::from_slice(&out).unwrap();
    assert_eq!(report["complaint"], "slow  since monday");
    assert_eq!(report["losses"][0]["felt"], "stream tok/s");
}

#[test]
fn every_form_of_the_report_shows_both_sides_and_the_step() {
    let folder = Folder::new();
    folder
        .write("now/server.log", &Sglang::new(26).log())
        .write("now/probe.json", &Probe::new(26, 104.0).json());
    let mut evidence = collect::from_folder(folder.path()).unwrap();
    let sums = Steps { n_steps: 100.0, n_rounds: 100.0, forward_s: 1.5, ..Steps::default() };
    let what = StepTimes { seconds: 5.0, sums };
    evidence.steps.push(Item { side: Side::Now, source: "/server_info".to_owned(), what });
    let built = report::build(&evidence);
    let (markdown, html) = (render::markdown(&built), render::html(&built));
    assert!(render::text(&built).contains("MEASURED NOW"));
    assert!(markdown.contains("## Measured now") && markdown.contains("| client | server |"));
    assert!(html.contains("<h2>Measured now</h2>") && html.contains(">server</th>"));
    for output in [render::text(&built), markdown, html] {
        assert!(output.contains("15 ms: forward 15 (100 %)"), "{output}");
    }
}
