//! What an engine's plan says, as one value with two renderings.

use std::fmt::Write;

use serde::Serialize;

use super::GIB;
use super::speed::{Range, SpeedRow};

/// A part of one device's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryLine {
    /// What it is for.
    pub name: &'static str,
    /// Its size.
    pub bytes: f64,
}

/// Pools, limits and speed of one engine, and what limits each.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnginePlan {
    /// Engine and release.
    pub engine: String,
    /// Model.
    pub model: String,
    /// Devices.
    pub device: String,
    /// Memory of one device, largest questions first.
    pub memory: Vec<MemoryLine>,
    /// Tokens that the KV pool holds.
    pub kv_tokens: u64,
    /// Why not more.
    pub kv_limited_by: String,
    /// Recurrent-state slots; `None` where the engine has no such pool.
    pub state_slots: Option<u64>,
    /// Slots that one running request is charged.
    pub slots_per_request: Option<u64>,
    /// Requests that can run at once.
    pub max_running: u64,
    /// Requests that were asked for.
    pub max_running_asked: Option<u64>,
    /// Why not more.
    pub running_limited_by: String,
    /// Longest request in tokens, prompt and answer together.
    pub max_request_tokens: u64,
    /// Requests of that length that the KV pool holds.
    pub full_length_requests: f64,
    /// Speed by batch size and draft depth.
    pub speed: Vec<SpeedRow>,
    /// What was assumed, what has no meaning for this engine, what to look out for.
    pub notices: Vec<String>,
}

impl EnginePlan {
    /// The plan as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        // A struct of numbers and texts always has a JSON form.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The plan as text for a terminal, 100 columns wide.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write_text(&mut out).unwrap_or_default();
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{} · {} · {}", self.model, self.engine, self.device)?;
        writeln!(out, "\nmemory of one device")?;
        for line in &self.memory {
            writeln!(out, "  {:<34} {:>8.2} GiB", line.name, line.bytes / GIB)?;
        }
        writeln!(out, "\nlimits")?;
        let asked = self.max_running_asked.map_or(String::new(), |n| format!(" of {n} asked"));
        writeln!(out, "  running requests {:>10}{asked}", self.max_running)?;
        writeln!(out, "    limited by {}", self.running_limited_by)?;
        writeln!(out, "  KV tokens        {:>10}", self.kv_tokens)?;
        writeln!(out, "    limited by {}", self.kv_limited_by)?;
        if let Some(slots) = self.state_slots {
            let per = self.slots_per_request.unwrap_or(1);
            writeln!(out, "  state slots      {slots:>10}, {per} per running request")?;
        }
        let length = self.max_request_tokens;
        writeln!(
            out,
            "  full-length requests of {length} tokens: {:.1}",
            self.full_length_requests
        )?;
        self.write_speed(out)?;
        for notice in &self.notices {
            writeln!(out, "note: {notice}")?;
        }
        Ok(())
    }

    fn write_speed(&self, out: &mut String) -> std::fmt::Result {
        let mut depths: Vec<u64> = self.speed.iter().map(|row| row.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        writeln!(out, "\ntokens/s of one stream, by draft depth")?;
        write!(out, "  {:>7}", "running")?;
        for depth in &depths {
            write!(out, " {:>11}", format!("depth {depth}"))?;
        }
        writeln!(out, "  depth 0 is limited by")?;
        for rows in self.speed.chunk_by(|a, b| a.batch == b.batch) {
            write!(out, "  {:>7}", rows[0].batch)?;
            for row in rows {
                write!(out, " {:>11}", range(row.stream_tok_s))?;
            }
            writeln!(out, "  {}", rows[0].limited_by)?;
        }
        writeln!(out)
    }
}

fn range(range: Range) -> String {
    format!("{:.0}–{:.0}", range.lo, range.hi)
}
