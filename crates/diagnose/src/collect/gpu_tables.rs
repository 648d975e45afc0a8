//! The three forms in which `nvidia-smi` prints: `-q` text, CSV, and the default table.

use dialects::redact;

use super::gpu::{Gpu, GpuProcess, GpuSnapshot, Throttle};

/// The number at the start of a cell such as `41211 MiB`.
fn number(cell: &str) -> Option<f64> {
    let cell = cell.trim();
    let end =
        cell.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-'))).unwrap_or(cell.len());
    cell[..end].parse().ok()
}

fn share(cell: &str) -> Option<f64> {
    number(cell).map(|percent| percent / 100.0)
}

/// `nvidia-smi -q`: indented `label : value` lines under headings.
pub(super) fn query_text(text: &str, snapshot: &mut GpuSnapshot) {
    if !text.contains("NVSMI LOG")
        && !text.contains("Clocks Event Reasons")
        && !text.contains("Clocks Throttle Reasons")
    {
        return;
    }
    let mut heading = "";
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("GPU 0")
            || (trimmed.starts_with("GPU ") && trimmed.contains(':') && !line.starts_with(' '))
        {
            snapshot.gpus.push(Gpu::default());
            continue;
        }
        let Some((label, value)) = trimmed.split_once(" : ").map(|(l, v)| (l.trim(), v.trim()))
        else {
            heading = trimmed;
            continue;
        };
        if label == "Driver Version" {
            snapshot.driver = Some(redact::line(value, 40));
        }
        if label == "Process ID"
            && let Ok(pid) = value.parse()
        {
            snapshot.processes.push(GpuProcess { pid, ..GpuProcess::default() });
        }
        if let Some(process) = snapshot.processes.last_mut() {
            match label {
                "Name" => process.name = redact::line(value, 80),
                "Used GPU Memory" => process.memory_mib = number(value),
                _ => {}
            }
        }
        let Some(gpu) = snapshot.gpus.last_mut() else { continue };
        if value == "Active" {
            gpu.throttle.extend(Throttle::from_label(label));
            continue;
        }
        match (label, heading) {
            ("Product Name", _) => gpu.name = Some(redact::line(value, 60)),
            ("GPU Current Temp", _) => gpu.temperature_c = number(value),
            ("Average Power Draw" | "Power Draw" | "Instantaneous Power Draw", _) => {
                gpu.power_w = gpu.power_w.or(number(value))
            }
            ("Current Power Limit" | "Power Limit", _) => gpu.power_limit_w = number(value),
            ("Fan Speed", _) => gpu.fan = share(value),
            ("SM", "Clocks") => gpu.sm_mhz = number(value),
            ("Memory", "Clocks") => gpu.memory_mhz = number(value),
            ("Gpu" | "GPU", "Utilization") => gpu.utilization = share(value),
            ("Used", "FB Memory Usage") => gpu.memory_used_mib = number(value),
            ("Total", "FB Memory Usage") => gpu.memory_total_mib = number(value),
            _ => {}
        }
    }
}

/// `--format=csv` with a header, or without one when a comment names the query.
pub(super) fn csv(text: &str, snapshot: &mut GpuSnapshot) {
    let mut columns: Option<Vec<String>> =
        text.lines().find_map(|line| line.trim().strip_prefix("# query:")).map(split);
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let cells = split(line);
        let is_header = cells.len() > 1 && cells.iter().any(|cell| COLUMNS.contains(&base(cell)));
        if is_header {
            columns = Some(cells);
            continue;
        }
        let Some(columns) = columns.as_ref().filter(|columns| columns.len() == cells.len()) else {
            continue;
        };
        if columns.iter().any(|column| base(column) == "pid") {
            csv_process(columns, &cells, snapshot);
        } else {
            csv_gpu(columns, &cells, snapshot);
        }
    }
}

/// Columns by which a header is recognised.
const COLUMNS: &[&str] = &[
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "clocks.sm",
    "clocks.current.sm",
    "temperature.gpu",
    "power.draw",
    "used_gpu_memory",
    "used_memory",
    "process_name",
];

fn split(line: &str) -> Vec<String> {
    line.split(',').map(|cell| cell.trim().to_owned()).collect()
}

/// A column without its unit: `memory.used [MiB]` is `memory.used`.
fn base(column: &str) -> &str {
    column.split(['[', ' ']).next().unwrap_or(column)
}

fn csv_gpu(columns: &[String], cells: &[String], snapshot: &mut GpuSnapshot) {
    let mut gpu = Gpu::default();
    for (column, cell) in columns.iter().zip(cells) {
        match base(column) {
            "name" | "gpu_name" => gpu.name = Some(redact::line(cell, 60)),
            "driver_version" => snapshot.driver = Some(redact::line(cell, 40)),
            "memory.total" => gpu.memory_total_mib = number(cell),
            "memory.used" => gpu.memory_used_mib = number(cell),
            "utilization.gpu" => gpu.utilization = share(cell),
            "temperature.gpu" => gpu.temperature_c = number(cell),
            "power.draw" | "power.draw.average" => gpu.power_w = number(cell),
            "power.limit" | "enforced.power.limit" => gpu.power_limit_w = number(cell),
            "clocks.sm" | "clocks.current.sm" => gpu.sm_mhz = number(cell),
            "clocks.mem" | "clocks.current.memory" => gpu.memory_mhz = number(cell),
            "fan.speed" => gpu.fan = share(cell),
            "clocks_event_reasons.active" | "clocks_throttle_reasons.active" => {
                let mask = u64::from_str_radix(cell.trim_start_matches("0x"), 16).unwrap_or(0);
                gpu.throttle.extend(Throttle::from_mask(mask));
            }
            other => {
                if cell == "Active"
                    && let Some(reason) = other
                        .split_once("reasons.")
                        .and_then(|(_, reason)| Throttle::from_label(&reason.replace('_', " ")))
                {
                    gpu.throttle.push(reason);
                }
            }
        }
    }
    snapshot.gpus.push(gpu);
}

fn csv_process(columns: &[String], cells: &[String], snapshot: &mut GpuSnapshot) {
    let cell = |name: &str| {
        columns.iter().position(|column| base(column) == name).map(|i| cells[i].as_str())
    };
    let Some(pid) = cell("pid").and_then(|pid| pid.parse().ok()) else { return };
    snapshot.processes.push(GpuProcess {
        pid,
        name: redact::line(cell("process_name").or(cell("name")).unwrap_or("?"), 80),
        memory_mib: cell("used_gpu_memory").or(cell("used_memory")).and_then(number),
        utilization: cell("sm").and_then(share),
    });
}

/// `nvidia-smi pmon`: columns named by a `#` line.
pub(super) fn process_monitor(text: &str, snapshot: &mut GpuSnapshot) {
    let mut columns: Vec<&str> = Vec::new();
    for line in text.lines() {
        if let Some(header) = line.trim().strip_prefix('#') {
            let names: Vec<&str> = header.split_whitespace().collect();
            if names.contains(&"pid") && names.contains(&"command") {
                columns = names;
            }
            continue;
        }
        let cells: Vec<&str> = line.split_whitespace().collect();
        let cell = |name: &str| {
            columns.iter().position(|column| *column == name).and_then(|i| cells.get(i).copied())
        };
        let Some(pid) = cell("pid").and_then(|pid| pid.parse().ok()) else { continue };
        if snapshot.processes.iter().any(|process| process.pid == pid) {
            continue;
        }
        let start = columns.iter().position(|column| *column == "command").unwrap_or(0);
        snapshot.processes.push(GpuProcess {
            pid,
            name: redact::line(&cells.get(start..).unwrap_or(&[]).join(" "), 80),
            memory_mib: cell("fb").and_then(number),
            utilization: cell("sm").and_then(share),
        });
    }
}

/// The table that `nvidia-smi` prints without arguments.
pub(super) fn default_table(text: &str, snapshot: &mut GpuSnapshot) {
    if !text.contains("NVIDIA-SMI") {
        return;
    }
    let mut in_processes = false;
    for line in text.lines() {
        in_processes |= line.contains("Processes:");
        if let Some(rest) = line.split_once("Driver Version:").map(|(_, rest)| rest) {
            snapshot.driver =
                rest.split_whitespace().next().map(|version| redact::line(version, 40));
        }
        let cells: Vec<&str> =
            line.trim_matches(|c| c == '|' || c == ' ').split('|').map(str::trim).collect();
        if in_processes {
            table_process(line, snapshot);
        } else if cells.len() >= 3 && cells[1].contains("MiB /") {
            let (used, total) = cells[1].split_once('/').unwrap_or((cells[1], ""));
            let words: Vec<&str> = cells[0].split_whitespace().collect();
            let (draw, limit) = cells[0].split_once('/').unwrap_or((cells[0], ""));
            snapshot.gpus.push(Gpu {
                name: None,
                utilization: share(cells[2]),
                memory_used_mib: number(used),
                memory_total_mib: number(total),
                temperature_c: words
                    .iter()
                    .find(|word| word.ends_with('C'))
                    .and_then(|word| number(word)),
                power_w: draw.split_whitespace().last().and_then(number),
                power_limit_w: number(limit),
                fan: words.first().filter(|word| word.ends_with('%')).and_then(|word| share(word)),
                ..Gpu::default()
            });
        }
    }
}

/// `|    0   N/A  N/A     22011      C   name      60000MiB |`.
fn table_process(line: &str, snapshot: &mut GpuSnapshot) {
    let words: Vec<&str> = line.trim_matches(|c| c == '|' || c == ' ').split_whitespace().collect();
    let Some(kind) = words.iter().position(|word| matches!(*word, "C" | "G" | "C+G")) else {
        return;
    };
    let Some(pid) = kind.checked_sub(1).and_then(|i| words[i].parse().ok()) else { return };
    let memory = words.last().filter(|word| word.ends_with("MiB")).and_then(|word| number(word));
    let end = if memory.is_some() { words.len() - 1 } else { words.len() };
    snapshot.processes.push(GpuProcess {
        pid,
        name: redact::line(&words[kind + 1..end].join(" "), 80),
        memory_mib: memory,
        utilization: None,
    });
}
