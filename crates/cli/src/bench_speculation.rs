//! `outrider bench --speculative`: what drafting buys, by kind of prompt and by depth.
//!
//! One sequence at a time through the real engine. Every repeat runs all depths one after the
//! other, so that a machine that slows down slows all of them; ratios are within one repeat.

use anyhow::{Context, Result, bail, ensure};
use checkpoint::DraftHead;
use engine::request::{Event, Finish, Request, Sampling};
use serde::Serialize;
use serde_json::{Map, json};
use text::{ChatRequest, Markers};

use crate::bench::median;
use crate::flags::{Algorithm, BenchFlags, PoolFlags, SpeculationFlags, Steps};
use crate::launch::{Launch, LaunchFlags};
use crate::sink;

const DEPTHS: [Steps; 10] = [
    Steps::Fixed(0),
    Steps::Fixed(1),
    Steps::Fixed(2),
    Steps::Fixed(3),
    Steps::Fixed(4),
    Steps::Fixed(5),
    Steps::Fixed(6),
    Steps::Fixed(7),
    Steps::Fixed(8),
    Steps::Auto,
];

const TEMPERATURES: [f32; 2] = [0.0, 0.6];

/// Kinds of prompts. Chats go through the model's template.
const CLASSES: [(&str, [&str; 3]); 3] = [
    (
        "code",
        [
            "import os\nimport sys\n\n\ndef read_file(path, encoding=None):\n    \"\"\"Return the text of a file.\"\"\"\n",
            "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, item):\n",
            "def merge(left, right):\n    result = []\n    i = j = 0\n    while i < len(left) and j < len(right):\n",
        ],
    ),
    (
        "chat",
        [
            "Write a function that adds two numbers.",
            "Write a function that returns the largest item of a list.",
            "Write a class that counts words.",
        ],
    ),
    (
        "prose",
        [
            "The module provides a simple way to read and write configuration files. It",
            "When the server starts, it reads its settings and then waits for requests. Each request",
            "This function is used by the other functions of this module. The caller must",
        ],
    ),
];

/// One line of the table; medians over the repeats.
#[derive(Serialize)]
struct Row {
    class: &'static str,
    temperature: f32,
    depth: String,
    /// Tokens of one decode round.
    accept_len: f64,
    /// Accepted over drafted.
    accept_rate: f64,
    /// Drafts of one decode round.
    mean_depth: f64,
    tokens_per_s: f64,
    /// Tokens per second over those of depth 0 in the same repeat.
    ratio: f64,
}

/// What the requests of one setting added up to.
#[derive(Clone, Copy, Default)]
struct Sum {
    n_rounds: usize,
    n_drafted: usize,
    n_accepted: usize,
    n_decoded: usize,
    decode_s: f64,
}

impl Sum {
    fn add(&mut self, finish: &Finish) {
        self.n_rounds += finish.speculation.n_decode_rounds;
        self.n_drafted += finish.speculation.n_drafted;
        self.n_accepted += finish.speculation.n_accepted;
        // The first token comes out of the prefill.
        self.n_decoded += finish.n_generated.saturating_sub(1);
        self.decode_s += finish.timings.decode_s;
    }

    fn tokens_per_s(&self) -> f64 {
        self.n_decoded as f64 / self.decode_s.max(1e-9)
    }

    fn per_round(&self, n: usize) -> f64 {
        n as f64 / self.n_rounds.max(1) as f64
    }
}

/// Runs all settings and prints the table or JSON.
pub(crate) fn run(flags: &BenchFlags) -> Result<()> {
    ensure!(flags.repeat > 0, "--repeat takes a number of at least 1");
    ensure!(flags.decode > 1, "--decode takes a number of at least 2 with --speculative");
    let n_cells = CLASSES.len() * TEMPERATURES.len();
    // `[repeat][depth][class and temperature]`
    let mut sums = vec![vec![vec![Sum::default(); n_cells]; DEPTHS.len()]; flags.repeat];
    for repeat in &mut sums {
        for (depth, cells) in DEPTHS.iter().zip(repeat) {
            measure(flags, *depth, cells)?;
        }
    }
    let rows = rows(&sums);
    if flags.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&json!({"model": flags.model.name(), "rows": rows}))?
        );
    } else {
        print(&rows);
    }
    Ok(())
}

/// Runs every class and temperature at one depth.
fn measure(flags: &BenchFlags, depth: Steps, cells: &mut [Sum]) -> Result<()> {
    let off = depth == Steps::Fixed(0);
    let launch = Launch::prepare(LaunchFlags {
        model: &flags.model,
        pools: &PoolFlags { kv_cache_dtype: flags.kv_cache_dtype, ..PoolFlags::one_request() },
        speculation: &SpeculationFlags {
            speculative_algorithm: off.then_some(Algorithm::None),
            speculative_num_steps: (!off).then_some(depth),
            speculative_eagle_topk: 1,
            speculative_num_draft_tokens: None,
        },
        chat_template: None,
    })?;
    if launch.source.checkpoint().draft_head() != DraftHead::Present {
        bail!(
            "--speculative needs a checkpoint with a draft head, and {} has none",
            flags.model.name()
        );
    }
    let (engine, _) = launch.start(Box::new(|_| {}))?;
    // `auto` measures as it goes: a first answer that is not counted lets every depth warm up.
    let mut id = 0;
    let mut generate = |prompt: Vec<u32>, temperature: f32, seed: u64| -> Result<Finish> {
        id += 1;
        let (sink, events) = sink::events();
        let sampling = Sampling { temperature, seed, ignore_eos: true, ..Sampling::greedy() };
        let max_tokens = flags.decode as u32;
        engine
            .submit(Request { id, prompt, max_tokens, sampling, boundaries: Vec::new() }, sink)?;
        loop {
            match events.recv().context("the engine ended without an answer")? {
                Event::Tokens(_) => {}
                Event::Finished(finish) => return Ok(finish),
                Event::Failed(why) => bail!("{why}"),
            }
        }
    };
    generate(prompt(&launch, "code", CLASSES[0].1[0])?, 0.0, 0)?;
    let mut cells = cells.iter_mut();
    for (class, prompts) in CLASSES {
        for temperature in TEMPERATURES {
            let sum = cells.next().expect("a cell for each class and temperature");
            for (seed, text) in prompts.iter().enumerate() {
                sum.add(&generate(prompt(&launch, class, text)?, temperature, seed as u64)?);
            }
        }
    }
    Ok(())
}

fn prompt(launch: &Launch, class: &str, text: &str) -> Result<Vec<u32>> {
    let Some(template) = launch.template.as_ref().filter(|_| class == "chat") else {
        return Ok(launch.tokenizer.encode(text, Markers::Plain)?);
    };
    let messages = [json!({"role": "user", "content": text})];
    let request = ChatRequest {
        messages: &messages,
        tools: &[],
        add_generation_prompt: true,
        kwargs: &Map::new(),
    };
    Ok(template.render(request)?.tokens)
}

fn rows(sums: &[Vec<Vec<Sum>>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (c, (class, _)) in CLASSES.iter().enumerate() {
        for (t, temperature) in TEMPERATURES.iter().enumerate() {
            let cell = c * TEMPERATURES.len() + t;
            for (d, depth) in DEPTHS.iter().enumerate() {
                let over = |f: &dyn Fn(&Vec<Vec<Sum>>) -> f64| {
                    median(&mut sums.iter().map(f).collect::<Vec<_>>())
                };
                let of = |f: &dyn Fn(&Sum) -> f64| over(&|repeat| f(&repeat[d][cell]));
                rows.push(Row {
                    class,
                    temperature: *temperature,
                    depth: match depth {
                        Steps::Auto => "auto".to_owned(),
                        Steps::Fixed(n) => n.to_string(),
                    },
                    accept_len: of(&|s| 1.0 + s.per_round(s.n_accepted)),
                    accept_rate: of(&|s| s.n_accepted as f64 / s.n_drafted.max(1) as f64),
                    mean_depth: of(&|s| s.per_round(s.n_drafted)),
                    tokens_per_s: of(&Sum::tokens_per_s),
                    ratio: over(&|repeat| {
                        repeat[d][cell].tokens_per_s() / repeat[0][cell].tokens_per_s()
                    }),
                });
            }
        }
    }
    rows
}

fn print(rows: &[Row]) {
    println!(
        "{:<6} {:>5} {:>6} {:>11} {:>12} {:>11} {:>9} {:>7}",
        "class", "temp", "depth", "accept len", "accept rate", "mean depth", "tok/s", "ratio"
    );
    for row in rows {
        println!(
            "{:<6} {:>5} {:>6} {:>11.2} {:>12.2} {:>11.2} {:>9.1} {:>7.2}",
            row.class,
            row.temperature,
            row.depth,
            row.accept_len,
            row.accept_rate,
            row.mean_depth,
            row.tokens_per_s,
            row.ratio
        );
    }
    println!(
        "\nMedians over the repeats; ratio is tokens/s over those of depth 0 in the same repeat."
    );
}
