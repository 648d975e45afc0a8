//! `outrider plan`: what an engine would make of a model, devices and flags, without starting it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use plan::engines::args::{Engine, EngineArgs};
use plan::engines::device::Device;
use plan::engines::known::known;
use plan::engines::shape::ModelShape;
use plan::engines::{self, command};

#[derive(Args, Clone)]
pub(crate) struct PlanFlags {
    /// A `config.json`, a folder that has one, or the name of a published model such as Qwen3.6-27B
    #[arg(value_name = "MODEL")]
    model: String,

    /// Whose arithmetic: `sglang[@VERSION]`, `vllm[@VERSION]`, llama.cpp or outrider; without a version
    /// the newest known
    #[arg(long, value_name = "ENGINE[@VERSION]", value_parser = engine)]
    engine: Engine,

    /// Devices: `COUNTxMEMORY@BANDWIDTH[@COMPUTE]`, such as 2x48GiB@768GB/s@150TFLOPS
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    device: Device,

    /// Tokens of each running request that the speed is predicted for
    #[arg(long, value_name = "TOKENS", default_value_t = 1000)]
    load_tokens: u64,

    /// Share of first drafts that are accepted, if measured [default: what is usual, 0.60 to 0.85]
    #[arg(long, value_name = "SHARE", value_parser = acceptance)]
    acceptance: Option<f64>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    /// The engine's own flags, as on its command line; they come last
    #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<String>,
}

fn engine(text: &str) -> Result<Engine, String> {
    text.parse().map_err(|error: engines::EngineError| error.to_string())
}

fn device(text: &str) -> Result<Device, String> {
    text.parse().map_err(|error: engines::EngineError| error.to_string())
}

fn acceptance(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "not a share from 0 to 1".to_owned())
}

/// Plans and prints.
pub(crate) fn run(flags: &PlanFlags) -> Result<()> {
    for own in ["--engine", "--load-tokens", "--acceptance", "--json"] {
        let given = |word: &String| word == own || word.starts_with(&format!("{own}="));
        ensure!(!flags.flags.iter().any(given), "{own} belongs before the engine's own flags");
    }
    ensure!(flags.load_tokens > 0, "--load-tokens takes a number of at least 1");
    let mut model = shape(&flags.model)?;
    let asked = command::read(flags.engine, &model, &flags.flags)?;
    if let Some(bytes) = asked.layer_bytes_per_param {
        model.layer_bytes_per_param = bytes;
    }
    let args = EngineArgs {
        engine: flags.engine,
        model,
        device: flags.device,
        flags: asked.flags,
        observed: None,
        load_tokens: flags.load_tokens,
        acceptance: flags.acceptance,
    };
    let refuses = || format!("{} would not start", flags.engine);
    let mut plan = engines::plan(&args).with_context(refuses)?;
    plan.notices.extend(asked.notices);
    let text = if flags.json { format!("{}\n", plan.json()) } else { plan.text() };
    crate::probe::print(&text)
}

/// The sizes of a model: from its file, else by its name.
fn shape(model: &str) -> Result<ModelShape> {
    let path = Path::new(model);
    let file = if path.is_dir() { path.join("config.json") } else { PathBuf::from(path) };
    if !file.exists() {
        return known(model).ok_or_else(|| {
            anyhow!(
                "{model} is neither a config.json, nor a folder that has one, nor a model whose \
                 sizes are known: those are Qwen3.5 and Qwen3.6 in 0.8B, 2B, 4B, 9B, 27B and \
                 35B-A3B, such as Qwen3.6-27B or Qwen3.6-27B-FP8"
            )
        });
    }
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let config =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))?;
    let name = match path.is_dir() {
        true => path.file_name(),
        false => path.parent().and_then(Path::file_name),
    };
    let name = name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    ModelShape::from_config(&name, &config)
        .with_context(|| format!("cannot use {}", file.display()))
}
