//! A user's home with one unit: a stand-in for `systemctl` starts what the unit and its drop-ins say, with real processes.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
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
pub(crate) struct Host {
    home: TempDir,
    port: u16,
}

impl Host {
    pub(crate) fn new() -> Host {
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn units(&self) -> PathBuf {
        self.path("config/systemd/user")
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The server's command with a draft depth. A pass takes at least 8 ms, so that tokens per pass decide the speed.
    pub(crate) fn command(&self, depth: u32) -> Vec<String> {
        let words = format!(
            "{} serve --port {} --api-key open-sesame-2 --least-pass-ms 8 --threads 1 --speculative-num-steps {depth}",
            env!("CARGO_BIN_EXE_outrider"),
            self.port
        );
        words.split(' ').map(str::to_owned).collect()
    }

    /// The unit that runs it.
    pub(crate) fn unit(&self, depth: u32) -> String {
        format!("[Service]\nExecStart={}\n", self.command(depth).join(" "))
    }

    /// Writes the unit and starts it, as its owner would.
    pub(crate) fn start(&self, depth: u32) {
        std::fs::write(self.units().join("llm.service"), self.unit(depth)).unwrap();
        let mut systemctl = Command::new(self.path("bin/systemctl"));
        assert!(
            self.inside(&mut systemctl)
                .args(["--user", "restart", "llm"])
                .status()
                .unwrap()
                .success()
        );
        self.wait_until_healthy();
    }

    pub(crate) fn wait_until_healthy(&self) {
        let client = self.client();
        eventually("a healthy server", || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && client.get("/health").status == 200
        });
    }

    /// Whether the process that was started last has these words.
    pub(crate) fn process_has(&self, words: &str) -> bool {
        let pid = std::fs::read_to_string(self.units().join("pid")).unwrap_or_default();
        let command = std::fs::read_to_string(format!("/proc/{}/cmdline", pid.trim()));
        command.is_ok_and(|command| command.replace('\0', " ").contains(words))
    }

    pub(crate) fn client(&self) -> Client {
        let address = format!("127.0.0.1:{}", self.port).parse().unwrap();
        Client::new(address).with_header("Authorization", "Bearer open-sesame-2")
    }

    /// What the server says of itself.
    pub(crate) fn info(&self) -> Value {
        self.client().get("/server_info").json()
    }

    /// The draft depth with which the server runs.
    pub(crate) fn depth(&self) -> Value {
        self.info()["speculative_num_steps"].clone()
    }

    pub(crate) fn inside<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("HOME", self.home.path())
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("OUTRIDER_API_KEY", "open-sesame-2")
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
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
    pub(crate) fn json(&self, arguments: &[&str], code: i32) -> Value {
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
