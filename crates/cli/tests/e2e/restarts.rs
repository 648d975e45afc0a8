//! Restarts by a command that the caller gives, fixes that do not hold, and a trial that somebody ends in the middle.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::host::Host;
use crate::server::{eventually, outrider};

/// Stops the server and starts the one of `$OUTRIDER_COMMAND`, or of the arguments where there are any.
const RESTART: &str = r#"#!/bin/sh
units="$XDG_CONFIG_HOME/systemd/user"
[ $# = 0 ] && eval "set -- $OUTRIDER_COMMAND" || set -- "$PROGRAM" "$@"
if [ -f "$units/pid" ]; then
    kill -TERM "$(cat "$units/pid")" 2>/dev/null
    while kill -0 "$(cat "$units/pid")" 2>/dev/null; do sleep 0.05; done
fi
(setsid "$@" >>"$units/server.log" 2>&1 </dev/null & echo $! >"$units/pid")
echo "restarted with $# words"
"#;

/// A report that proposes to set these flags, and its path.
fn report(host: &Host, set: Value) -> String {
    let file = host.path("report.json");
    let report = json!({
        "schema": "report/1", "engine": "outrider", "target": host.url(), "symptom_metric": "decode_tok_s",
        "summary": "regression explained", "primary": {"factor": "spec.num_steps"},
        "fix": {"set": set, "unset": [], "actions": []},
    });
    std::fs::write(&file, report.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_command_of_the_caller_restarts_the_server() {
    let host = Host::new();
    let script = host.path("bin/restart");
    std::fs::write(&script, RESTART).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    let first = host.command(1);
    let mut restart = Command::new(script);
    host.inside(&mut restart).args(&first[1..]).env("PROGRAM", &first[0]);
    assert!(restart.status().unwrap().success());
    host.wait_until_healthy();
    let with_words = format!("PROGRAM='{}' {script} {{args}}", first[0]);

    let file = report(&host, json!({"--speculative-num-steps": "3"}));
    let printed = host.run(&["fix", &file, "--restart-command", &with_words]);
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(text.contains("the command would be") && text.contains("num-steps 3"), "{text}");
    assert_eq!(host.depth(), 1, "printing changes nothing");

    let apply = ["fix", &file, "--apply", "--yes", "--restart-command", &with_words];
    let applied = host.run(&apply);
    assert_eq!(applied.status.code(), Some(0), "{}", error_of(&applied));
    assert!(error_of(&applied).contains("restarted with"), "what the command prints is no report");
    assert_eq!(host.depth(), 3);
    let again = host.run(&apply);
    assert_eq!(again.status.code(), Some(2));
    assert!(error_of(&again).contains("in force already"), "{}", error_of(&again));
    let record = std::fs::read_to_string(host.path("state/outrider/fix.json")).unwrap();
    assert!(!record.contains("open-sesame-2"), "{record}");

    // The way back needs nothing but what was kept.
    let reverted = host.run(&["fix", "--revert", "--yes"]);
    assert_eq!(reverted.status.code(), Some(0), "{}", error_of(&reverted));
    assert_eq!(host.depth(), 1);
    assert_eq!(host.run(&["fix", "--revert", "--yes"]).status.code(), Some(12));

    // A server that does not start with the fix is started as it was, by the whole command this time.
    let broken = report(&host, json!({"--mem-fraction-static": "7"}));
    let flags = ["--apply", "--yes", "--wait", "2", "--restart-command", script];
    let rolled_back = host.run(&[&["fix", &broken], &flags[..]].concat());
    assert_eq!(rolled_back.status.code(), Some(11), "{}", error_of(&rolled_back));
    assert_eq!(host.depth(), 1);

    // A command that fails is an error, and the server is what it was.
    let failed = host.run(&["fix", &file, "--apply", "--yes", "--restart-command", "exit 3"]);
    assert_eq!(failed.status.code(), Some(2), "{}", error_of(&failed));
    assert!(error_of(&failed).contains("--restart-command failed"), "{}", error_of(&failed));
    assert_eq!(host.depth(), 1);
}

#[test]
fn a_fix_without_gain_is_taken_back() {
    let host = Host::new();
    host.start(2);
    let at_first = host.info()["max_running_requests"].clone();
    let drop_in = host.units().join("llm.service.d/zz-outrider-fix.conf");
    // One stream cannot feel how many may run.
    let file = report(&host, json!({"--max-running-requests": "5"}));
    let effort = ["--yes", "--json", "--runs", "8"];
    let proof = host.json(&[&["validate", &file], &effort[..]].concat(), 11);
    let state = (&proof["verdict"], &proof["in_force"]);
    assert_eq!(state, (&json!("does_not_hold"), &json!(false)), "{proof:#}");
    assert!(proof["gain"][0].as_f64() < Some(0.03), "{proof:#}");
    assert_eq!(proof["medians"].as_array().unwrap().len(), 3, "no fourth start for it: {proof:#}");
    assert!(!drop_in.exists());
    assert_eq!(host.info()["max_running_requests"], at_first);
    assert_eq!(host.depth(), 2);
}

/// A trial in its own process group, as a shell starts it.
fn trial(host: &Host, file: &str) -> Child {
    let mut command = outrider(&["validate", file, "--yes", "--json", "--runs", "8"]);
    host.inside(&mut command).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Sends a signal to the whole group, as a terminal does; how the trial ended.
fn end(child: Child, signal: &str) -> (Option<i32>, Value) {
    let kill = format!("kill -s {signal} -- -{}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = error_of(&output);
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
    (output.status.code(), json)
}

#[test]
fn an_interrupted_trial_puts_back_what_it_found() {
    let host = Host::new();
    host.start(1);
    let drop_in = host.units().join("llm.service.d/zz-outrider-fix.conf");
    let file = report(&host, json!({"--speculative-num-steps": "3"}));

    // While the server is measured with the fix that was not there before.
    let child = trial(&host, &file);
    eventually("the fix", || host.process_has("--speculative-num-steps 3"));
    host.wait_until_healthy();
    std::thread::sleep(Duration::from_millis(500));
    let (code, proof) = end(child, "INT");
    assert_eq!((code, &proof["verdict"]), (Some(12), &json!("interrupted")), "{proof:#}");
    assert_eq!(proof["in_force"], false);
    assert!(!drop_in.exists());
    assert_eq!(host.depth(), 1, "the server is up again as it was");

    // While the server starts without the fix that was in force.
    assert!(host.run(&["fix", &file, "--apply", "--yes"]).status.success());
    assert_eq!(host.depth(), 3);
    let child = trial(&host, &file);
    eventually("a start without the fix", || !drop_in.exists());
    let (code, proof) = end(child, "TERM");
    assert_eq!((code, &proof["in_force"]), (Some(12), &json!(true)), "{proof:#}");
    assert!(drop_in.exists());
    assert_eq!(host.depth(), 3, "the fix that was found in force is so again");
}
