//! What is to be fixed: from saved evidence, from a report, or from the last diagnosis of this host.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use diagnose::collect::{self, process};
use diagnose::evidence::{Evidence, Side};
use diagnose::finding::Fix;
use diagnose::{commands, report};
use dialects::{Config, Engine, Key, effective};
use serde_json::Value;

use super::FixSource;
use crate::live::{self, Asker};

/// File in the state folder with the evidence of the last diagnosis of this host.
pub(crate) const LAST: &str = "last-evidence.json";

/// A fix and everything needed to put it in force.
pub(crate) struct Source {
    pub(crate) engine: Engine,
    /// The verdict in one line.
    pub(crate) summary: String,
    pub(crate) fix: Option<Fix>,
    pub(crate) predicted: Option<String>,
    /// The quantity by which the loss is felt.
    pub(crate) symptom: Option<String>,
    pub(crate) url: Option<String>,
    /// Where the command that runs now was found, and the command, redacted.
    pub(crate) command: Option<(String, String)>,
    pub(crate) evidence: Option<Evidence>,
}

impl Source {
    pub(crate) fn read(options: &FixSource) -> Result<Source> {
        let mut source = match &options.file {
            Some(path) => Source::from_file(path)?,
            None => {
                let state = crate::ledger::state_folder().ok_or_else(|| {
                    anyhow!("neither XDG_STATE_HOME nor HOME is set: name a FILE")
                })?;
                let path = state.join(LAST);
                if !path.exists() {
                    bail!("nothing was diagnosed on this host yet: run `outrider diagnose URL`");
                }
                Source::from_evidence(commands::read_evidence(&path)?)
            }
        };
        source.url = options.url.clone().or(source.url);
        Ok(source)
    }

    fn from_file(path: &Path) -> Result<Source> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let json: Value =
            serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))?;
        match json["schema"].as_str() {
            Some("report/1") => Source::from_report(&json),
            Some(_) => Ok(Source::from_evidence(Evidence::from_json(&text)?)),
            None => bail!("{shown} is neither evidence nor a report of `outrider diagnose`"),
        }
    }

    fn from_evidence(evidence: Evidence) -> Source {
        let report = report::build(&evidence);
        let now = evidence.configs.iter().filter(|found| found.origin.is_current());
        let best = now
            .filter(|found| found.side != Side::Before && found.command.is_some())
            .min_by_key(|found| (found.side != Side::Now, found.origin));
        Source {
            engine: report.engine,
            summary: report.summary.clone(),
            fix: report.fix.clone().filter(|_| report.has_cause),
            predicted: report.predicted.as_ref().map(|p| {
                format!("{} {:.1} to {:.1} ({})", p.metric, p.range.lo, p.range.hi, p.basis)
            }),
            symptom: report.symptom.map(str::to_owned),
            url: evidence.target.clone(),
            command: best.and_then(|found| Some((found.place(), found.command.clone()?))),
            evidence: Some(evidence),
        }
    }

    fn from_report(json: &Value) -> Result<Source> {
        let text = |key: &str| json[key].as_str().map(str::to_owned);
        let engine = text("engine").as_deref().and_then(Engine::from_name);
        let words = |list: &Value| -> Vec<String> {
            list.as_array()
                .into_iter()
                .flatten()
                .filter_map(|w| w.as_str().map(str::to_owned))
                .collect()
        };
        let fix = json["fix"].as_object().map(|fix| Fix {
            set: fix["set"]
                .as_object()
                .into_iter()
                .flatten()
                .filter_map(|(flag, value)| Some((flag.clone(), value.as_str()?.to_owned())))
                .collect(),
            unset: words(&fix["unset"]),
            actions: words(&fix["actions"]),
            restart: true,
            ..Fix::default()
        });
        Ok(Source {
            engine: engine.ok_or_else(|| anyhow!("the report names no engine that is known"))?,
            summary: text("summary").unwrap_or_default(),
            fix: fix.filter(|_| !json["primary"].is_null()),
            predicted: (!json["predicted"].is_null()).then(|| json["predicted"].to_string()),
            symptom: text("symptom_metric"),
            url: text("target"),
            command: None,
            // A report does not tell which units there are; this host does.
            evidence: Some(collect::from_host()),
        })
    }

    /// The process that listens at the address.
    pub(crate) fn pid(&self) -> Option<u32> {
        let url = live::base(self.url.as_deref()?).ok()?;
        process::listening(url.port_or_known_default()?).pid
    }

    /// Whether the running server says that it runs with the fix; one that says nothing is believed.
    pub(crate) fn holds(&self) -> Result<()> {
        let (Some(url), Some(fix)) = (&self.url, &self.fix) else { return Ok(()) };
        let answers = Asker::new(&live::base(url)?, std::env::var("OUTRIDER_API_KEY").ok())?.ask();
        let Some(info) = answers.iter().find_map(|(_, text)| dialects::info::parse(text)) else {
            return Ok(());
        };
        for (flag, value) in fix.set.iter().filter(|(_, value)| !value.is_empty()) {
            let mut wanted = Config::new(info.config.engine);
            wanted.set_flag(flag, Some(value));
            for (key, setting) in &wanted.settings {
                let Key::Known(factor) = key else { continue };
                let holds = effective::get(&info.config, *factor);
                if let Some(holds) = holds.filter(|holds| *holds != setting.value) {
                    bail!(
                        "the restarted server runs with {factor} {holds}, not {value}: the change did not reach it"
                    );
                }
            }
        }
        Ok(())
    }
}
