//! `outrider fix` and `outrider validate`: put a report's fix in force, prove it, take it back.
//!
//! Without `--apply` a fix is only printed. What is applied is a drop-in beside the unit, or a restart command that the
//! caller gives; the unit itself is never edited, and the way back is kept.

mod interrupt;
mod manager;
mod source;
mod systemd;
mod validate;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use diagnose::fix::{Quoting, edited};

pub(crate) use source::LAST as LAST_EVIDENCE;
pub(crate) use validate::{ValidateFlags, run as validate};

use self::interrupt::Interrupt;
use self::manager::Manager;
use self::source::Source;

/// The fix is printed, applied or taken back; or it was proved.
const EXIT_OK: u8 = 0;
/// It does not hold: the configuration that was found is back.
const EXIT_ROLLED_BACK: u8 = 11;
/// There is nothing to do, or nothing could be decided.
const EXIT_UNDECIDED: u8 = 12;

/// Time that a server gets to start as it did before.
const USUAL_START: Duration = Duration::from_secs(600);

/// Which fix, and what restarts the server.
#[derive(Args, Clone)]
pub(crate) struct FixSource {
    /// Saved evidence of `diagnose --save`, or a report of `diagnose --json`
    /// [default: the last diagnosis of this host]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Address of the server [default: the one that was diagnosed]
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// The systemd unit that runs the server [default: the unit of the process that listens there]
    #[arg(long, value_name = "UNIT")]
    unit: Option<String>,

    /// The unit belongs to the user's own service manager
    #[arg(long)]
    user: bool,

    /// Without systemd: a shell command that stops the server and starts it again. `{args}` stands
    /// for the server's new arguments, quoted for the shell; OUTRIDER_COMMAND holds the whole command
    #[arg(long, value_name = "CMD", conflicts_with_all = ["unit", "user"])]
    restart_command: Option<String>,

    /// Most seconds until a restarted server answers
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    wait: u32,

    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Args, Clone)]
pub(crate) struct FixFlags {
    #[command(flatten)]
    source: FixSource,

    /// Put the fix in force and restart the server
    #[arg(long)]
    apply: bool,

    /// Take the fix back that was applied last, and restart the server
    #[arg(long, conflicts_with = "apply")]
    revert: bool,
}

pub(crate) fn run(flags: &FixFlags) -> ExitCode {
    crate::exit(try_run(flags))
}

fn try_run(flags: &FixFlags) -> Result<u8> {
    let options = &flags.source;
    if flags.revert {
        return revert(options);
    }
    let source = Source::read(options)?;
    let Some(fix) = &source.fix else {
        eprintln!("there is nothing to fix: {}", source.summary);
        return Ok(EXIT_UNDECIDED);
    };
    if fix.set.is_empty() && fix.unset.is_empty() {
        println!("no flag fixes this. What to do: {}", fix.actions.join("; "));
        return Ok(EXIT_UNDECIDED);
    }
    let manager = Manager::find(options, &source);
    if !flags.apply {
        print(&source, manager.as_ref().map_err(|error| format!("{error:#}")))?;
        return Ok(EXIT_OK);
    }
    let mut manager = manager?;
    if manager.is_on() {
        bail!(
            "the fix is in force already, through {manager}: `outrider fix --revert` takes it back"
        );
    }
    println!("{}\n{}", source.summary, manager.preview());
    confirm(options, &format!("write this and restart {manager}?"))?;
    let wait = Duration::from_secs(options.wait.into());
    // From here on Ctrl-C takes back what was begun.
    let interrupt = Interrupt::watch()?;
    match manager.put(true, wait, Some(&interrupt)).and_then(|()| source.holds()) {
        Ok(()) => {
            println!("in force, and the server answers. The way back: {}", manager.way_back());
            println!("`outrider validate` proves it with restarts and measurements");
            Ok(EXIT_OK)
        }
        Err(error) => {
            eprintln!("error: {error:#}; taking it back");
            // The server is known to start like this: it gets its usual time.
            manager.put(false, wait.max(USUAL_START), None)?;
            eprintln!("{manager} runs as before");
            Ok(EXIT_ROLLED_BACK)
        }
    }
}

fn revert(options: &FixSource) -> Result<u8> {
    let mut manager = Manager::recorded(options)?;
    if !manager.is_on() {
        eprintln!("no fix is in force through {manager}");
        return Ok(EXIT_UNDECIDED);
    }
    confirm(options, &format!("take the fix back and restart {manager}?"))?;
    manager.put(false, Duration::from_secs(options.wait.into()), None)?;
    println!("{manager} runs as before the fix");
    Ok(EXIT_OK)
}

/// Shows the change: the drop-in where a unit is known, else the command.
fn print(source: &Source, manager: Result<&Manager, String>) -> Result<()> {
    let mut out = source.summary.clone() + "\n";
    match manager {
        Ok(manager) => out += &manager.preview(),
        Err(reason) => {
            let fix = source.fix.as_ref().ok_or_else(|| anyhow!("no fix"))?;
            match &source.command {
                Some((place, line)) => {
                    match edited(&Quoting::Shell.split(line), fix, Quoting::Shell) {
                        Ok(words) => {
                            let words: Vec<&str> =
                                words.iter().map(|word| word.raw.as_str()).collect();
                            out +=
                                &format!("the command of {place} becomes\n  {}\n", words.join(" "));
                        }
                        Err(error) => {
                            out += &format!("{}\n({place}: {error})\n", fix.command_line())
                        }
                    }
                }
                None => out += &format!("flags: {}\n", fix.command_line()),
            }
            out += &format!("--apply is not possible here: {reason}\n");
        }
    }
    if let Some(predicted) = &source.predicted {
        out += &format!("predicted: {predicted}\n");
    }
    crate::probe::print(&out)
}

/// Asks on a terminal; elsewhere only `--yes` is a yes.
fn confirm(options: &FixSource, question: &str) -> Result<()> {
    if options.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        bail!("{question} There is no terminal to ask on: --yes says so");
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { bail!("nothing was changed") }
}
