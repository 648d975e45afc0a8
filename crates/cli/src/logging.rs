//! The log: SGLang's form, `[2026-11-30 12:00:00] message`, on standard error.

use std::fmt;
use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use telemetry::log_line;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Starts the log at a level: error, warn, info, debug or trace.
pub(crate) fn start(level: &str) -> Result<()> {
    let level: LevelFilter = level
        .parse()
        .map_err(|_| anyhow!("--log-level {level}: use error, warn, info, debug or trace"))?;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .event_format(Stamped)
        .try_init()
        .map_err(|error| anyhow!("the log cannot start: {error}"))
}

/// Prints a line that is already stamped, such as the telemetry thread's.
pub(crate) fn print(line: &str) {
    if tracing::enabled!(Level::INFO) {
        eprintln!("{line}");
    }
}

/// Now, in seconds since the Unix epoch.
pub(crate) fn now_unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Time and message; a level word only where it is not plain information.
struct Stamped;

impl<S, N> FormatEvent<S, N> for Stamped
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "{}", log_line::stamped(now_unix_s(), ""))?;
        let level = *event.metadata().level();
        if level != Level::INFO {
            write!(writer, "{level}: ")?;
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
