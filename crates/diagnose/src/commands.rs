//! The entry points of the subcommands `logs`, `configs`, `diff` and `diagnose`: arguments in, rendered output out.
//!
//! Each returns the exit code. Nothing is changed on the host; files are written only where an argument names them.

use std::io::Write;
use std::path::{Path, PathBuf};

use dialects::unit::Unit;
use dialects::{Config, compose, find_commands, info};

use crate::collect;
use crate::configs;
use crate::evidence::{Evidence, Side};
use crate::logs::{self, Shown};
use crate::{Error, render, report};

/// Exit code: nothing got worse, or the command did its work.
pub const EXIT_OK: u8 = 0;
/// Exit code: something got worse and is explained.
pub const EXIT_EXPLAINED: u8 = 10;
/// Exit code: something got worse and nothing found explains it.
pub const EXIT_UNEXPLAINED: u8 = 11;
/// Exit code: the evidence does not suffice.
pub const EXIT_INCONCLUSIVE: u8 = 12;
/// Exit code: the command itself failed; what a caller returns for an [`Error`].
pub const EXIT_ERROR: u8 = 2;

/// Arguments of `outrider logs`.
#[derive(Clone, Debug, Default)]
pub struct LogsArgs {
    /// The log files.
    pub files: Vec<PathBuf>,
    /// JSON instead of text.
    pub json: bool,
    /// Every window, none merged and none left out.
    pub all: bool,
    /// Lines of bars instead of the table.
    pub plot: bool,
}

/// Reads logs and shows what the server did.
///
/// # Errors
/// When a file cannot be read or the output cannot be written.
pub fn logs(args: &LogsArgs, out: &mut dyn Write) -> Result<u8, Error> {
    let mut documents = Vec::new();
    for file in &args.files {
        let path = file.display().to_string();
        let summary = logs::read_file(file).map_err(|error| Error::io(path.clone(), error))?;
        if args.json {
            documents.push(logs::render_json(&path, &summary));
        } else {
            write!(
                out,
                "{}",
                logs::render_text(&path, &summary, Shown { all: args.all, plot: args.plot })
            )?;
        }
    }
    if args.json {
        // One log is one document; several are a list.
        let document = if documents.len() == 1 { documents.remove(0) } else { documents.into() };
        writeln!(out, "{document:#}")?;
    }
    Ok(EXIT_OK)
}

/// Arguments of `outrider configs`.
#[derive(Clone, Debug, Default)]
pub struct ConfigsArgs {
    /// A folder laid out like a host; without it the running host.
    pub from_dir: Option<PathBuf>,
    /// Another host, through the user's own ssh.
    pub ssh: Option<String>,
    /// Leave out what is older than this many days; what has no date stays.
    pub since_days: Option<u32>,
    /// JSON instead of text.
    pub json: bool,
}

/// Lists every configuration that a host remembers.
///
/// # Errors
/// When the folder cannot be read or the output cannot be written.
pub fn configs(args: &ConfigsArgs, out: &mut dyn Write) -> Result<u8, Error> {
    let mut dug = match &args.ssh {
        Some(host) => dug(collect::ssh::from_host(host, &[])?),
        None => dig(args.from_dir.as_deref())?,
    };
    if let Some(days) = args.since_days {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0.0, |d| d.as_secs_f64());
        let oldest = now - f64::from(days) * 86_400.0;
        dug.found.retain(|found| found.time.is_none_or(|time| time >= oldest));
        dug.edits.retain(|edit| edit.time.is_none_or(|time| time >= oldest));
    }
    if args.json {
        writeln!(out, "{:#}", configs::render_json(&dug))?;
    } else {
        write!(out, "{}", configs::render_text(&dug))?;
    }
    Ok(EXIT_OK)
}

/// Everything found, log headers, launch records and endpoints included.
fn dig(from_dir: Option<&Path>) -> Result<configs::Dug, Error> {
    let evidence = match from_dir {
        Some(folder) => collect::from_folder(folder)?,
        None => collect::from_host(),
    };
    Ok(dug(evidence))
}

fn dug(evidence: Evidence) -> configs::Dug {
    let mut found = evidence.configs;
    found.sort_by_key(|found| found.origin);
    configs::Dug { found, edits: evidence.edits, gaps: evidence.gaps }
}

/// Arguments of `outrider diff`.
#[derive(Clone, Debug, Default)]
pub struct DiffArgs {
    /// The first configuration: `#3` of the list, a file, or a command line.
    pub a: String,
    /// The second.
    pub b: String,
    /// The folder of the list; without it the running host.
    pub from_dir: Option<PathBuf>,
    /// JSON instead of text.
    pub json: bool,
}

/// Lays two configurations side by side.
///
/// # Errors
/// When a name means no configuration, a file cannot be read, or the output cannot be written.
pub fn diff(args: &DiffArgs, out: &mut dyn Write) -> Result<u8, Error> {
    let a = config_named(&args.a, args.from_dir.as_deref())?;
    let b = config_named(&args.b, args.from_dir.as_deref())?;
    let (a, b) = ((a.0.as_str(), &a.1), (b.0.as_str(), &b.1));
    if args.json {
        writeln!(out, "{:#}", configs::render_diff_json(a, b))?;
    } else {
        write!(out, "{}", configs::render_diff(a, b))?;
    }
    Ok(EXIT_OK)
}

/// What a name on the command line means: a number of the list, a file of any kind that holds a configuration, or a
/// command line.
fn config_named(name: &str, from_dir: Option<&Path>) -> Result<(String, Config), Error> {
    let nothing =
        || Error::Unknown(format!("{}: no configuration", dialects::redact::line(name, 80)));
    if let Some(number) = name.strip_prefix('#').and_then(|n| n.parse::<usize>().ok()) {
        let dug = dig(from_dir)?;
        let found = number.checked_sub(1).and_then(|i| dug.found.get(i)).ok_or_else(nothing)?;
        return Ok((found.place(), found.config.clone()));
    }
    if name.contains(' ')
        && let Some(command) = find_commands(name, &|_| None).into_iter().next()
    {
        return Ok(("command line".to_owned(), command.config));
    }
    let path = Path::new(name);
    if !path.is_file() {
        return Err(nothing());
    }
    // A file that the archaeology knows is read with its drop-ins and environment files.
    let root = from_dir.unwrap_or(Path::new("/"));
    if let Some(inside) = path.strip_prefix(root).ok().and_then(Path::to_str)
        && let Some(found) = dig(from_dir)?.found.into_iter().find(|found| found.path == inside)
    {
        return Ok((name.to_owned(), found.config));
    }
    file_config(path)?.map(|config| (name.to_owned(), config)).ok_or_else(nothing)
}

/// The configuration in a file that stands alone.
fn file_config(path: &Path) -> Result<Option<Config>, Error> {
    let shown = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| Error::io(shown.clone(), error))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if let Some(info) = info::parse(&text) {
        return Ok(Some(info.config));
    }
    if let Some((found, _)) =
        collect::launch::parse(&text, &shown, Side::Open).into_iter().next_back()
    {
        return Ok(Some(found.config));
    }
    if let Some(config) = logs::read_text(&text).runs.iter().rev().find_map(logs::Run::config) {
        return Ok(Some(config));
    }
    let mut unit = Unit::default();
    unit.apply(&text);
    let in_unit = unit.commands(&[], "").into_iter().map(|(_, command)| command);
    let in_yaml = compose::from_yaml(&text).into_iter().map(|service| service.command);
    let in_text = find_commands(&text.replace('\0', " "), &|_| None);
    Ok(in_unit.chain(in_yaml).chain(in_text).next().map(|command| command.config))
}

/// Arguments of `outrider diagnose`.
#[derive(Clone, Debug, Default)]
pub struct DiagnoseArgs {
    /// A folder laid out like a host, or a case; without it the running host.
    pub from_dir: Option<PathBuf>,
    /// Saved evidence, judged again instead of collecting any.
    pub evidence: Option<PathBuf>,
    /// Logs to read besides, as logs of now.
    pub logs: Vec<PathBuf>,
    /// What the operator says.
    pub complaint: Option<String>,
    /// What the caller collected itself, instead of the running host or besides what else is named here.
    pub collected: Option<Evidence>,
    /// JSON instead of text.
    pub json: bool,
    /// A file for the HTML report.
    pub html: Option<PathBuf>,
    /// A file for the Markdown report.
    pub markdown: Option<PathBuf>,
    /// A file for the evidence, so that it can be judged again.
    pub save_evidence: Option<PathBuf>,
}

/// Diagnoses; the exit code is that of the verdict.
///
/// # Errors
/// When something named cannot be read or written.
pub fn diagnose(args: &DiagnoseArgs, out: &mut dyn Write) -> Result<u8, Error> {
    let evidence = gather(args)?;
    if let Some(path) = &args.save_evidence {
        let saved = evidence.to_json().map_err(|error| Error::Evidence(error.to_string()))?;
        save(path, &saved)?;
    }
    let report = report::build(&evidence);
    if let Some(path) = &args.html {
        save(path, &render::html(&report))?;
    }
    if let Some(path) = &args.markdown {
        save(path, &render::markdown(&report))?;
    }
    if args.json {
        writeln!(out, "{:#}", render::json(&report))?;
    } else {
        write!(out, "{}", render::text(&report))?;
    }
    Ok(report.exit_code)
}

/// Reads saved evidence.
///
/// # Errors
/// When the file cannot be read or holds something else.
pub fn read_evidence(path: &Path) -> Result<Evidence, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::io(path.display().to_string(), error))?;
    Evidence::from_json(&text)
}

fn gather(args: &DiagnoseArgs) -> Result<Evidence, Error> {
    let mut evidence = match (&args.evidence, &args.from_dir, &args.collected) {
        (Some(path), _, _) => read_evidence(path)?,
        (None, Some(folder), _) => collect::from_folder(folder)?,
        (None, None, Some(_)) => Evidence::new(),
        (None, None, None) => collect::from_host(),
    };
    if let Some(collected) = &args.collected {
        evidence.merge(collected.clone());
    }
    for log in &args.logs {
        collect::add_log(&mut evidence, log)?;
    }
    if let Some(complaint) = &args.complaint {
        evidence.complaint = Some(dialects::redact::line(complaint, 400));
    }
    Ok(evidence)
}

fn save(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|error| Error::io(path.display().to_string(), error))
}
