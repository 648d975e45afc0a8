//! The report for a terminal: about one screen.

use crate::quantity::Quantity as Q;
use crate::rank::Suspect;
use crate::report::{Report, StepReport, Verdict, value};
use crate::text;

/// Characters per line.
const WIDTH: usize = 100;
/// Suspects shown.
const MOST_SUSPECTS: usize = 6;
/// Notices shown.
const MOST_NOTICES: usize = 6;

/// The text report.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let version = report.version.as_deref().map_or(String::new(), |v| format!(" {v}"));
    let model = report.model.as_deref().map_or(String::new(), |m| format!("   {m}"));
    let streams = if report.demand <= 1.5 {
        "1 stream".to_owned()
    } else {
        format!("{} streams", text::number(report.demand.round()))
    };
    out.push_str(&format!("{}{version}{model}   {streams}\n", report.engine));
    out.push_str(&wrapped("VERDICT  ", &format!("{}: {}", headline(report), report.summary)));
    out.push('\n');
    out.push_str(&numbers(report));
    out.push_str(&sides(report));
    out.push_str(&suspects(report));
    out.push_str(&change(report));
    for timing in report.timing.iter().take(2) {
        out.push_str(&wrapped("WHEN  ", timing));
    }
    for notice in report.notices.iter().take(MOST_NOTICES) {
        out.push_str(&wrapped("NOTE  ", notice));
    }
    for gap in report.gaps.iter().take(3) {
        out.push_str(&wrapped("GAP   ", gap));
    }
    if let Some(next) = &report.next_test {
        out.push_str(&wrapped("NEXT  ", next));
    }
    out
}

/// The verdict in words.
pub(super) fn headline(report: &Report) -> &'static str {
    match (report.verdict, report.has_cause) {
        (Verdict::Regression, true) => "regression explained",
        (Verdict::Regression, false) => "regression, unexplained",
        (Verdict::WorkloadChange, _) => "the workload changed, the server did not",
        (Verdict::Capacity, _) => "at capacity",
        (Verdict::NoServerRegression, _) => "the client, not the server",
        (Verdict::NoRegression, _) => "no regression",
        (Verdict::Inconclusive, _) => "inconclusive",
    }
}

fn wrapped(head: &str, body: &str) -> String {
    let indent = head.chars().count();
    let lines = text::wrap(body, WIDTH - indent);
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        out.push_str(&if i == 0 { head.to_owned() } else { " ".repeat(indent) });
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// The numbers shown in the table: the decomposition first, then what moved most.
pub(super) fn shown_quantities(report: &Report) -> Vec<Q> {
    const ALWAYS: &[Q] = &[Q::DecodeTokS, Q::AcceptLen, Q::StepsPerS];
    const OTHERS: &[Q] = &[
        Q::Running,
        Q::Queue,
        Q::AggregateTokS,
        Q::TtftP50,
        Q::PauseP90,
        Q::CachedShare,
        Q::MaxRunning,
        Q::StateSlots,
        Q::KvTokens,
        Q::KvUsagePeak,
        Q::WeightsGib,
        Q::Retracted,
        Q::GraphShare,
        Q::Temperature,
        Q::PromptP50,
        Q::FirstMinutes,
        Q::LateTokS,
        Q::SmMhz,
        Q::MemMhz,
        Q::FixedProbeTokS,
        Q::TpotMs,
        Q::ItlMs,
        Q::TokensPerChunk,
        Q::OutputTokS,
        Q::ArrivalRate,
        Q::LinesPerS,
    ];
    let mut out: Vec<Q> = ALWAYS.iter().copied().filter(|q| report.row(*q).is_some()).collect();
    let moved = |q: &Q| {
        report.both(*q).is_some_and(|(b, n)| (n - b).abs() > 0.1 * b.abs().max(1e-9))
            && (*q != Q::AggregateTokS || alike(report, *q))
    };
    let telling = |q: &Q| match q {
        Q::Queue | Q::Retracted => {
            report.now(*q).is_some_and(|n| n >= 1.0)
                && report.row(*q).is_some_and(|r| r.before.is_none())
        }
        Q::FirstMinutes | Q::LateTokS => report.row(*q).is_some(),
        Q::MaxRunning | Q::Running => {
            report.row(*q).is_some_and(|r| r.before.is_none())
                && report.now(*q).is_some_and(|n| n <= 4.0 && report.demand > n)
        }
        _ => false,
    };
    out.extend(OTHERS.iter().copied().filter(|q| moved(q) || telling(q)).take(9));
    out
}

/// Whether both sides of a number come from logs, or both from elsewhere: a log counts its total differently.
fn alike(report: &Report, quantity: Q) -> bool {
    let from_log = |source: &str| source.contains("log");
    report.row(quantity).is_some_and(|row| match (&row.before, &row.now) {
        (Some((_, b)), Some((_, n))) => from_log(b) == from_log(n),
        _ => true,
    })
}

fn numbers(report: &Report) -> String {
    let mut rows =
        vec![vec![String::new(), "before".to_owned(), "now".to_owned(), "change".to_owned()]];
    for quantity in shown_quantities(report) {
        let Some(row) = report.row(quantity) else { continue };
        let cell = |side: &Option<(crate::stats::Estimate, String)>| {
            side.as_ref().map_or("-".to_owned(), |(e, _)| text::number(e.value))
        };
        let change = match (&row.before, &row.now) {
            (Some((b, _)), Some((n, _))) if b.value > 0.0 => text::change(b.value, n.value),
            _ => String::new(),
        };
        let sign = match quantity {
            Q::DecodeTokS => "  ",
            Q::AcceptLen => "= ",
            Q::StepsPerS => "× ",
            _ => "  ",
        };
        let unit = quantity.unit();
        let unit =
            if unit.is_empty() || unit == "1/s" { String::new() } else { format!(" [{unit}]") };
        rows.push(vec![
            format!("  {sign}{}{unit}", quantity.name()),
            cell(&row.before),
            cell(&row.now),
            change,
        ]);
    }
    if let Some((before, now)) = &report.offloaded {
        let cell = |side: &Option<String>| side.clone().unwrap_or_else(|| "-".to_owned());
        rows.push(vec!["    offloaded_layers".to_owned(), cell(before), cell(now), String::new()]);
    }
    if rows.len() == 1 {
        return String::new();
    }
    format!("{}\n", text::table(&rows, &[false, true, true, true]))
}

/// Client and server in the same seconds, and the parts of a step.
fn sides(report: &Report) -> String {
    let mut out = String::new();
    if !report.sides.is_empty() {
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), text::number);
        let head = ["  MEASURED NOW", "client", "server"].map(str::to_owned).to_vec();
        let rows = report.sides.iter().map(|both| {
            vec![format!("    {}", both.quantity.name()), cell(both.client), cell(both.server)]
        });
        let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        out.push_str(&text::table(&rows, &[false, true, true]));
    }
    if let Some(step) = &report.step {
        out.push_str(&wrapped("STEP  ", &step_words(step)));
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

/// `2.1 ms: draft 0.5 (24 %), verify …; 12 MB of weights = 6.1 of 10 GB/s`.
pub(super) fn step_words(step: &StepReport) -> String {
    let ms = |seconds: f64| text::number(1e3 * seconds);
    let parts: Vec<String> = step
        .parts
        .iter()
        .map(|(name, s)| format!("{name} {} ({})", ms(*s), text::percent(s / step.step_s)))
        .collect();
    let mut out = format!("{} ms: {}", ms(step.step_s), parts.join(", "));
    if let Some(queue) = step.queue_s {
        out += &format!("; {} ms in the queue per request", ms(queue));
    }
    if let (Some(bytes), Some(rate)) = (step.bytes, step.bytes_per_s) {
        let of = step.bandwidth.map_or(String::new(), |b| format!(" of {}", text::number(b / 1e9)));
        out += &format!(
            "; {} MB of weights per step = {}{of} GB/s",
            text::number(bytes / 1e6),
            text::number(rate / 1e9)
        );
    }
    out
}

fn suspects(report: &Report) -> String {
    if report.suspects.is_empty() {
        return String::new();
    }
    let mut rows = vec![vec![
        "SUSPECTS".to_owned(),
        String::new(),
        "explains".to_owned(),
        "evidence".to_owned(),
    ]];
    for (i, suspect) in report.suspects.iter().take(MOST_SUSPECTS).enumerate() {
        let mark = if suspect.acts { format!("{:>2}", i + 1) } else { " -".to_owned() };
        let change = format!(
            "{} -> {}",
            text::cut(&value(&suspect.before), 22),
            text::cut(&value(&suspect.now), 22)
        );
        let explains = match suspect.explained {
            Some(share) if suspect.acts => text::percent(share),
            _ if suspect.acts => "likely".to_owned(),
            _ => String::new(),
        };
        rows.push(vec![
            format!("{mark} {}", suspect.name),
            change,
            explains,
            first_evidence(suspect),
        ]);
    }
    let table: String = text::table(&rows, &[])
        .lines()
        .flat_map(|line| [text::cut(line, WIDTH + 20), "\n".to_owned()])
        .collect();
    format!("{table}\n")
}

fn first_evidence(suspect: &Suspect) -> String {
    let line = if suspect.acts {
        suspect
            .evidence
            .iter()
            .find(|line| !line.contains(" against "))
            .or(suspect.evidence.first())
    } else {
        suspect.against.first()
    };
    line.cloned().unwrap_or_else(|| suspect.mechanism.clone())
}

fn change(report: &Report) -> String {
    let mut out = String::new();
    if let Some(mechanism) = &report.how {
        out.push_str(&wrapped("HOW   ", mechanism));
    }
    if let Some(fix) = &report.fix {
        let mut parts = vec![fix.command_line()];
        parts.extend(fix.actions.iter().cloned());
        parts.retain(|part| !part.is_empty());
        let predicted = report.predicted.as_ref().map_or(String::new(), |p| {
            format!(
                "; predicted {} {} to {}",
                p.metric,
                text::number(p.range.lo),
                text::number(p.range.hi)
            )
        });
        let body = if parts.is_empty() { option_words(&fix.options) } else { parts.join("; ") };
        out.push_str(&wrapped("FIX   ", &format!("{body}{predicted}")));
        if !parts.is_empty() && !fix.options.is_empty() {
            out.push_str(&wrapped("      or ", &option_words(&fix.options)));
        }
    }
    for cost in &report.costs {
        out.push_str(&wrapped("COST  ", cost));
    }
    for (metric, measured, source) in report.validated.iter().take(2) {
        out.push_str(&wrapped(
            "THEN  ",
            &format!("{metric} {} measured after the fix ({source})", text::number(*measured)),
        ));
    }
    out
}

/// Options of a fix, one after the other.
pub(super) fn option_words(options: &[Vec<(String, String)>]) -> String {
    options
        .iter()
        .map(|option| {
            option
                .iter()
                .map(|(flag, value)| format!("{flag} {value}").trim().to_owned())
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect::<Vec<_>>()
        .join(", or ")
}
