//! Another host through the user's own ssh: a fixed list of commands that only read.
//!
//! What they print stays in memory and is redacted like any other source before it becomes evidence.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::folder;
use super::gpu::GpuSnapshot;
use crate::Error;
use crate::configs::Tree;
use crate::evidence::{Evidence, Item, Side};
use crate::logs;

/// Options of every call: no password, no question, no forwarding, no local command.
pub const OPTIONS: &[&str] = &[
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",
    "-oPermitLocalCommand=no",
];

/// How the output of a command is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Lines of files: the path, a zero byte, the line.
    Lines,
    /// One text, kept as a file of this name.
    File(&'static str),
    /// A look at the devices.
    Devices,
}

/// Everything that is ever run there, besides a log that the caller names.
const COMMANDS: &[(&str, Form)] = &[
    (
        r#"grep -rIHZ --include='*.service*' --include='*.conf*' '' /etc/systemd/system "$HOME/.config/systemd/user" 2>/dev/null"#,
        Form::Lines,
    ),
    ("grep -IHZ '' /etc/default/* /etc/sysconfig/* 2>/dev/null", Form::Lines),
    (
        r"find /srv /opt /root /home -maxdepth 4 -type f -size -64k \( -name '*compose*.y*ml*' -o -name '*.sh' -o -name '*.env' \) -exec grep -IHZ '' {} + 2>/dev/null",
        Form::Lines,
    ),
    ("grep -aHZ '' /proc/[0-9]*/cmdline 2>/dev/null", Form::Lines),
    (
        r#"grep -aHZ -B1 -A1 --no-group-separator -E 'sglang|vllm|llama-server|outrider|systemctl' "$HOME/.bash_history" "$HOME/.zsh_history" "$HOME/.local/share/fish/fish_history" 2>/dev/null"#,
        Form::Lines,
    ),
    (
        r#"grep -HZ '' "${XDG_STATE_HOME:-$HOME/.local/state}/outrider/launches.jsonl" 2>/dev/null"#,
        Form::Lines,
    ),
    (
        "docker ps -q --no-trunc 2>/dev/null | xargs -r docker inspect 2>/dev/null",
        Form::File("docker-inspect.json"),
    ),
    (
        "nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE,UTILIZATION,MEMORY,PIDS 2>/dev/null",
        Form::Devices,
    ),
];

/// Longest time for one command.
const LIMIT: Duration = Duration::from_secs(60);
/// Most bytes of an answer.
const MOST_BYTES: u64 = 64 << 20;
/// What `ssh` exits with when it could not reach the host itself.
const SSH_FAILED: i32 = 255;

/// The fixed list.
pub fn commands() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(command, _)| *command)
}

/// Every command line, as it would be run for a host.
pub fn command_lines(host: &str, logs: &[String]) -> Vec<String> {
    let fixed = commands().map(str::to_owned);
    let options = OPTIONS.join(" ");
    let quoted = |command: String| format!("'{}'", command.replace('\'', "'\\''"));
    fixed
        .chain(logs.iter().cloned())
        .map(|command| format!("ssh {options} -- {host} {}", quoted(command)))
        .collect()
}

/// The command that reads a log there: a file, `journal:UNIT` or `docker:NAME`.
///
/// # Errors
/// When a unit or a container has a name that is none.
pub fn log_command(log: &str) -> Result<String, Error> {
    let named = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:\\".contains(c);
        let good = !name.is_empty() && !name.starts_with('-') && name.chars().all(plain);
        if good {
            Ok(format!("'{name}'"))
        } else {
            Err(Error::Unknown(format!("{name:?} is not a name")))
        }
    };
    if let Some(unit) = log.strip_prefix("journal:") {
        return Ok(format!("journalctl --no-pager -o short-iso -n 200000 -u {}", named(unit)?));
    }
    if let Some(container) = log.strip_prefix("docker:") {
        return Ok(format!("docker logs --timestamps --tail 200000 {} 2>&1", named(container)?));
    }
    if log.contains(char::is_control) {
        return Err(Error::Unknown(format!("{log:?} is not the path of a log")));
    }
    Ok(format!("tail -c 67108864 -- '{}'", log.replace('\'', "'\\''")))
}

/// Collects from a host. A command that fails is a gap; a host that cannot be reached is an error.
///
/// # Errors
/// When the name could be an option, or the host cannot be reached.
pub fn from_host(host: &str, logs: &[String]) -> Result<Evidence, Error> {
    check(host)?;
    let commands: Vec<String> =
        logs.iter().map(|log| log_command(log)).collect::<Result<_, _>>()?;
    let (mut files, mut gaps, mut gpus) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (command, form) in COMMANDS {
        let bytes = match run(host, command) {
            Ok(bytes) => bytes,
            Err(Failure::Unreachable(why)) => {
                return Err(Error::Unknown(format!("ssh cannot reach {host}: {why}")));
            }
            Err(Failure::Command(why)) => {
                let program = command.split(' ').next().unwrap_or("");
                gaps.push(format!("{host}: {program}: {why}"));
                continue;
            }
        };
        match form {
            Form::Lines => add_lines(&mut files, &bytes),
            Form::File(_) if bytes.len() < 4 => {}
            Form::File(name) => drop(files.insert((*name).to_owned(), bytes)),
            Form::Devices => gpus.extend(GpuSnapshot::parse(&String::from_utf8_lossy(&bytes))),
        }
    }
    let mut evidence = folder::from_tree(&Tree::of_files(files));
    evidence.gpus.extend(gpus.into_iter().map(|what| Item {
        side: Side::Now,
        source: format!("{host}: nvidia-smi -q"),
        what,
    }));
    for (log, command) in logs.iter().zip(&commands) {
        match run(host, command) {
            Ok(bytes) => {
                let what = logs::read_text(&String::from_utf8_lossy(&bytes));
                evidence.logs.push(Item { side: Side::Now, source: format!("{host}:{log}"), what });
            }
            Err(Failure::Unreachable(why) | Failure::Command(why)) => {
                gaps.push(format!("{host}: log {log}: {why}"));
            }
        }
    }
    folder::add_log_configs(&mut evidence);
    evidence.gaps.extend(gaps);
    Ok(evidence)
}

/// A name that ssh could take for an option is refused.
///
/// # Errors
/// When the name is none.
pub fn check(host: &str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:[]%".contains(c);
    if host.is_empty() || host.starts_with('-') || !host.chars().all(plain) {
        let shown = dialects::redact::line(host, 80);
        return Err(Error::Unknown(format!(
            "{shown:?} is not a host: give it as for ssh, such as user@host or a name of ~/.ssh/config"
        )));
    }
    Ok(())
}

enum Failure {
    Unreachable(String),
    Command(String),
}

fn run(host: &str, command: &str) -> Result<Vec<u8>, Failure> {
    let spawned = Command::new("ssh")
        .args(OPTIONS)
        .args(["--", host, command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| Failure::Unreachable(error.to_string()))?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let (done, ended) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = matches!(ended.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Timeout));
        if late {
            // It may have ended by itself in the meantime.
            let _ = child.kill();
        }
        (child.wait(), late)
    });
    let complaints = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut errors) = errors {
            let _ = errors.by_ref().take(4096).read_to_string(&mut text);
            let _ = std::io::copy(&mut errors, &mut std::io::sink());
        }
        text
    });
    let mut bytes = Vec::new();
    if let Some(output) = output {
        // What came before an error counts; the exit status tells the rest.
        let _ = output.take(MOST_BYTES).read_to_end(&mut bytes);
    }
    drop(done);
    let (status, late) =
        watchdog.join().map_err(|_| Failure::Command("the watchdog failed".to_owned()))?;
    let complaints = dialects::redact::line(complaints.join().unwrap_or_default().trim(), 200);
    if late {
        return Err(Failure::Command(format!("no end after {} s", LIMIT.as_secs())));
    }
    match status {
        Ok(status) if status.code() == Some(SSH_FAILED) => Err(Failure::Unreachable(complaints)),
        // A search that finds nothing fails too.
        Ok(_) => Ok(bytes),
        Err(error) => Err(Failure::Command(error.to_string())),
    }
}

/// Puts lines with their paths together as files.
fn add_lines(files: &mut BTreeMap<String, Vec<u8>>, bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some(end) = line.iter().position(|byte| *byte == 0) else { continue };
        let Ok(path) = std::str::from_utf8(&line[..end]) else { continue };
        if path.contains(char::is_control) {
            continue;
        }
        let file = files.entry(path.trim_start_matches('/').to_owned()).or_default();
        file.extend_from_slice(&line[end + 1..]);
        file.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_options_are_refused() {
        for host in ["-oProxyCommand=x", "", "a b", "a;b", "a\nb", "$(x)"] {
            assert!(check(host).is_err(), "{host}");
        }
        for host in ["gpu-a", "user@10.0.0.7", "[::1]", "fe80::1%eth0"] {
            assert!(check(host).is_ok(), "{host}");
        }
        assert!(log_command("journal:-x").is_err());
        assert_eq!(log_command("/a b'c").unwrap(), "tail -c 67108864 -- '/a b'\\''c'");
    }

    #[test]
    fn files_come_back_from_their_lines() {
        let mut files = BTreeMap::new();
        add_lines(&mut files, b"/etc/x.service\0[Service]\n/etc/x.service\0ExecStart=a\n/proc/7/cmdline\0vllm\0serve\0m\0\nno path\n");
        assert_eq!(files["etc/x.service"], b"[Service]\nExecStart=a\n");
        assert_eq!(files["proc/7/cmdline"], b"vllm\0serve\0m\0\n");
    }
}
