//! A log as a table, a plot or JSON.

use dialects::log::Clock;
use dialects::{Key, effective};
use serde_json::{Value as Json, json};

use super::runs::{LogSummary, Run};
use super::window::{Validity, Window};
use crate::text;

/// Rows of a run's table; more windows than that are merged, neighbours first.
const MOST_ROWS: usize = 40;

/// How a log is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    /// Every window, none merged and none left out.
    pub all: bool,
    /// Lines of bars instead of the table.
    pub plot: bool,
}

/// The log for people.
pub fn render_text(path: &str, log: &LogSummary, shown: Shown) -> String {
    let engine = log.engine.map_or("unknown engine".to_owned(), |engine| engine.to_string());
    let mut out = format!(
        "{path}: {engine}, {} lines, {} understood, {} not understood\n",
        log.lines, log.understood, log.not_understood
    );
    if let Some(example) = &log.example {
        out.push_str(&format!("  not understood, for example: {example}\n"));
    }
    if let Some(what) = &log.contradiction {
        out.push_str(&format!("  {} lines contradict themselves: {what}\n", log.contradictions));
    }
    for (i, run) in log.runs.iter().enumerate() {
        out.push_str(&format!("\nrun {} of {}{}\n", i + 1, log.runs.len(), span(run)));
        header(run, &mut out);
        for warning in run.warnings.values() {
            let times = if warning.count > 1 {
                format!(" ({} times)", warning.count)
            } else {
                String::new()
            };
            let to = warning.to.map_or(String::new(), |to| format!(": {}", text::number(to)));
            out.push_str(&format!(
                "  warning, line {}: {}{to}{times}\n",
                warning.line, warning.says
            ));
        }
        if run.retract_events > 0 {
            out.push_str(&format!(
                "  warning: {} running requests were pushed out, {} KV tokens thrown away\n",
                run.retracted_requests, run.retracted_tokens
            ));
        }
        out.push_str(&if shown.plot { plot(run) } else { table(run, shown.all) });
    }
    out
}

fn span(run: &Run) -> String {
    let Some((start, end)) = run.span else { return String::new() };
    format!(", {} to {}", stamp(start, run.clock), stamp(end, run.clock))
}

/// A time by the clock of its log.
fn stamp(t: f64, clock: Option<Clock>) -> String {
    let of_day = t.rem_euclid(86_400.0);
    let time = format!(
        "{:02}:{:02}:{:02}",
        (of_day / 3600.0) as u32,
        (of_day / 60.0) as u32 % 60,
        of_day as u32 % 60
    );
    let date = text::date(t);
    match clock {
        Some(Clock::Date) => format!("{} {time}", &date[..10]),
        Some(Clock::NoYear) => format!("{} {time}", &date[5..10]),
        _ => format!("{t:.1} s"),
    }
}

/// The effective configuration and the sizes that the header states.
fn header(run: &Run, out: &mut String) {
    if let Some(config) = run.config() {
        let version = config.version.as_ref().map_or(String::new(), |v| format!(" {v}"));
        out.push_str(&format!(
            "  configuration ({}{version}, line {}):\n",
            config.engine,
            run.asked_line.max(1)
        ));
        let effective = effective::of(&config);
        let parts: Vec<String> = effective
            .iter()
            .filter(|(key, value)| {
                matches!(key, Key::Known(_))
                    && (!config.whole || value.why != effective::Why::Default)
            })
            .map(|(key, value)| format!("{key} {};", value.value))
            .collect();
        for line in text::wrap(&parts.join(" "), 94) {
            out.push_str(&format!("    {line}\n"));
        }
    }
    let sizes = &run.sizes;
    let mut parts = Vec::new();
    let mut add = |name: &str, value: Option<f64>, unit: &str| {
        if let Some(value) = value {
            parts.push(format!("{name} {}{unit}", text::number(value)));
        }
    };
    add("KV", sizes.kv_tokens, " tokens");
    add("state slots", sizes.state_slots, "");
    add("running limit", sizes.max_running, "");
    add("context", sizes.context, "");
    add("weights", sizes.weights_gib, " GiB");
    add("tokens per verify", sizes.verify_width, "");
    add("largest graph", sizes.graph_max_bs, "");
    if let Some((layers, of)) = sizes.offloaded {
        parts.push(format!("layers on the device {layers}/{of}"));
    }
    if let Some(rate) = run.rate {
        parts.push(format!("accept rate is {}", rate.def.formula()));
    }
    if !parts.is_empty() {
        out.push_str(&format!("  effective: {}\n", parts.join(", ")));
    }
}

fn table(run: &Run, all: bool) -> String {
    if run.windows.is_empty() {
        return "  no decode windows\n".to_owned();
    }
    let believed: Vec<&Window> = run.believable();
    let mut dropped: Vec<(Validity, u32)> = Vec::new();
    for window in &run.windows {
        if window.validity != Validity::Clean && !believed.iter().any(|b| std::ptr::eq(*b, window))
        {
            match dropped.iter_mut().find(|(validity, _)| *validity == window.validity) {
                Some((_, n)) => *n += window.n,
                None => dropped.push((window.validity, window.n)),
            }
        }
    }
    let windows: Vec<Window> = if all { run.windows.clone() } else { merged(&believed) };
    let mut rows = vec![
        [
            "  time",
            "windows",
            "running",
            "queue",
            "tok/s",
            "accept len",
            "steps/s",
            "KV",
            "state",
            "graph",
            "",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    rows.extend(windows.iter().map(|window| row(window, run.clock)));
    let mut out =
        text::table(&rows, &[false, true, true, true, true, true, true, true, true, true]);
    if !all && !dropped.is_empty() {
        let parts: Vec<String> = dropped
            .iter()
            .map(|(validity, n)| format!("{n} {}", validity.reason().unwrap_or("clean")))
            .collect();
        out.push_str(&format!("  left out, because their speed misleads: {}\n", parts.join(", ")));
    }
    out
}

fn row(window: &Window, clock: Option<Clock>) -> Vec<String> {
    let number = |x: Option<f32>| x.map_or("-".to_owned(), |x| text::number(f64::from(x)));
    let share = |x: Option<f32>| x.map_or("-".to_owned(), |x| text::percent(f64::from(x)));
    vec![
        format!("  {}", window.t.map_or("-".to_owned(), |t| stamp(t, clock))),
        window.n.to_string(),
        number(Some(window.running)),
        number(window.queue),
        number(Some(window.tok_s)),
        number(window.accept_len),
        number(window.steps_per_s),
        share(window.kv_usage),
        share(window.state_usage),
        window
            .graph
            .map_or("-", |g| {
                if g >= 0.99 {
                    "on"
                } else if g <= 0.01 {
                    "off"
                } else {
                    "mixed"
                }
            })
            .to_owned(),
        window.validity.reason().unwrap_or("").to_owned(),
    ]
}

/// Neighbours with the same running count merged until the table fits.
fn merged(windows: &[&Window]) -> Vec<Window> {
    let each = windows.len().div_ceil(MOST_ROWS).max(1);
    let mut out: Vec<Window> = Vec::new();
    let mut taken = 0;
    for window in windows {
        match out.last_mut() {
            Some(last) if taken < each && last.running == window.running => {
                *last = last.merge(window);
                taken += 1;
            }
            _ => {
                out.push(**window);
                taken = 1;
            }
        }
    }
    out
}

/// One line of bars per quantity, from the start of the run to its end.
fn plot(run: &Run) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const WIDTH: usize = 72;
    type Pick = fn(&Window) -> Option<f32>;
    let series: [(&str, Pick); 6] = [
        ("tok/s", |w| Some(w.tok_s)),
        ("accept len", |w| w.accept_len),
        ("steps/s", |w| w.steps_per_s),
        ("running", |w| Some(w.running)),
        ("queue", |w| w.queue),
        ("KV", |w| w.kv_usage),
    ];
    let mut out = String::new();
    for (name, pick) in series {
        let values: Vec<f32> = run.windows.iter().filter_map(pick).collect();
        let most = values.iter().copied().fold(0.0f32, f32::max);
        if values.is_empty() || most <= 0.0 {
            continue;
        }
        let columns = values.len().min(WIDTH);
        let line: String = (0..columns)
            .map(|i| {
                let part = &values[i * values.len() / columns
                    ..((i + 1) * values.len() / columns).max(i * values.len() / columns + 1)];
                let mean = part.iter().sum::<f32>() / part.len() as f32;
                BARS[((mean / most * 7.0).round() as usize).min(7)]
            })
            .collect();
        out.push_str(&format!("  {name:<10} {line} {}\n", text::number(f64::from(most))));
    }
    out
}

/// The log for programs.
pub fn render_json(path: &str, log: &LogSummary) -> Json {
    json!({ "schema": "logs/1", "path": path, "log": log })
}
