//! The report as one HTML file: no network, no scripts needed to read it, light and dark, printable.

use super::text::{headline, option_words, step_words};
use crate::report::{Report, Row, value};
use crate::text;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#f2f4f7;--line:#d5dae1;--bad:#b3261e;--good:#1a7f37;--dim:#667085}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--paper:#14171c;--soft:#1d2229;--line:#333b46;--bad:#ff8a80;--good:#6fdd8b;--dim:#98a2b3}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.4rem 0}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}tr.decoy{color:var(--dim)}
code,pre{font:13px/1.5 ui-monospace,monospace;background:var(--soft);border-radius:4px}code{padding:.1rem .3rem}pre{padding:.7rem;overflow:auto}
.bar{height:.7rem;border-radius:3px;background:var(--bad)}.bar.up{background:var(--good)}.axis{background:var(--soft);border-radius:3px}
abbr{text-decoration:none;border-bottom:1px dotted var(--dim);cursor:help}.dim{color:var(--dim)}
@media print{body{margin:0}h2{break-after:avoid}}
";

/// The HTML report.
pub fn html(report: &Report) -> String {
    let mut out = String::new();
    out.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">");
    out.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">");
    out.push_str(&format!(
        "<title>Diagnosis: {}</title><style>{STYLE}</style></head><body>\n",
        escape(headline(report))
    ));
    let version = report.version.as_deref().map_or(String::new(), |v| format!(" {v}"));
    out.push_str(&format!(
        "<h1>{}</h1><p>{}</p><p class=\"dim\">{}{} {} · {} streams</p>\n",
        escape(headline(report)),
        escape(&report.summary),
        report.engine,
        escape(&version),
        escape(report.model.as_deref().unwrap_or("")),
        text::number(report.demand.round())
    ));
    if let Some(mechanism) = &report.how {
        out.push_str(&format!("<p>{}</p>\n", escape(mechanism)));
    }
    waterfall(report, &mut out);
    measured(report, &mut out);
    suspects(report, &mut out);
    configurations(report, &mut out);
    fix(report, &mut out);
    list("When", &report.timing, &mut out);
    list("Notes", &report.notices, &mut out);
    list("Not judged", &report.gaps, &mut out);
    numbers(report, &mut out);
    out.push_str("<h2>Redaction</h2><p>Secrets are removed before anything is stored; prompts and answers are never kept.</p>\n");
    let raw = serde_json::to_string_pretty(&super::json(report)).unwrap_or_default();
    out.push_str(&format!("<h2>The same as JSON</h2><details><summary>report/1</summary><pre>{}</pre></details>\n</body></html>\n", escape(&raw)));
    out
}

/// How much each part moved, as bars: the product of the parts is the speed.
fn waterfall(report: &Report, out: &mut String) {
    use crate::quantity::Quantity as Q;
    let parts: Vec<(&Row, f64)> = [
        Q::DecodeTokS,
        Q::AcceptLen,
        Q::StepsPerS,
        Q::Running,
        Q::AggregateTokS,
        Q::TtftP50,
        Q::PauseP90,
    ]
    .into_iter()
    .filter_map(|q| {
        let (b, n) = report.both(q).filter(|(b, n)| *b > 0.0 && *n > 0.0)?;
        let sense = if q.sense() < 0 { -1.0 } else { 1.0 };
        Some((report.row(q)?, sense * (n / b).ln()))
    })
    .collect();
    if parts.is_empty() {
        return;
    }
    let most = parts.iter().map(|(_, size)| size.abs()).fold(0.05, f64::max);
    out.push_str("<h2>What moved</h2><table><tr><th>part</th><th class=\"n\">before</th><th class=\"n\">now</th><th class=\"n\">change</th><th style=\"width:40%\"></th></tr>\n");
    for (row, size) in parts {
        let (b, n) = report.both(row.quantity).unwrap_or((f64::NAN, f64::NAN));
        let class = if size > 0.0 { "bar up" } else { "bar" };
        out.push_str(&format!(
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td><div class=\"axis\"><div class=\"{class}\" style=\"width:{:.0}%\"></div></div></td></tr>\n",
            name(row),
            text::number(b),
            text::number(n),
            text::change(b, n),
            size.abs() / most * 100.0
        ));
    }
    out.push_str("</table>\n");
}

/// Client and server side by side, and the parts of a step.
fn measured(report: &Report, out: &mut String) {
    let cell = |value: Option<f64>| value.map_or(String::new(), text::number);
    if !report.sides.is_empty() {
        out.push_str("<h2>Measured now</h2><table><tr><th>quantity</th><th class=\"n\">client</th><th class=\"n\">server</th><th>unit</th></tr>\n");
        for both in &report.sides {
            out.push_str(&format!(
                "<tr><td><abbr title=\"{}\">{}</abbr></td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
                escape(both.quantity.definition()),
                both.quantity.name(),
                cell(both.client),
                cell(both.server),
                both.quantity.unit()
            ));
        }
        out.push_str("</table>\n");
    }
    list("Step", &report.step.iter().map(step_words).collect::<Vec<_>>(), out);
}

fn suspects(report: &Report, out: &mut String) {
    if report.suspects.is_empty() {
        return;
    }
    out.push_str("<h2>Suspects</h2><table><tr><th></th><th>factor</th><th>before</th><th>now</th><th class=\"n\">explains</th><th>evidence</th></tr>\n");
    for (i, suspect) in report.suspects.iter().enumerate() {
        let explains =
            suspect.explained.filter(|_| suspect.acts).map_or(String::new(), text::percent);
        let lines = |head: &str, lines: &[String]| {
            lines
                .iter()
                .map(|line| format!("<div>{head}{}</div>", escape(line)))
                .collect::<String>()
        };
        out.push_str(&format!(
            "<tr{}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{explains}</td><td>{}{}{}</td></tr>\n",
            if suspect.acts { "" } else { " class=\"decoy\"" },
            i + 1,
            escape(&suspect.name),
            escape(&value(&suspect.before)),
            escape(&value(&suspect.now)),
            format_args!("<div>{}</div>", escape(&suspect.mechanism)),
            lines("+ ", &suspect.evidence),
            lines("− ", &suspect.against)
        ));
    }
    out.push_str("</table>\n");
}

fn configurations(report: &Report, out: &mut String) {
    if report.differences.is_empty() {
        return;
    }
    let place = |place: &Option<String>| place.as_deref().map_or("not known".to_owned(), escape);
    out.push_str(&format!(
        "<h2>Configurations</h2><table><tr><th>factor</th><th>before<br><span class=\"dim\">{}</span></th><th>now<br><span class=\"dim\">{}</span></th><th>what a difference can do</th></tr>\n",
        place(&report.places.0),
        place(&report.places.1)
    ));
    for (factor, before, now, effect) in &report.differences {
        out.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            escape(factor),
            escape(&value(before)),
            escape(&value(now)),
            escape(effect)
        ));
    }
    out.push_str("</table>\n");
}

fn fix(report: &Report, out: &mut String) {
    let Some(fix) = &report.fix else { return };
    out.push_str("<h2>Fix</h2>");
    let line = fix.command_line();
    if !line.is_empty() {
        out.push_str(&format!("<pre>{}</pre>", escape(&line)));
    }
    for action in &fix.actions {
        out.push_str(&format!("<p>{}</p>", escape(action)));
    }
    if !fix.options.is_empty() {
        out.push_str(&format!("<p>or <code>{}</code></p>", escape(&option_words(&fix.options))));
    }
    if let Some(p) = &report.predicted {
        out.push_str(&format!(
            "<p>predicted {}: {} to {} <span class=\"dim\">({})</span></p>",
            escape(&p.metric),
            text::number(p.range.lo),
            text::number(p.range.hi),
            escape(&p.basis)
        ));
    }
    for cost in &report.costs {
        out.push_str(&format!("<p>costs: {}</p>", escape(cost)));
    }
    out.push('\n');
}

fn list(title: &str, lines: &[String], out: &mut String) {
    if lines.is_empty() {
        return;
    }
    out.push_str(&format!("<h2>{title}</h2><ul>"));
    for line in lines {
        out.push_str(&format!("<li>{}</li>", escape(line)));
    }
    out.push_str("</ul>\n");
}

fn numbers(report: &Report, out: &mut String) {
    out.push_str("<h2>All numbers</h2><table><tr><th>quantity</th><th class=\"n\">before</th><th class=\"n\">now</th><th class=\"n\">interval</th><th>unit</th><th>source</th></tr>\n");
    for row in &report.rows {
        let cell = |side: &Option<(crate::stats::Estimate, String)>| {
            side.as_ref().map_or(String::new(), |(e, _)| text::number(e.value))
        };
        let newest = row.now.as_ref().or(row.before.as_ref());
        let interval = newest.map_or(String::new(), |(e, _)| {
            if e.lo == e.hi {
                String::new()
            } else {
                format!("{} – {}", text::number(e.lo), text::number(e.hi))
            }
        });
        let source =
            newest.map_or(String::new(), |(e, source)| format!("{} (n = {})", escape(source), e.n));
        out.push_str(&format!(
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{interval}</td><td>{}</td><td class=\"dim\">{source}</td></tr>\n",
            name(row),
            cell(&row.before),
            cell(&row.now),
            row.quantity.unit()
        ));
    }
    out.push_str("</table>\n");
}

/// A quantity's name with its definition as a tooltip.
fn name(row: &Row) -> String {
    format!("<abbr title=\"{}\">{}</abbr>", escape(row.quantity.definition()), row.quantity.name())
}

/// Text from logs and files must not become markup.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
