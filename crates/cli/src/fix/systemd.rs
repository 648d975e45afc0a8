//! Units through `systemctl`: what is in force, and a restart.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use diagnose::fix::DROP_IN;
use dialects::unit::Unit;
use std::os::unix::process::CommandExt;

/// A unit as systemd has loaded it.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) user: bool,
    pub(crate) fragment: PathBuf,
    pub(crate) main_pid: Option<u32>,
    /// What is in force without the drop-in of a fix.
    pub(crate) unit: Unit,
    /// Where that drop-in is, or would be.
    pub(crate) drop_in: PathBuf,
}

/// Runs `systemctl`; its own process group keeps it from a Ctrl-C that is meant for this program.
pub(crate) fn systemctl(user: bool, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("systemctl");
    if user {
        command.arg("--user");
    }
    let output = command
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .context("cannot run systemctl; without systemd use --restart-command")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let error = dialects::redact::line(error.trim(), 300);
        bail!("systemctl {}: {error} ({})", arguments.join(" "), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Loaded {
    /// Asks systemd about a unit.
    pub(crate) fn read(name: &str, user: bool) -> Result<Loaded> {
        let name = if name.contains('.') { name.to_owned() } else { format!("{name}.service") };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:\\".contains(c);
        if name.starts_with('-') || !name.chars().all(plain) {
            bail!("{name:?} is not the name of a unit");
        }
        let properties = "--property=LoadState,FragmentPath,DropInPaths,MainPID";
        let told = systemctl(user, &["show", properties, &name])?;
        let get = |key: &str| {
            told.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or("")
        };
        if get("LoadState") != "loaded" {
            bail!(
                "systemd has no unit {name} ({}); for a user's own unit use --user",
                get("LoadState")
            );
        }
        let fragment = PathBuf::from(get("FragmentPath"));
        let drop_in = folder(&fragment, user)?.join(format!("{name}.d")).join(DROP_IN);
        let mut unit = Unit::default();
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        unit.apply(&read(&fragment)?);
        for path in get("DropInPaths").split_whitespace().map(Path::new).filter(|p| **p != *drop_in)
        {
            let text = read(path)?;
            let later = path.file_name().is_some_and(|file| file > DROP_IN);
            if later && text.contains("ExecStart") {
                bail!(
                    "{} sorts after {DROP_IN} and sets ExecStart: change the flags there",
                    path.display()
                );
            }
            unit.apply(&text);
        }
        let main_pid = get("MainPID").parse().ok().filter(|pid| *pid != 0);
        Ok(Loaded { name, user, fragment, main_pid, unit, drop_in })
    }

    /// Loads the files again and restarts the unit.
    pub(crate) fn restart(&self) -> Result<()> {
        systemctl(self.user, &["daemon-reload"])?;
        systemctl(self.user, &["restart", &self.name]).map(drop)
    }

    /// Whether systemd has given the unit up.
    pub(crate) fn has_failed(&self) -> bool {
        systemctl(self.user, &["is-failed", &self.name]).is_ok_and(|told| told.trim() == "failed")
    }
}

/// Where drop-ins belong: beside a unit that somebody wrote, not beside one that a package owns.
fn folder(fragment: &Path, user: bool) -> Result<PathBuf> {
    let owned = ["/usr/lib", "/lib", "/run"].iter().any(|root| fragment.starts_with(root));
    if !owned {
        return fragment
            .parent()
            .map(Path::to_owned)
            .ok_or_else(|| anyhow!("the unit has no file"));
    }
    if !user {
        return Ok(PathBuf::from("/etc/systemd/system"));
    }
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    Ok(config.ok_or_else(|| anyhow!("HOME is not set"))?.join("systemd/user"))
}
