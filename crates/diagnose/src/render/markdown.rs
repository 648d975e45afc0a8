//! The report as Markdown, for an issue or a wiki.

use super::text::{headline, option_words, step_words};
use crate::report::{Report, value};
use crate::text;

/// The Markdown report.
pub fn markdown(report: &Report) -> String {
    let mut out = format!("# {}\n\n{}\n", capital(headline(report)), escape(&report.summary));
    if let Some(mechanism) = &report.how {
        out.push_str(&format!("\n{}\n", escape(mechanism)));
    }
    out.push_str(
        "\n## Numbers\n\n| quantity | before | now | change | unit |\n|---|---:|---:|---:|---|\n",
    );
    for row in &report.rows {
        let cell = |side: &Option<(crate::stats::Estimate, String)>| {
            side.as_ref().map_or(String::new(), |(e, _)| text::number(e.value))
        };
        let change = report
            .both(row.quantity)
            .filter(|(b, _)| *b > 0.0)
            .map_or(String::new(), |(b, n)| text::change(b, n));
        out.push_str(&format!(
            "| {} | {} | {} | {change} | {} |\n",
            row.quantity.name(),
            cell(&row.before),
            cell(&row.now),
            row.quantity.unit()
        ));
    }
    if let Some((before, now)) = &report.offloaded {
        let cell = |side: &Option<String>| side.clone().unwrap_or_default();
        out.push_str(&format!("| offloaded_layers | {} | {} | | |\n", cell(before), cell(now)));
    }
    measured(report, &mut out);
    out.push_str("\n## Suspects\n\n| | factor | before | now | explains | mechanism |\n|---|---|---|---|---:|---|\n");
    for (i, suspect) in report.suspects.iter().enumerate() {
        let explains =
            suspect.explained.filter(|_| suspect.acts).map_or(String::new(), text::percent);
        out.push_str(&format!(
            "| {} | {} | {} | {} | {explains} | {} |\n",
            i + 1,
            escape(&suspect.name),
            escape(&value(&suspect.before)),
            escape(&value(&suspect.now)),
            escape(&suspect.mechanism)
        ));
    }
    if let Some(first) = report.suspects.first().filter(|_| report.has_cause) {
        section(&mut out, "Evidence", &first.evidence);
        section(&mut out, "Against it", &first.against);
    }
    section(&mut out, "When", &report.timing);
    if let Some(fix) = &report.fix {
        out.push_str(&format!("\n## Fix\n\n```text\n{}\n```\n", fix.command_line()));
        section_lines(&mut out, &fix.actions);
        if !fix.options.is_empty() {
            out.push_str(&format!("\nOr: {}\n", escape(&option_words(&fix.options))));
        }
        if let Some(p) = &report.predicted {
            out.push_str(&format!(
                "\nPredicted: {} {} to {} ({}).\n",
                p.metric,
                text::number(p.range.lo),
                text::number(p.range.hi),
                escape(&p.basis)
            ));
        }
        section_lines(&mut out, &report.costs);
    }
    section(&mut out, "Notes", &report.notices);
    section(&mut out, "Not judged", &report.gaps);
    section(&mut out, "Next", &report.next_test.clone().into_iter().collect::<Vec<_>>());
    out
}

/// Client and server side by side, and the parts of a step.
fn measured(report: &Report, out: &mut String) {
    let cell = |value: Option<f64>| value.map_or(String::new(), text::number);
    if !report.sides.is_empty() {
        out.push_str(
            "\n## Measured now\n\n| quantity | client | server | unit |\n|---|---:|---:|---|\n",
        );
    }
    for both in &report.sides {
        out.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            both.quantity.name(),
            cell(both.client),
            cell(both.server),
            both.quantity.unit()
        ));
    }
    section(out, "Step", &report.step.iter().map(step_words).collect::<Vec<_>>());
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        out.push_str(&format!("\n## {title}\n"));
        section_lines(out, lines);
    }
}

fn section_lines(out: &mut String, lines: &[String]) {
    if !lines.is_empty() {
        out.push('\n');
    }
    for line in lines {
        out.push_str(&format!("- {}\n", escape(line)));
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// Text from logs and files must not become markup.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '|' | '<' | '>' | '`' | '[' | ']' | '*' | '_' | '\\' | '#') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
