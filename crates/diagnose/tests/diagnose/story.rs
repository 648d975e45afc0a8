//! "We were at 70 tok/s, now it is 40": two decode lines now, and the earlier configuration somewhere on the host.

use diagnose::commands::{self, DiagnoseArgs};
use serde_json::{Value as Json, json};

use crate::scenario::{Folder, blames};

const COMPLAINT: &str = "we were at 70 tok/s, now it is 40";

const SERVER: &str = "python3 -m sglang.launch_server --model-path /models/Qwen3.6-27B --tp 2 --mamba-scheduler-strategy extra_buffer --speculative-algorithm NEXTN --speculative-eagle-topk 1 --port 30000";
const OLD_FLAGS: &str = "--speculative-num-steps 3 --speculative-num-draft-tokens 4 --mem-fraction-static 0.88 --context-length 131072 --max-running-requests 16 --mamba-full-memory-ratio 0.5";
const NEW_FLAGS: &str = "--speculative-num-steps 1 --speculative-num-draft-tokens 2";

/// What SGLang prints of its arguments when it starts.
const ARGS_LINE: &str = "[2026-05-11 23:43:02] server_args={'model_path': '/models/Qwen3.6-27B', 'tp_size': 2, 'port': 30000, 'mamba_scheduler_strategy': 'extra_buffer', 'speculative_algorithm': 'EAGLE', 'speculative_num_steps': 1, 'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 2}\n";
const LINES: &str = "\
[2026-05-11 23:46:31 TP0] Decode batch, #running-req: 1, #full token: 252, full token usage: 0.01, mamba num: 3, mamba usage: 0.43, accept len: 1.75, accept rate: 0.75, cuda graph: True, gen throughput (token/s): 35.81, #queue-req: 0
[2026-05-11 23:46:33 TP0] Decode batch, #running-req: 1, #full token: 320, full token usage: 0.02, mamba num: 3, mamba usage: 0.43, accept len: 1.73, accept rate: 0.72, cuda graph: True, gen throughput (token/s): 35.22, #queue-req: 0
";

fn unit(flags: &str) -> String {
    format!("[Service]\nExecStart=/usr/bin/{SERVER} \\\n    {flags}\nRestart=on-failure\n")
}

/// The process that runs now, as `/proc` shows it.
fn process(flags: &str) -> String {
    format!("{SERVER} {flags}").replace(' ', "\0") + "\0"
}

/// Diagnoses with the complaint on the command line and holds the answer against what is known of the story.
#[track_caller]
fn told(folder: &Folder) -> Json {
    let mut out = Vec::new();
    let args = DiagnoseArgs {
        from_dir: Some(folder.path().to_owned()),
        complaint: Some(COMPLAINT.to_owned()),
        json: true,
        ..DiagnoseArgs::default()
    };
    let code = commands::diagnose(&args, &mut out).expect("diagnosed");
    let report: Json = serde_json::from_slice(&out).expect("JSON");
    blames(&report, "regression", "spec.num_steps");
    assert_eq!((code, &report["complaint"]), (10, &json!(COMPLAINT)));
    let primary = &report["primary"];
    assert_eq!((&primary["before"], &primary["now"]), (&json!(3), &json!(1)), "{report:#}");
    assert_eq!(report["suspects"][0]["factor"], "spec.num_steps");
    let number = |name: &str| report["decomposition"][name]["now"].as_f64().unwrap();
    assert!((number("steps_per_s") - 20.4).abs() < 0.2, "{}", number("steps_per_s"));
    assert!((number("accept_len") - 1.74).abs() < 0.02, "{}", number("accept_len"));
    let range = &report["predicted"]["range"];
    assert_eq!(report["predicted"]["metric"], "decode_tok_s");
    let (low, high) = (range[0].as_f64().unwrap(), range[1].as_f64().unwrap());
    assert!(low <= 47.0 && (57.0..70.0).contains(&high), "predicted {low} to {high}");
    assert_eq!(
        report["fix"]["set"],
        json!({ "--speculative-num-steps": "3", "--speculative-num-draft-tokens": "4" })
    );
    report
}

#[test]
fn the_old_unit_is_disabled_and_the_process_runs() {
    let folder = Folder::new();
    folder
        .write("server.log", LINES)
        .write("proc/8123/cmdline", &process(NEW_FLAGS))
        .write("etc/systemd/system/sglang-qwen.service", &unit(OLD_FLAGS));
    told(&folder);
}

#[test]
fn the_log_came_through_the_journal() {
    let stamped =
        |prefix: &str| LINES.lines().map(|line| format!("{prefix}{line}\n")).collect::<String>();
    for prefix in
        ["May 11 23:46:31 gpu-a sglang[8123]: ", "2026-05-11T23:46:31+0200 gpu-a python3[8123]: "]
    {
        let folder = Folder::new();
        folder
            .write("journal.log", &stamped(prefix))
            .write("proc/8123/cmdline", &process(NEW_FLAGS))
            .write("etc/systemd/system/sglang-qwen.service", &unit(OLD_FLAGS));
        told(&folder);
    }
}

#[test]
fn the_running_configuration_stands_in_the_log_alone() {
    let folder = Folder::new();
    folder
        .write("server.log", &format!("{ARGS_LINE}{LINES}"))
        .write("etc/systemd/system/sglang-qwen.service", &unit(OLD_FLAGS));
    told(&folder);

    // Not even the arguments: the accept rates tell how many tokens a step verifies.
    let folder = Folder::new();
    folder
        .write("server.log", LINES)
        .write("etc/systemd/system/sglang-qwen.service", &unit(OLD_FLAGS));
    told(&folder);
}

#[test]
fn the_old_configuration_was_typed() {
    let folder = Folder::new();
    let typed = format!(
        "#1775000000\ncd /srv\n#1775000100\n{SERVER} {OLD_FLAGS}\n#1778535000\nnvidia-smi\n#1778535700\n{SERVER} {NEW_FLAGS}\n"
    );
    folder
        .write("server.log", &format!("{ARGS_LINE}{LINES}"))
        .write("home/ops/.bash_history", &typed);
    told(&folder);
}

#[test]
fn the_old_configuration_is_a_backup_of_a_compose_file() {
    let compose = |flags: &str| {
        format!(
            "services:\n  llm:\n    image: lmsysorg/sglang:v0.5.10\n    command: {SERVER} {flags}\n"
        )
    };
    for backup in ["docker-compose.yml.bak", "docker-compose.yml.old", "docker-compose.yml~"] {
        let folder = Folder::new();
        folder
            .write("server.log", &format!("{ARGS_LINE}{LINES}"))
            .write("srv/llm/docker-compose.yml", &compose(NEW_FLAGS))
            .write(&format!("srv/llm/{backup}"), &compose(OLD_FLAGS));
        told(&folder);
    }
}
