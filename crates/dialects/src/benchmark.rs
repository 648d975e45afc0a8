//! The result tables of `vllm bench serve`, SGLang's serving benchmark and tools that print the same form.
//!
//! The trap: with speculation one streamed chunk carries several tokens, and these tools print the gap between chunks as
//! "inter-token latency" and count chunks in "peak output token throughput".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One result table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The command line above the table, if it is there.
    pub command: Option<String>,
    /// Rows by label without unit, in lower case: `output token throughput`, `mean tpot`, ...
    pub rows: BTreeMap<String, f64>,
}

impl Table {
    /// One row.
    pub fn get(&self, label: &str) -> Option<f64> {
        self.rows.get(label).copied()
    }

    /// Output tokens per second over the run.
    pub fn output_tok_s(&self) -> Option<f64> {
        self.get("output token throughput")
    }

    /// Milliseconds per output token after the first, the median of requests.
    pub fn tpot_ms(&self) -> Option<f64> {
        self.get("median tpot").or(self.get("mean tpot"))
    }

    /// What the tool calls inter-token latency, in milliseconds.
    pub fn itl_ms(&self) -> Option<f64> {
        self.get("median itl").or(self.get("mean itl"))
    }

    /// Tokens per streamed chunk: 1 unless the printed latency counts chunks.
    pub fn tokens_per_chunk(&self) -> Option<f64> {
        Some(self.get("mean itl").or(self.itl_ms())? / self.get("mean tpot").or(self.tpot_ms())?)
    }

    /// Whether "inter-token latency" is a gap between chunks in this table.
    pub fn itl_counts_chunks(&self) -> bool {
        self.tokens_per_chunk().is_some_and(|ratio| ratio > 1.1)
    }

    /// Requests in flight at most.
    pub fn concurrency(&self) -> Option<f64> {
        self.get("maximum request concurrency").or(self.get("max request concurrency"))
    }

    /// Accept length, bonus included.
    pub fn accept_len(&self) -> Option<f64> {
        self.get("acceptance length").or(self.get("accept length"))
    }
}

/// Reads every table in a text.
pub fn parse(text: &str) -> Vec<Table> {
    let mut tables = Vec::new();
    let mut open: Option<Table> = None;
    let mut command = None;
    for line in text.lines() {
        let line = line.trim();
        let is_rule = line.starts_with("====") || line.starts_with("----");
        if is_rule && line.to_ascii_lowercase().contains("benchmark result") {
            tables.extend(open.take());
            open = Some(Table { command: command.take(), rows: BTreeMap::new() });
            continue;
        }
        match &mut open {
            Some(table) if line.starts_with("====") && line.trim_matches('=').is_empty() => {
                tables.push(std::mem::take(table));
                open = None;
            }
            Some(table) if !is_rule => {
                if let Some((label, value)) = row(line) {
                    table.rows.insert(label, value);
                }
            }
            Some(_) => {}
            None if line.contains("bench") => {
                command = Some(crate::redact::line(line.trim_start_matches(['$', '#', ' ']), 400));
            }
            None => {}
        }
    }
    tables.extend(open);
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn row(line: &str) -> Option<(String, f64)> {
    let (label, value) = line.rsplit_once(':')?;
    let value = value.trim().replace(',', "").parse::<f64>().ok()?;
    let label = label.split('(').next().unwrap_or(label).trim().to_ascii_lowercase();
    (!label.is_empty() && value.is_finite()).then_some((label, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_between_chunks_is_noticed() {
        let text = "$ vllm bench serve --model m\n============ Serving Benchmark Result ============\nOutput token throughput (tok/s):         120.04\nPeak output token throughput (tok/s):    41.00\n-----Time per Output Token (excl. 1st token)------\nMean TPOT (ms):  8.15\nMedian TPOT (ms):  8.14\nMean ITL (ms):  24.46\n==================================================\n";
        let tables = parse(text);
        assert_eq!(tables.len(), 1);
        let table = &tables[0];
        assert_eq!(table.output_tok_s(), Some(120.04));
        assert_eq!(table.tpot_ms(), Some(8.14));
        assert!(table.itl_counts_chunks());
        assert!((table.tokens_per_chunk().unwrap() - 3.0).abs() < 0.01);
        assert_eq!(table.command.as_deref(), Some("vllm bench serve --model m"));
    }
}
