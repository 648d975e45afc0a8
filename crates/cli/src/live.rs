//! A running server: asked, probed, and its host searched, for `outrider diagnose URL`.
//!
//! Everything only reads. What does not answer is a stated gap in the report.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bench::baseline::{Entry, Store};
use bench::observe::log_tail::LogSource;
use bench::probe::{ProbeArgs, ProbeError};
use clap::Args;
use diagnose::collect::live::{self, Answers, ENDPOINTS};
use diagnose::collect::{self, process};
use diagnose::evidence::{Evidence, Side};
use dialects::info::StepTimes;
use reqwest::{Client, Url};
use serde_json::json;

use crate::{baseline, ledger, probe};

/// Longest wait for an endpoint.
const ANSWER: Duration = Duration::from_secs(5);
/// Most bytes of an answer that are read.
const MOST_BYTES: usize = 16 << 20;
/// How long a server that is not probed is watched, so that its counters tell something.
const WATCHED: Duration = Duration::from_secs(3);
/// Longest time that a journal or a container may take to tell its log.
const LOG_LIMIT: Duration = Duration::from_secs(60);
/// Lines of a journal or of a container's log that are read.
const LOG_LINES: &str = "200000";

/// How much a running server is asked for.
#[derive(Args, Clone)]
pub(crate) struct ProbeBounds {
    /// Probe although others use the server
    #[arg(long)]
    pub(crate) force: bool,

    /// Most requests of a probe
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,

    /// Most seconds of a probe
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,

    /// Key for a server that asks for one
    #[arg(long, value_name = "KEY", env = "OUTRIDER_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

/// How a running server is measured, and with what it is compared.
#[derive(Args, Clone)]
pub(crate) struct LiveFlags {
    #[command(flatten)]
    pub(crate) bounds: ProbeBounds,

    /// Baseline to compare with [default: the last one of this server that differs from now]
    #[arg(long, value_name = "NAME", requires = "url")]
    baseline: Option<String>,

    /// Folder of the baselines [default: outrider/baselines in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR", requires = "url")]
    baselines: Option<PathBuf>,
}

/// What to collect of which server.
pub(crate) struct Order<'a> {
    pub(crate) url: &'a str,
    pub(crate) flags: &'a LiveFlags,
    pub(crate) logs: &'a [LogSource],
    /// Whether requests may be sent.
    pub(crate) probe: bool,
    /// What the server's host remembers, where it was already collected from elsewhere.
    pub(crate) host: Option<Evidence>,
}

/// Collects from a running server and its host.
pub(crate) fn collect(mut order: Order<'_>) -> Result<Evidence> {
    let url = base(order.url)?;
    let port = url.port_or_known_default().unwrap_or(80);
    let asker = Asker::new(&url, order.flags.bounds.api_key.clone())?;
    let (begin, before) = (Instant::now(), asker.ask());
    if before.is_empty() {
        bail!("nobody answers at {url}: no endpoint of a server is there");
    }
    let local = is_local(&url);
    let mut evidence = match order.host.take() {
        Some(host) => host,
        None if local => collect::from_host(),
        None => {
            let mut evidence = Evidence::new();
            let gap = "the server runs on another host: --ssh HOST looks for its configurations";
            evidence.gaps.push(gap.to_owned());
            evidence
        }
    };
    evidence.target = Some(dialects::redact::text(url.as_str().trim_end_matches('/')));
    let mut target = live::Target { port, ..live::Target::default() };
    if local {
        target = process::listening(port);
    }
    live::focus(&mut evidence, &target);

    let saved = saved(&order, &url, &before, &mut evidence);
    let mut steps = None;
    if order.probe {
        steps = measure(&order, &url, saved.as_ref(), &mut evidence)?;
    } else {
        std::thread::sleep(WATCHED);
    }
    let after = asker.ask();
    live::add_answers(&mut evidence, &before, &after, begin.elapsed().as_secs_f64());
    if let Some(steps) = steps {
        live::add_probe_steps(&mut evidence, steps);
    }
    if let Some((name, entry)) = saved {
        live::add_baseline(&mut evidence, &name, &json!(entry.run), &entry.configuration);
    }
    add_logs(&mut evidence, order.logs);
    Ok(evidence)
}

/// The address without `/v1` and anything after it.
pub(crate) fn base(text: &str) -> Result<Url> {
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let mut url =
        Url::parse(&with_scheme).with_context(|| format!("{text:?} is not an address"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        bail!("{text:?} is not an address like http://host:30000");
    }
    url.set_path("/");
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// Whether the address is one of this machine: then a socket can be bound to it.
fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let addresses: Vec<IpAddr> = (host, 0)
        .to_socket_addrs()
        .map(|found| found.map(|address| address.ip()).collect())
        .unwrap_or_default();
    addresses.iter().any(|ip| UdpSocket::bind((*ip, 0)).is_ok())
}

/// Asks the endpoints.
pub(crate) struct Asker {
    client: Client,
    url: Url,
    key: Option<String>,
    runtime: tokio::runtime::Runtime,
}

impl Asker {
    pub(crate) fn new(url: &Url, key: Option<String>) -> Result<Asker> {
        let client = Client::builder()
            .timeout(ANSWER)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Asker { client, url: url.clone(), key, runtime })
    }

    /// Whether the server says that it is well.
    pub(crate) fn is_healthy(&self) -> bool {
        self.runtime.block_on(self.one("/health")).is_some()
    }

    /// Asks all of them; those that do not answer are left out.
    pub(crate) fn ask(&self) -> Answers {
        self.runtime.block_on(async {
            let mut answers = Vec::new();
            for path in ENDPOINTS {
                answers.extend(self.one(path).await.map(|text| (*path, text)));
            }
            answers
        })
    }

    async fn one(&self, path: &str) -> Option<String> {
        let mut request = self.client.get(self.url.join(path).ok()?);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let mut response = request.send().await.ok()?.error_for_status().ok()?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.ok()? {
            body.extend_from_slice(&chunk);
            if body.len() > MOST_BYTES {
                return None;
            }
        }
        String::from_utf8(body).ok()
    }
}

/// The saved measurement to compare with: the named baseline's last, else the last one of this address whose settings
/// differ from now, else the last one of this address.
fn saved(
    order: &Order<'_>,
    url: &Url,
    now: &Answers,
    evidence: &mut Evidence,
) -> Option<(String, Entry)> {
    let folder = order.flags.baselines.clone();
    let folder = folder.or_else(|| ledger::state_folder().map(|state| state.join("baselines")))?;
    let store = Store::new(&folder);
    let names = match &order.flags.baseline {
        Some(name) => vec![name.clone()],
        None => match store.list() {
            Ok(listed) => listed.into_iter().map(|baseline| baseline.name).collect(),
            Err(error) => {
                evidence.gaps.push(format!("baselines: {error}"));
                return None;
            }
        },
    };
    let named = order.flags.baseline.is_some();
    let here = url.as_str().trim_end_matches('/');
    let mut entries = Vec::new();
    for name in names {
        match store.entries(&name) {
            Ok((saved, _)) => entries.extend(saved.into_iter().map(|entry| (name.clone(), entry))),
            Err(error) => evidence.gaps.push(format!("baseline {name}: {error}")),
        }
    }
    entries.retain(|(_, entry)| {
        named || base(&entry.run.target).is_ok_and(|url| url.as_str().trim_end_matches('/') == here)
    });
    entries.sort_by(|a, b| a.1.saved_at.cmp(&b.1.saved_at));
    let settings = now.iter().find_map(|(_, text)| dialects::info::parse(text)).map(|i| i.config);
    let differs = |(_, entry): &&(String, Entry)| {
        let saved = live::settings_of(&entry.configuration);
        saved.zip(settings.as_ref()).is_some_and(|(saved, now)| !saved.differences(now).is_empty())
    };
    entries.iter().rev().find(differs).or(entries.last()).cloned()
}

/// Probes with the work that was saved, so that both compare, else with a few chats. Gives what Outrider counted of its
/// steps meanwhile.
fn measure(
    order: &Order<'_>,
    url: &Url,
    saved: Option<&(String, Entry)>,
    evidence: &mut Evidence,
) -> Result<Option<StepTimes>> {
    let mut args = arguments(url, &order.flags.bounds);
    if let Some((name, entry)) = saved {
        match baseline::same_work(args.clone(), &entry.run.workload) {
            Ok(same) => args = same,
            Err(error) => evidence.gaps.push(format!("baseline {name}: {error}")),
        }
    }
    args.log = order.logs.first().cloned();
    eprintln!(
        "probing {url} with at most {} requests in {} s",
        args.runs * args.sets.len(),
        args.seconds
    );
    match probe::measure(&args) {
        Ok(report) if report.interrupted => bail!("interrupted"),
        Ok(report) => {
            let text = report.json().to_string();
            collect::add_text(evidence, Side::Now, "probe", &text);
            let gaps = report.observed.gaps.iter().chain(&report.notices);
            evidence.gaps.extend(gaps.map(|gap| format!("probe: {gap}")));
            return Ok(report.steps);
        }
        Err(ProbeError::Busy(busy)) => evidence.gaps.push(format!(
            "not probed: the server is busy ({} running, {} waiting); --force probes all the same",
            busy.running, busy.waiting
        )),
        Err(error) => evidence.gaps.push(format!("not probed: {error}")),
    }
    Ok(None)
}

/// A short probe within the bounds of the flags.
pub(crate) fn arguments(url: &Url, flags: &ProbeBounds) -> ProbeArgs {
    ProbeArgs {
        api_key: flags.api_key.clone(),
        runs: usize::from(flags.runs),
        seconds: f64::from(flags.seconds),
        max_tokens: 128,
        cache_pass: false,
        force: flags.force,
        ..ProbeArgs::new(url.as_str().trim_end_matches('/'))
    }
}

/// Reads logs, each guarded.
pub(crate) fn add_logs(evidence: &mut Evidence, logs: &[LogSource]) {
    for log in logs {
        let read = match log {
            LogSource::File(path) => collect::add_log(evidence, path).map_err(Into::into),
            LogSource::Journal(unit) => {
                let arguments = ["--no-pager", "-o", "short-iso", "-n", LOG_LINES, "-u", unit];
                from_program(evidence, log, "journalctl", &arguments)
            }
            LogSource::Docker(name) => {
                let arguments = ["logs", "--timestamps", "--tail", LOG_LINES, name];
                from_program(evidence, log, "docker", &arguments)
            }
        };
        if let Err(error) = read {
            evidence.gaps.push(format!("log {log}: {error:#}"));
        }
    }
}

/// The output of a program as a log; one that takes too long is stopped.
fn from_program(
    evidence: &mut Evidence,
    log: &LogSource,
    program: &str,
    arguments: &[&str],
) -> Result<()> {
    // A container writes its log to both streams; the shell joins them in order.
    let mut child = Command::new("sh")
        .args(["-c", r#"exec "$0" "$@" 2>&1"#, program])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let mut output = child.stdout.take().ok_or_else(|| anyhow!("{program} has no output"))?;
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        // The sender is dropped when everything was read; until then it is silent.
        if ended
            .recv_timeout(LOG_LIMIT)
            .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            // It may have ended by itself in the meantime.
            let _ = child.kill();
        }
        child.wait()
    });
    collect::add_log_stream(evidence, &log.to_string(), &mut output)?;
    drop(done);
    let status = watchdog.join().map_err(|_| anyhow!("the watchdog failed"))??;
    if status.success() { Ok(()) } else { Err(anyhow!("{program}: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_people_write_them() {
        for text in ["127.0.0.1:30000", "http://127.0.0.1:30000/v1", "http://127.0.0.1:30000/?a=b"]
        {
            assert_eq!(base(text).unwrap().as_str(), "http://127.0.0.1:30000/");
        }
        for text in ["ftp://x", "http://", "a b"] {
            assert!(base(text).is_err(), "{text}");
        }
        assert!(is_local(&base("127.0.0.1:1").unwrap()));
        assert!(
            is_local(&base("[::1]:1").unwrap())
                || !std::path::Path::new("/proc/net/if_inet6").exists()
        );
        assert!(!is_local(&base("192.0.2.7:1").unwrap()));
    }
}
