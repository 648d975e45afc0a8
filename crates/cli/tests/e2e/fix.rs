//! A server that somebody made slower: found, fixed, proved and taken back, with real processes under a stand-in for
//! `systemctl` that starts what the unit and its drop-ins say.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::client::Client;

use crate::server::{eventually, outrider};

/// Knows one unit of a user; its process is the one that it started last.
const SYSTEMCTL: &str = r#"#!/bin/sh
[ "$1" = --user ] && shift
units="$XDG_CONFIG_HOME/systemd/user"
case "$1" in
show)
    case "$3" in llm.service) ;; *) echo LoadState=not-found; exit 0 ;; esac
    echo LoadState=loaded
    echo "FragmentPath=$units/llm.service"
    echo "DropInPaths=$(ls "$units"/llm.service.d/*.conf 2>/dev/null | tr '\n' ' ')"
    echo "MainPID=$(cat "$units/pid" 2>/dev/null || echo 0)" ;;
daemon-reload) ;;
is-failed) echo active; exit 1 ;;
stop | restart)
    if [ -f "$units/pid" ]; then
        kill -TERM "$(cat "$units/pid")" 2>/dev/null
        while kill -0 "$(cat "$units/pid")" 2>/dev/null; do sleep 0.05; done
        rm "$units/pid"
    fi
    if [ "$1" = restart ]; then
        line=$(cat "$units/llm.service" "$units"/llm.service.d/*.conf 2>/dev/null | sed -n 's/^ExecStart=\(..*\)/\1/p' | tail -n 1)
        (setsid sh -c "exec $line" >>"$units/server.log" 2>&1 </dev/null & echo $! >"$units/pid")
    fi ;;
*) echo "no verb $1" >&2; exit 1 ;;
esac
"#;

/// A user's home with one unit, and the port of its server. What still runs is stopped at the end.
struct Host {
    home: TempDir,
    port: u16,
}

impl Host {
    fn new() -> Host {
        let home = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let host = Host { home, port };
        std::fs::create_dir_all(host.units()).unwrap();
        std::fs::create_dir(host.path("bin")).unwrap();
        let script = host.path("bin/systemctl");
        std::fs::write(&script, SYSTEMCTL).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn units(&self) -> PathBuf {
        self.path("config/systemd/user")
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The unit with a draft depth. A pass takes at least 8 ms, so that tokens per pass decide the speed.
    fn unit(&self, depth: u32) -> String {
        format!(
            "[Service]\nExecStart={} serve --port {} --api-key open-sesame-2 --least-pass-ms 8 --threads 1 --speculative-num-steps {depth}\n",
            env!("CARGO_BIN_EXE_outrider"),
            self.port
        )
    }

    /// Writes the unit and starts it, as its owner would.
    fn start(&self, depth: u32) {
        std::fs::write(self.units().join("llm.service"), self.unit(depth)).unwrap();
        let mut systemctl = Command::new(self.path("bin/systemctl"));
        assert!(
            self.inside(&mut systemctl)
                .args(["--user", "restart", "llm"])
                .status()
                .unwrap()
                .success()
        );
        let client = self.client();
        eventually("a healthy server", || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && client.get("/health").status == 200
        });
    }

    fn client(&self) -> Client {
        let address = format!("127.0.0.1:{}", self.port).parse().unwrap();
        Client::new(address).with_header("Authorization", "Bearer open-sesame-2")
    }

    /// The draft depth with which the server runs.
    fn depth(&self) -> Value {
        self.client().get("/server_info").json()["speculative_num_steps"].clone()
    }

    fn inside<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("HOME", self.home.path())
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("OUTRIDER_API_KEY", "open-sesame-2")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = outrider(arguments);
        let output = self.inside(&mut command).output().unwrap();
        let all = [output.stdout.clone(), output.stderr.clone()].concat();
        assert!(
            !String::from_utf8_lossy(&all).contains("open-sesame-2"),
            "{arguments:?} shows the key"
        );
        output
    }

    /// The JSON of a command that must end with this code.
    fn json(&self, arguments: &[&str], code: i32) -> Value {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}\n{text}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut systemctl = Command::new(self.path("bin/systemctl"));
        // It may have been stopped already.
        let _ = self.inside(&mut systemctl).args(["--user", "stop", "llm"]).status();
    }
}

#[test]
fn a_lowered_draft_depth_is_found_fixed_proved_and_taken_back() {
    let host = Host::new();
    let url = host.url();
    host.start(3);
    let work = ["--set", "code", "--runs", "8", "--max-tokens", "48", "--precision", "0"];
    let save = [&["baseline", "save", "good", &url, "--no-cache-pass"], &work[..]].concat();
    assert!(host.run(&save).status.success());

    host.start(1);
    let (evidence, log) = (host.path("evidence.json"), host.units().join("server.log"));
    let (evidence, log) = (evidence.to_str().unwrap(), log.to_str().unwrap());
    let report = host.json(
        &[
            "diagnose",
            &url,
            "--json",
            "--runs",
            "8",
            "--log",
            log,
            "--save",
            evidence,
            "--complaint",
            "slower",
        ],
        10,
    );
    let primary = &report["primary"];
    assert_eq!(primary["factor"], "spec.num_steps", "{report:#}");
    assert_eq!((&primary["before"], &primary["now"]), (&json!(3), &json!(1)));
    assert_eq!(report["fix"]["set"]["--speculative-num-steps"], "3");
    let now = report["decomposition"]["decode_tok_s"]["now"].as_f64().unwrap();
    let predicted = report["predicted"]["range"][0].as_f64().unwrap();
    assert!(predicted > 1.1 * now, "{predicted} after the fix, {now} now");
    // The numbers of the server give what the client measured.
    let measured = report["measured_now"][0].clone();
    let (client, server) =
        (measured["client"].as_f64().unwrap(), measured["server"].as_f64().unwrap());
    assert!((server / client - 1.0).abs() < 0.15, "{measured}");
    assert!(report["step"]["step_s"].as_f64() > Some(0.008), "{}", report["step"]);

    let again = host.json(&["diagnose", "--evidence", evidence, "--json"], 10);
    assert_eq!(again, report, "saved evidence gives the same report");
    assert!(!std::fs::read_to_string(evidence).unwrap().contains("open-sesame-2"));

    let drop_in = host.units().join("llm.service.d/zz-outrider-fix.conf");
    let printed = host.run(&["fix"]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(
        printed.contains("--speculative-num-steps 3") && printed.contains("llm.service.d"),
        "{printed}"
    );
    let refused = host.run(&["fix", "--apply"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--yes"));
    assert!(!drop_in.exists(), "nothing is written without a yes");
    assert_eq!(
        host.run(&["fix", "--revert", "--yes"]).status.code(),
        Some(2),
        "nothing to take back"
    );

    let applied = host.run(&["fix", "--apply", "--yes"]);
    let errors = String::from_utf8_lossy(&applied.stderr);
    assert_eq!(applied.status.code(), Some(0), "{errors}");
    assert_eq!(host.depth(), 3);
    let unit = std::fs::read_to_string(host.units().join("llm.service")).unwrap();
    assert_eq!(unit, host.unit(1), "the unit itself is never edited");

    let proof = host.json(&["validate", "--yes", "--json", "--runs", "8"], 0);
    assert_eq!(
        (&proof["verdict"], &proof["in_force"]),
        (&json!("holds"), &json!(true)),
        "{proof:#}"
    );
    assert!(proof["gain"][0].as_f64() > Some(0.03), "{proof:#}");
    assert_eq!(host.depth(), 3);

    assert!(host.run(&["fix", "--revert", "--yes"]).status.success());
    assert_eq!(host.depth(), 1);
    assert!(!drop_in.exists());

    // A change with which the server does not start is taken back.
    let mut broken = report;
    broken["fix"] = json!({"set": {"--mem-fraction-static": "7"}, "unset": [], "actions": []});
    let file = host.path("report.json");
    std::fs::write(&file, broken.to_string()).unwrap();
    let rolled_back = host.run(&["fix", file.to_str().unwrap(), "--apply", "--yes", "--wait", "3"]);
    let errors = String::from_utf8_lossy(&rolled_back.stderr);
    assert_eq!(rolled_back.status.code(), Some(11), "{errors}");
    assert!(errors.contains("does not answer") && errors.contains("runs as before"), "{errors}");
    assert!(!drop_in.exists());
    assert_eq!(host.depth(), 1);
}
