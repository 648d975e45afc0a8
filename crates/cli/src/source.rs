//! From what the user named to a loaded model: the checkpoint, the kernels, the progress shown.

use std::io::IsTerminal;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use checkpoint::{Checkpoint, DType, ModelConfig};
use indicatif::{ProgressBar, ProgressStyle};
use kernels::{Bits, Cpu, Isa, KvType};
use model::Model;
use model::load::Progress;
use model::network::ModelOptions;

use crate::embedded;
use crate::flags::{IsaChoice, KvChoice, ModelFlags, Quantization};

/// An opened checkpoint and the name it was asked for by.
pub(crate) struct Source {
    /// As the user wrote it.
    pub(crate) name: String,
    checkpoint: Checkpoint,
}

impl Source {
    /// Opens the model that the flags name; fetches it from the hub if it is a name there.
    pub(crate) fn resolve(flags: &ModelFlags) -> Result<Self> {
        let name = flags.name().to_owned();
        let checkpoint = if name == embedded::NAME && !Path::new(&name).exists() {
            Checkpoint::embedded(embedded::FILES)?
        } else {
            let path = crate::download::path(&name, flags.revision.as_deref())?;
            Checkpoint::open(&path).with_context(|| format!("cannot use model {name}"))?
        };
        for warning in checkpoint.warnings() {
            tracing::warn!("{warning}");
        }
        tracing::info!("weights as stored: {}", type_mix(&checkpoint));
        let skipped = checkpoint.skipped();
        if skipped.n_tensors > 0 {
            tracing::info!(
                "skipped {} tensors ({:.1} MB) that text generation does not need (vision)",
                skipped.n_tensors,
                skipped.bytes as f64 / 1e6
            );
        }
        Ok(Self { name, checkpoint })
    }

    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Whether this is the model inside the binary.
    pub(crate) fn is_embedded(&self) -> bool {
        self.name == embedded::NAME
    }
}

/// What the weights are stored as, most bytes first: `Q4_1 66.4 MB (210 tensors), …`.
fn type_mix(checkpoint: &Checkpoint) -> String {
    let part = |(dtype, n, bytes): &(DType, usize, u64)| {
        let tensors = if *n == 1 { "tensor" } else { "tensors" };
        format!("{dtype} {:.1} MB ({n} {tensors})", *bytes as f64 / 1e6)
    };
    checkpoint.stored_types().iter().map(part).collect::<Vec<_>>().join(", ")
}

/// The instruction set asked for, if this machine has it.
pub(crate) fn isa(flags: &ModelFlags) -> Result<Isa> {
    let best = Isa::detect();
    let isa = match flags.isa {
        IsaChoice::Auto => best,
        IsaChoice::Scalar => Isa::Scalar,
        IsaChoice::Avx2 => Isa::Avx2,
        IsaChoice::Avx512 => Isa::Avx512,
    };
    if isa > best {
        bail!("--isa {isa} needs instructions that this CPU does not have; its best is {best}");
    }
    Ok(isa)
}

/// Kernels on the threads and instruction set asked for.
pub(crate) fn cpu(flags: &ModelFlags) -> Result<Cpu> {
    let cores = available_parallelism().map_or(1, usize::from);
    let threads = flags.threads.map_or(cores, usize::from);
    if threads > cores {
        tracing::warn!(
            "--threads {threads} is more than the {cores} cores this process may use: expect it to be slower"
        );
    }
    Ok(Cpu::new(threads, isa(flags)?))
}

/// The instructions in use, those for integers beside the others.
pub(crate) fn kernels_of(cpu: &Cpu) -> String {
    format!("{} ({} for integers)", cpu.isa(), cpu.dot_isa())
}

/// In how many bits the weights are packed.
pub(crate) fn bits(flags: &ModelFlags) -> Bits {
    match flags.quantization {
        None => Bits::AsStored,
        Some(Quantization::Int8) => Bits::Eight,
        Some(Quantization::Int4) => Bits::Four,
    }
}

/// The same for the plan.
pub(crate) fn quantization(flags: &ModelFlags) -> plan::Quantization {
    match flags.quantization {
        None => plan::Quantization::AsStored,
        Some(Quantization::Int8) => plan::Quantization::Int8,
        Some(Quantization::Int4) => plan::Quantization::Int4,
    }
}

/// Element type of the KV store where no plan decides it.
pub(crate) fn kv_type(choice: KvChoice, config: &ModelConfig) -> KvType {
    planned_kv_type(choice.kv_type().unwrap_or(plan::KvType::of(config.dtype)))
}

/// The plan's element type of the KV store, as the kernels call it.
pub(crate) fn planned_kv_type(planned: plan::KvType) -> KvType {
    match planned {
        plan::KvType::Bf16 => KvType::Bf16,
        plan::KvType::F32 => KvType::F32,
        plan::KvType::Int8 => KvType::Int8,
    }
}

/// Loads the weights, with a bar on a terminal and log lines elsewhere.
pub(crate) fn load(source: &Source, cpu: Cpu, options: &ModelOptions) -> Result<Model> {
    let mut report = Report::new();
    let model = Model::load(&source.checkpoint, cpu, options, &mut |p| report.show(p))
        .with_context(|| format!("cannot load model {}", source.name))?;
    report.bar.finish_and_clear();
    tracing::info!("weights {}, kernels {}", model.weight_format(), kernels_of(model.cpu()));
    Ok(model)
}

/// A progress bar of `style` on a terminal; hidden elsewhere.
pub(crate) fn bar(len: u64, style: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    ProgressBar::new(len).with_style(ProgressStyle::with_template(style).expect("a valid template"))
}

/// Shows how far a load is, at most once every two seconds in a log.
struct Report {
    bar: ProgressBar,
    said: Instant,
}

impl Report {
    const PAUSE: Duration = Duration::from_secs(2);

    fn new() -> Self {
        let bar = bar(0, "loading {bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
        Self { bar, said: Instant::now() }
    }

    fn show(&mut self, progress: Progress) {
        self.bar.set_length(progress.total_bytes);
        self.bar.set_position(progress.done_bytes);
        if self.bar.is_hidden() && self.said.elapsed() >= Self::PAUSE {
            self.said = Instant::now();
            let share = progress.done_bytes as f64 / progress.total_bytes.max(1) as f64;
            tracing::info!(
                "loading weights: {:.0} % of {:.2} GB",
                share * 100.0,
                progress.total_bytes as f64 / 1e9
            );
        }
    }
}
