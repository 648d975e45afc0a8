//! Models by name: where their files are, fetched from the hub when they are not here yet.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Result;
use checkpoint::hub::{self, HubOptions, HubProgress};
use indicatif::{ProgressBar, ProgressStyle};

/// Where a model is: a local folder or file, or the folder of `org/name` from the hub's cache or the
/// hub.
pub(crate) fn path(name: &str, revision: Option<&str>) -> Result<PathBuf> {
    let mut options = HubOptions::from_env();
    if let Some(revision) = revision {
        options.revision = revision.to_owned();
    }
    let mut report = Report::default();
    let resolved = hub::resolve(name, &options, &mut |p| report.show(p))?;
    report.bar.finish_and_clear();
    if let Some(notice) = resolved.notice {
        tracing::warn!("{notice}");
    }
    Ok(resolved.folder)
}

/// A bar for each file on a terminal, a log line for each tenth elsewhere.
struct Report {
    bar: ProgressBar,
    file: String,
    tenths: u64,
}

impl Default for Report {
    fn default() -> Self {
        Self { bar: ProgressBar::hidden(), file: String::new(), tenths: 0 }
    }
}

impl Report {
    fn show(&mut self, progress: HubProgress<'_>) {
        let total = progress.total_bytes.unwrap_or(progress.done_bytes).max(1);
        if self.file != progress.file {
            self.file = progress.file.to_owned();
            self.tenths = 0;
            self.bar.finish_and_clear();
            if std::io::stderr().is_terminal() {
                let style = "{msg} {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
                self.bar = ProgressBar::new(total)
                    .with_message(self.file.clone())
                    .with_style(ProgressStyle::with_template(style).expect("a valid template"));
            }
        }
        self.bar.set_length(total);
        self.bar.set_position(progress.done_bytes);
        let tenths = progress.done_bytes * 10 / total;
        if self.bar.is_hidden() && tenths > self.tenths {
            self.tenths = tenths;
            tracing::info!("{}: {} % of {:.1} MB", self.file, tenths * 10, total as f64 / 1e6);
        }
    }
}
