//! What stops and starts the server: systemd, or a command that the caller gives.

use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use diagnose::collect::process;
use diagnose::configs::Origin;
use diagnose::finding::Fix;
use diagnose::fix::{Quoting, Word, drop_in, edited, inverse};
use serde::{Deserialize, Serialize};

use super::FixSource;
use super::interrupt::Interrupt;
use super::source::Source;
use super::systemd::Loaded;
use crate::live::{self, Asker};

/// File in the state folder that says what was applied and how it is taken back.
const RECORD: &str = "fix.json";
/// Time between two looks at a server that starts.
const POLL: Duration = Duration::from_millis(200);

/// Flags to set, and flags to take away.
type Back = (Vec<(String, String)>, Vec<String>);

/// What was applied. It holds no secret: a drop-in is named and not copied, a command is told by its changed flags.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    url: Option<String>,
    unit: Option<(String, bool)>,
    drop_in: Option<PathBuf>,
    command: Option<String>,
    /// Flags to set and to take away on the way back.
    back: Option<Back>,
}

/// The way to put a fix in force and to take it back.
pub(crate) struct Manager {
    kind: Kind,
    url: Option<String>,
}

enum Kind {
    Systemd { loaded: Box<Loaded>, text: String },
    Command { template: String, on: Vec<String>, off: Vec<String>, is_on: bool, back: Fix },
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Systemd { loaded, .. } if loaded.user => {
                write!(f, "the user's unit {}", loaded.name)
            }
            Kind::Systemd { loaded, .. } => write!(f, "the unit {}", loaded.name),
            Kind::Command { .. } => f.write_str("the server through --restart-command"),
        }
    }
}

impl Manager {
    /// Finds what runs the server and prepares the change.
    pub(crate) fn find(options: &FixSource, source: &Source) -> Result<Manager> {
        let fix = source.fix.as_ref().ok_or_else(|| anyhow!("the report has no fix"))?;
        let url = source.url.clone();
        if let Some(template) = &options.restart_command {
            return Manager::of_command(template, fix, source);
        }
        let pid = source.pid();
        let (name, user) = match &options.unit {
            Some(name) => (name.clone(), options.user),
            None => unit_of(source, pid)?,
        };
        let loaded = Loaded::read(&name, user)?;
        if let (Some(main), Some(pid)) = (loaded.main_pid, pid)
            && main != pid
            && process::unit_of(pid).is_some_and(|(unit, _)| unit != loaded.name)
        {
            bail!(
                "the process {pid} that listens at {} belongs to another unit",
                url.unwrap_or_default()
            );
        }
        let why = source.summary.clone();
        let text = drop_in(&loaded.unit, fix, &why)
            .map_err(|error| anyhow!("{}: {error}", loaded.fragment.display()))?;
        Ok(Manager { kind: Kind::Systemd { loaded: Box::new(loaded), text }, url })
    }

    fn of_command(template: &str, fix: &Fix, source: &Source) -> Result<Manager> {
        let (argv, url) = running(source.url.as_deref())?;
        let recorded = read_record().filter(|record| record.url == source.url);
        let earlier = recorded.and_then(|record| record.back).map(|(set, unset)| Fix {
            set,
            unset,
            ..Fix::default()
        });
        let on = change(&argv, fix)?;
        let is_on = on == argv;
        let (off, back) = match earlier.filter(|_| is_on) {
            Some(back) => (change(&argv, &back)?, back),
            None => (argv.clone(), inverse(&argv, fix)),
        };
        let kind = Kind::Command { template: template.to_owned(), on, off, is_on, back };
        Ok(Manager { kind, url: Some(url) })
    }

    /// What the record says was applied last.
    pub(crate) fn recorded(options: &FixSource) -> Result<Manager> {
        let record = read_record().ok_or_else(|| {
            anyhow!("no fix was applied through this program: there is nothing to take back")
        })?;
        let url = options.url.clone().or(record.url);
        if let Some((name, user)) = record.unit {
            let loaded = Box::new(Loaded::read(&name, user)?);
            let text = std::fs::read_to_string(&loaded.drop_in).unwrap_or_default();
            return Ok(Manager { kind: Kind::Systemd { loaded, text }, url });
        }
        let template = options.restart_command.clone().or(record.command);
        let template =
            template.ok_or_else(|| anyhow!("--restart-command is needed to restart the server"))?;
        let (set, unset) = record.back.ok_or_else(|| anyhow!("the record holds no way back"))?;
        let back = Fix { set, unset, ..Fix::default() };
        let (argv, url) = running(url.as_deref())?;
        let off = change(&argv, &back)?;
        let is_on = off != argv;
        let kind = Kind::Command { template, on: argv, off, is_on, back };
        Ok(Manager { kind, url: Some(url) })
    }

    /// Whether the fix is in force.
    pub(crate) fn is_on(&self) -> bool {
        match &self.kind {
            Kind::Systemd { loaded, .. } => loaded.drop_in.exists(),
            Kind::Command { is_on, .. } => *is_on,
        }
    }

    /// The change as people read it, without secrets.
    pub(crate) fn preview(&self) -> String {
        match &self.kind {
            Kind::Systemd { loaded, text } => {
                let mut out = format!("{} would be\n", loaded.drop_in.display());
                for line in text.lines() {
                    let shown = match line.strip_prefix("ExecStart=") {
                        Some(command) if !command.is_empty() => {
                            format!("ExecStart={}", hidden(&Quoting::Systemd.split(command)))
                        }
                        _ => dialects::redact::text(line),
                    };
                    out += &format!("  {shown}\n");
                }
                out
            }
            Kind::Command { on, .. } => {
                let words: Vec<Word> =
                    on.iter().map(|word| Word { raw: quoted(word), value: word.clone() }).collect();
                format!("the command would be\n  {}\n", hidden(&words))
            }
        }
    }

    /// The command that takes the fix back.
    pub(crate) fn way_back(&self) -> String {
        match &self.kind {
            Kind::Systemd { loaded, .. } => {
                let user = if loaded.user { " --user" } else { "" };
                format!(
                    "`outrider fix --revert`, or: rm {} && systemctl{user} daemon-reload && systemctl{user} restart {}",
                    loaded.drop_in.display(),
                    loaded.name
                )
            }
            Kind::Command { .. } => "`outrider fix --revert`".to_owned(),
        }
    }

    /// Puts the fix in force or takes it back, restarts, and waits until the server answers or somebody wants an end.
    pub(crate) fn put(
        &mut self,
        on: bool,
        wait: Duration,
        interrupt: Option<&Interrupt>,
    ) -> Result<()> {
        let record = self.record();
        match &mut self.kind {
            Kind::Systemd { loaded, text } => {
                let path = &loaded.drop_in;
                let refused = |action: &str| {
                    format!("cannot {action} {}: run this as who may write there", path.display())
                };
                if on {
                    let folder =
                        path.parent().ok_or_else(|| anyhow!("the drop-in has no folder"))?;
                    std::fs::create_dir_all(folder)
                        .with_context(|| refused("make the folder of"))?;
                    std::fs::write(path, text.as_bytes()).with_context(|| refused("write"))?;
                    write_record(&record)?;
                } else if path.exists() {
                    std::fs::remove_file(path).with_context(|| refused("remove"))?;
                }
                loaded.restart()?;
            }
            Kind::Command { template, on: fixed, off, is_on, .. } => {
                if on {
                    write_record(&record)?;
                }
                restart(template, if on { fixed } else { off })?;
                *is_on = on;
            }
        }
        self.wait(wait, interrupt)
    }

    /// Waits until the server is healthy.
    fn wait(&self, wait: Duration, interrupt: Option<&Interrupt>) -> Result<()> {
        let Some(url) = &self.url else { return Ok(()) };
        let asker = Asker::new(&live::base(url)?, std::env::var("OUTRIDER_API_KEY").ok())?;
        let begin = Instant::now();
        while begin.elapsed() < wait {
            if asker.is_healthy() {
                return Ok(());
            }
            if interrupt.is_some_and(Interrupt::is_asked) {
                bail!("interrupted");
            }
            if let Kind::Systemd { loaded, .. } = &self.kind
                && loaded.has_failed()
            {
                bail!("{self} failed to start: see journalctl -u {}", loaded.name);
            }
            std::thread::sleep(POLL);
        }
        bail!("the server does not answer at {url} after {} s", wait.as_secs())
    }

    fn record(&self) -> Record {
        let url = self.url.clone();
        match &self.kind {
            Kind::Systemd { loaded, .. } => Record {
                url,
                unit: Some((loaded.name.clone(), loaded.user)),
                drop_in: Some(loaded.drop_in.clone()),
                command: None,
                back: None,
            },
            Kind::Command { template, back, .. } => Record {
                url,
                unit: None,
                drop_in: None,
                command: Some(template.clone()),
                back: Some((back.set.clone(), back.unset.clone())),
            },
        }
    }
}

/// The unit of the process, else the only unit that the evidence has for this server.
fn unit_of(source: &Source, pid: Option<u32>) -> Result<(String, bool)> {
    let mut units: Vec<(String, bool)> = Vec::new();
    for found in source.evidence.iter().flat_map(|evidence| &evidence.configs) {
        if found.origin == Origin::Unit && found.config.engine == source.engine {
            let user = found.path.contains("systemd/user/");
            if !units.contains(&(found.name.clone(), user)) {
                units.push((found.name.clone(), user));
            }
        }
    }
    if let Some(pid) = pid {
        let runs = |(name, user): &&(String, bool)| {
            Loaded::read(name, *user).is_ok_and(|loaded| loaded.main_pid == Some(pid))
        };
        if let Some(unit) = units.iter().find(runs) {
            return Ok(unit.clone());
        }
        if let Some(unit) = process::unit_of(pid) {
            return Ok(unit);
        }
    }
    let names: Vec<&str> = units.iter().map(|(name, _)| name.as_str()).collect();
    match &units[..] {
        [unit] if pid.is_none() => Ok(unit.clone()),
        _ => bail!(
            "cannot tell which unit runs the server (found: {}): name it with --unit UNIT, or give --restart-command CMD",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        ),
    }
}

/// The words of the process that listens, and the address.
fn running(url: Option<&str>) -> Result<(Vec<String>, String)> {
    let url = url.ok_or_else(|| anyhow!("the address of the server is not known: --url URL"))?;
    let port = live::base(url)?.port_or_known_default().unwrap_or(80);
    let argv = process::listening(port).pid.and_then(process::argv);
    let argv =
        argv.ok_or_else(|| anyhow!("no process of this user listens on port {port} of this host"))?;
    Ok((argv, url.to_owned()))
}

fn change(argv: &[String], fix: &Fix) -> Result<Vec<String>> {
    let words: Vec<Word> =
        argv.iter().map(|word| Word { raw: word.clone(), value: word.clone() }).collect();
    // A word of a process is no shell text: only its value counts.
    let changed = edited(&words, fix, Quoting::Systemd).map_err(|error| anyhow!(error))?;
    Ok(changed.into_iter().map(|word| word.value).collect())
}

fn quoted(word: &str) -> String {
    Quoting::Shell.quote(word).map_or_else(|_| "?".to_owned(), |word| word.raw)
}

/// A command without secrets.
fn hidden(words: &[Word]) -> String {
    let values: Vec<String> = words.iter().map(|word| word.value.clone()).collect();
    let shown = dialects::command::redacted(&values);
    let word = |(word, shown): (&Word, &String)| {
        if *shown == word.value { word.raw.clone() } else { shown.clone() }
    };
    words.iter().zip(&shown).map(word).collect::<Vec<_>>().join(" ")
}

/// Runs the caller's command with the arguments in their place.
fn restart(template: &str, argv: &[String]) -> Result<()> {
    let line = |words: &[String]| words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ");
    let script = template.replace("{args}", &line(&argv[1..]));
    let status = Command::new("sh")
        .args(["-c", &script])
        .env("OUTRIDER_COMMAND", line(argv))
        .stdin(Stdio::null())
        // Standard output is the report's alone.
        .stdout(std::io::stderr())
        .process_group(0)
        .status()
        .context("cannot run sh")?;
    if status.success() { Ok(()) } else { bail!("--restart-command failed: {status}") }
}

fn record_path() -> Result<PathBuf> {
    let state = crate::ledger::state_folder();
    Ok(state
        .ok_or_else(|| {
            anyhow!("neither XDG_STATE_HOME nor HOME is set: no place for the way back")
        })?
        .join(RECORD))
}

fn read_record() -> Option<Record> {
    serde_json::from_str(&std::fs::read_to_string(record_path().ok()?).ok()?).ok()
}

/// Without a kept way back nothing is applied.
fn write_record(record: &Record) -> Result<()> {
    let path = record_path()?;
    let write = || {
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        std::fs::write(&path, serde_json::to_vec_pretty(record)?)
    };
    write().with_context(|| format!("cannot keep the way back in {}", path.display()))
}
