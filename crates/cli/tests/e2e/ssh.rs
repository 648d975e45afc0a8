//! Another host through a stand-in for `ssh`, which records what it is asked to run and answers from a folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::server::outrider;

/// Answers the search for units; everything else finds nothing.
const SSH: &str = r#"#!/bin/sh
for word in "$@"; do printf '%s\n' "$word" >>"$LOG"; done
echo == >>"$LOG"
for last in "$@"; do :; done
case "$last" in
*/etc/systemd/system*) cat "$ANSWER" ;;
*) exit 1 ;;
esac
"#;

#[test]
fn only_the_listed_commands_run_and_secrets_stay_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("ssh"), SSH).unwrap();
    std::fs::set_permissions(path("ssh"), PermissionsExt::from_mode(0o755)).unwrap();
    let unit = "/etc/systemd/system/llm.service\0[Service]\n/etc/systemd/system/llm.service\0ExecStart=/v/bin/vllm serve /m --max-num-seqs 3 --api-key sk-verysecretindeed42\n";
    std::fs::write(path("answer"), unit).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = outrider(arguments);
        let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", search).env("LOG", path("log")).env("ANSWER", path("answer"));
        command.env("HOME", folder.path()).env_remove("XDG_STATE_HOME");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };

    let (code, listed) = run(&["configs", "--ssh", "me@gpu-a", "--print-commands"]);
    assert_eq!(code, Some(0));
    assert!(!path("log").exists(), "nothing is run when the list is printed");

    let (code, found) = run(&["configs", "--ssh", "me@gpu-a", "--json"]);
    assert_eq!(code, Some(0), "{found}");
    assert!(
        found.contains("etc/systemd/system/llm.service") && found.contains("sched.max_running"),
        "{found}"
    );
    assert!(!found.contains("verysecretindeed"), "{found}");
    let log = std::fs::read_to_string(path("log")).unwrap();
    let calls: Vec<&str> = log.split("==\n").filter(|call| !call.is_empty()).collect();
    assert_eq!(calls.len(), listed.lines().count());
    for call in calls {
        let words: Vec<&str> = call.lines().collect();
        let [options @ .., end, host, command] = &words[..] else { panic!("{call}") };
        assert_eq!((*end, *host), ("--", "me@gpu-a"));
        assert!(
            options.contains(&"-oBatchMode=yes") && options.contains(&"-oForwardAgent=no"),
            "{call}"
        );
        let quoted = command.replace('\'', "'\\''");
        assert!(
            listed.lines().any(|line| line.ends_with(&format!("'{quoted}'"))),
            "{command} is not listed"
        );
    }
    let (code, _) = run(&["configs", "--ssh=-oProxyCommand=touch x"]);
    assert_eq!(code, Some(2), "an option is no host");
}

/// Runs what it is asked in a folder that stands for the host: absolute paths point into it, and back in the output.
const LOCAL: &str = r#"#!/bin/sh
for last in "$@"; do :; done
printf '%s\n==\n' "$last" >>"$LOG"
here=$(printf '%s' "$last" | sed -E "s#(^|[ '])/(etc|srv|opt|root|home|proc|var)/?#\1$ROOT/\2/#g")
env -u XDG_STATE_HOME HOME="$ROOT/home/ops" PATH="$ROOT/bin:$PATH" sh -c "$here" | sed "s#$ROOT/#/#g"
"#;

/// One container, with a secret in its environment.
const DOCKER: &str = r#"#!/bin/sh
case "$1" in
ps) echo 0123456789abcdef ;;
inspect) cat <<'END'
[{"Id": "0123456789abcdef", "Name": "/other", "State": {"Status": "running"}, "Config": {"Image": "vllm/vllm-openai:v0.33.0",
"Env": ["HF_TOKEN=hf_FAKEtokenForRedactionTest000000", "VLLM_API_KEY=plain-word-77"],
"Cmd": ["--model", "m", "--port", "8001", "--api-key", "plain-word-78", "--max-num-seqs", "4"]}}]
END
;;
esac
"#;

/// Secrets on the host; none may leave it.
const SECRETS: &[&str] = &[
    "hf_FAKEtokenForRedactionTest000000",
    "sk-fake-redaction-test-000111",
    "plain-word-77",
    "plain-word-78",
    "hunter2-79",
];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A host with what the first case knows, laid out as hosts are.
fn host(root: &Path) {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/diagnose/01-few-mtp-steps");
    copy(&case.join("etc"), &root.join("etc"));
    copy(&case.join("home"), &root.join("home"));
    copy(&case.join("now/proc"), &root.join("proc"));
    fs::create_dir_all(root.join("var/log")).unwrap();
    fs::copy(case.join("now/server.log"), root.join("var/log/sglang.log")).unwrap();
    let history = root.join("home/ops/.zsh_history");
    fs::write(history, "curl -u ops:hunter2-79 http://gpu-a:30000/v1/models # sglang\n").unwrap();
    fs::create_dir(root.join("bin")).unwrap();
    for (path, text) in [("bin/docker", DOCKER), ("ssh", LOCAL)] {
        fs::write(root.join(path), text).unwrap();
        fs::set_permissions(root.join(path), PermissionsExt::from_mode(0o755)).unwrap();
    }
}

#[test]
fn another_host_is_diagnosed_by_the_listed_commands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    host(root);
    let out = tempfile::tempdir().unwrap();
    let file = |name: &str| out.path().join(name).to_str().unwrap().to_owned();
    let run = |flags: &[&str]| -> Output {
        let fixed = ["diagnose", "--ssh", "me@gpu-a", "--log", "/var/log/sglang.log"];
        let mut command = outrider(&[&fixed[..], flags].concat());
        command.env("PATH", format!("{}:{}", root.display(), std::env::var("PATH").unwrap()));
        command.env("LOG", root.join("calls")).env("ROOT", root);
        command.env("HOME", out.path()).env("XDG_STATE_HOME", out.path().join("state"));
        command.output().unwrap()
    };
    let listed = String::from_utf8(run(&["--print-commands"]).stdout).unwrap();
    assert!(listed.contains("tail -c") && !root.join("calls").exists(), "{listed}");

    let (html, md, saved) = (file("report.html"), file("report.md"), file("evidence.json"));
    let complaint = "we had 70 tok/s, now it is 40; the key is sk-fake-redaction-test-000111";
    let flags = ["--html", &html, "--md", &md, "--save", &saved, "--complaint", complaint];
    let output = run(&[&flags[..], &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["primary"]["factor"], "spec.num_steps", "{report:#}");
    assert_eq!((&report["primary"]["before"], &report["primary"]["now"]), (&3.into(), &1.into()));
    assert_eq!(report["fix"]["set"]["--speculative-num-steps"], "3");
    assert_eq!(output.status.code(), Some(10));
    let text = run(&["--complaint", complaint]);
    assert_eq!(text.status.code(), Some(10));

    let calls = fs::read_to_string(root.join("calls")).unwrap();
    for call in calls.split("\n==\n").filter(|call| !call.is_empty()) {
        let quoted = call.replace('\'', "'\\''");
        assert!(listed.lines().any(|line| line.ends_with(&format!("'{quoted}'"))), "{call}");
    }
    assert_eq!(calls.matches("\n==\n").count(), 2 * listed.lines().count(), "all, twice");

    let outputs = [&output.stdout, &output.stderr, &text.stdout, &text.stderr];
    let mut all: Vec<String> =
        outputs.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    let written = [html, md, saved, file("state/outrider/last-evidence.json")];
    all.extend(written.iter().map(|path| fs::read_to_string(path).unwrap()));
    assert!(
        all[6].contains("0123456789abcdef") || all[6].contains("vllm"),
        "the container was seen"
    );
    for (i, text) in all.iter().enumerate() {
        assert!(text.len() > 20 || i == 1 || i == 3, "output {i} is empty");
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} in output {i}");
        }
    }
}
