//! Logs that live in the journal or in a container: stand-ins for `journalctl` and `docker` print them as those do.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::probe::Logged;
use crate::server::outrider;

/// Knows the unit `llm`; every line has time, host and program before it.
const JOURNALCTL: &str = r#"#!/bin/sh
echo $$ >>"$HERE/followers"
prefix() { sed 's/^/2026-11-30T12:00:00+00:00 gpu-a outrider[42]: /'; }
case " $* " in *" -u llm "*) ;; *) echo '-- No entries --'; exit 1 ;; esac
case " $* " in
*" --follow "*)
    seen=$(wc -l <"$HERE/server.log")
    while sleep 0.05; do
        all=$(wc -l <"$HERE/server.log")
        [ "$all" -gt "$seen" ] && sed -n "$((seen + 1)),${all}p" "$HERE/server.log" | prefix
        seen=$all
    done ;;
*) prefix <"$HERE/server.log" ;;
esac
"#;

/// Knows the container `llm`, which logs to standard error. A script around the real program, as some hosts have:
/// who ends the script alone leaves the follower behind.
const DOCKER: &str = r#"#!/bin/sh
echo $$ >>"$HERE/followers"
[ "$1" = logs ] || exit 1
for name in "$@"; do :; done
[ "$name" = llm ] || { echo "Error response from daemon: No such container: $name" >&2; exit 1; }
case " $* " in
*" --follow "*) sh -c 'echo $$ >>"$HERE/followers"; exec tail -n 0 -f "$HERE/server.log" >&2' ;;
*) sed 's/^/2026-11-30T12:00:00.123456789Z /' "$HERE/server.log" >&2 ;;
esac
"#;

struct Host {
    here: TempDir,
    server: Logged,
}

impl Host {
    fn new() -> Host {
        let here = tempfile::tempdir().unwrap();
        std::fs::create_dir(here.path().join("bin")).unwrap();
        for (name, text) in [("journalctl", JOURNALCTL), ("docker", DOCKER)] {
            let path = here.path().join("bin").join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let flags = ["--speculative-num-steps", "3", "--decode-log-interval", "5"];
        let server = Logged::start(&here.path().join("server.log"), &flags);
        Host { here, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.here.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let search = std::env::var("PATH").unwrap();
        let path = format!("{}:{search}", self.path("bin").display());
        let mut command = outrider(arguments);
        command.env("PATH", path).env("HERE", self.here.path()).output().unwrap()
    }

    /// A probe that follows this log; what it saw of it, and its gaps.
    fn probe(&self, log: &str) -> (Value, String) {
        let work = ["--json", "--runs", "4", "--precision", "0", "--no-cache-pass"];
        let output = self.run(&[&["probe", &self.server.url, "--log", log], &work[..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {errors}"));
        let gaps = report["observed"]["gaps"].to_string();
        (report, gaps)
    }
}

fn is_running(pid: &str) -> bool {
    // What was killed and not yet waited for by its parent runs no more.
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_journal_and_a_container_are_followed_while_the_server_is_measured() {
    let host = Host::new();
    for log in ["journal:llm", "docker:llm"] {
        let (report, gaps) = host.probe(log);
        assert!(!gaps.contains("log"), "{gaps}");
        let seen = &report["observed"]["log"];
        assert!(seen["n_decode"].as_u64() > Some(3), "{log}: {seen}");
        let (length, steps) = (&report["server"]["accept_len"], &report["server"]["steps_per_s"]);
        assert_eq!(steps["source"], "log", "{log}: {}", report["server"]);
        let printed = seen["accept_len"].as_f64().unwrap();
        let counted = length["value"].as_f64().unwrap();
        assert!((printed / counted - 1.0).abs() < 0.2, "{log}: {printed} beside {counted}");
    }
    let followers = std::fs::read_to_string(host.path("followers")).unwrap();
    assert_eq!(followers.lines().count(), 3, "{followers}");
    for pid in followers.lines() {
        assert!(!is_running(pid), "a follower was left behind");
    }
}

#[test]
fn a_journal_and_a_container_are_read_as_logs() {
    let host = Host::new();
    let (_, gaps) = host.probe("journal:llm");
    assert!(!gaps.contains("log"), "{gaps}");
    let evidence = host.path("evidence.json");
    let evidence = evidence.to_str().unwrap();
    let logs = ["--log", "journal:llm", "--log", "docker:llm", "--no-probe", "--save", evidence];
    let output = host.run(&[&["diagnose", &host.server.url, "--json"], &logs[..]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!report["gaps"].to_string().contains("log "), "{}", report["gaps"]);
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(evidence).unwrap()).unwrap();
    let read = saved["logs"].as_array().unwrap();
    let sources: Vec<&Value> = read.iter().map(|log| &log["source"]).collect();
    assert_eq!(sources, ["journal:llm", "docker:llm"]);
    for log in read {
        let text = log["what"].to_string();
        assert!(text.contains("\"outrider\"") && text.contains("\"clean\""), "{text}");
    }
    // The same lines in other wrappers are the same log.
    assert_eq!(read[0]["what"]["runs"][0]["windows"], read[1]["what"]["runs"][0]["windows"]);
}

#[test]
fn a_log_that_cannot_be_followed_is_a_stated_gap() {
    let host = Host::new();
    let (report, gaps) = host.probe("journal:other");
    assert!(gaps.contains("journal:other") && gaps.contains("ended by itself"), "{gaps}");
    assert_eq!(report["requests"].as_array().unwrap().len(), 4, "the probe itself goes on");
    let (_, gaps) = host.probe("docker:other");
    assert!(gaps.contains("docker:other") && gaps.contains("No such container"), "{gaps}");

    std::fs::remove_file(host.path("bin/docker")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrider"));
    let url = &host.server.url;
    command.args(["diagnose", url, "--no-probe", "--json", "--log", "docker:llm"]);
    command.env("PATH", host.path("bin")).env("XDG_STATE_HOME", host.here.path());
    let output = command.env("HERE", host.here.path()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["gaps"].to_string().contains("log docker:llm"), "{}", report["gaps"]);
}
