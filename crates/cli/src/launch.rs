//! From flags to a running engine: checkpoint, plan, weights, thread.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use checkpoint::GenerationConfig;
use engine::config::{EngineConfig, PrefixCache, Speculation};
use engine::engine::{Engine, Observer};
use engine::handle::EngineHandle;
use engine::request::Sampling;
use model::batch::Forward;
use model::network::ModelOptions;
use plan::{BLOCK_LEN, Host, ModelBytes, Plan, PlanOptions};
use text::{ChatTemplate, TemplateError, Tokenizer};

use crate::flags::{ModelFlags, PoolFlags, SpeculationFlags};
use crate::paced::Paced;
use crate::source::{self, Source};
use crate::speculation;

/// Everything decided before a weight is read.
pub(crate) struct Launch {
    pub(crate) source: Source,
    pub(crate) plan: Plan,
    pub(crate) speculation: Speculation,
    prefix_cache: Option<PrefixCache>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// None where the checkpoint has none: chat is refused then.
    pub(crate) template: Option<ChatTemplate>,
    model: ModelFlags,
    /// The least time of a pass, to imitate a slower machine.
    pub(crate) least_pass: Option<Duration>,
}

/// The flags that decide a launch.
pub(crate) struct LaunchFlags<'a> {
    pub(crate) model: &'a ModelFlags,
    pub(crate) pools: &'a PoolFlags,
    pub(crate) speculation: &'a SpeculationFlags,
    /// A template file instead of the checkpoint's.
    pub(crate) chat_template: Option<&'a Path>,
}

impl Launch {
    /// Opens the checkpoint and plans; nothing large is read or allocated.
    pub(crate) fn prepare(flags: LaunchFlags<'_>) -> Result<Self> {
        let source = Source::resolve(flags.model)?;
        let checkpoint = source.checkpoint();
        let speculation = speculation::resolve(flags.speculation, checkpoint)?;
        let pools = flags.pools;
        let interval = pools.mamba_track_interval;
        ensure!(
            interval > 0 && interval.is_multiple_of(BLOCK_LEN),
            "--mamba-track-interval {interval} is not a multiple of {BLOCK_LEN}"
        );
        let prefix_cache =
            (!pools.disable_radix_cache).then_some(PrefixCache { snapshot_interval: interval });
        let options = PlanOptions {
            mem_fraction_static: pools.mem_fraction_static,
            context_length: pools.context_length,
            max_running_requests: pools.max_running_requests,
            max_queued_requests: pools.max_queued_requests,
            max_total_tokens: pools.max_total_tokens,
            chunked_prefill_size: pools.chunked_prefill_size,
            mamba_full_memory_ratio: pools.mamba_full_memory_ratio,
            max_mamba_cache_size: pools.max_mamba_cache_size,
            kv_type: pools.kv_cache_dtype.kv_type(),
            draft_depth: speculation.max_depth(),
            prefix_cache: prefix_cache.is_some(),
            threads: flags.model.threads.map(usize::from),
        };
        let bytes = ModelBytes::of(checkpoint, source::quantization(flags.model));
        let plan = plan::plan(&options, &bytes, &Host::detect()?)?;
        let tokenizer = Arc::new(Tokenizer::from_json(&checkpoint.tokenizer_json()?)?);
        let template = template(checkpoint, flags.chat_template, &tokenizer)?;
        let model = flags.model.clone();
        Ok(Self {
            plan,
            speculation,
            prefix_cache,
            tokenizer,
            template,
            model,
            source,
            least_pass: None,
        })
    }

    /// Loads the weights and starts the engine; also says how long the load took, in seconds.
    pub(crate) fn start(&self, observer: Observer) -> Result<(EngineHandle, f64)> {
        let plan = &self.plan;
        let cpu = kernels::Cpu::new(plan.threads.value, source::isa(&self.model)?);
        let started = Instant::now();
        let model = source::load(
            &self.source,
            cpu,
            &ModelOptions {
                bits: source::bits(&self.model),
                kv_type: source::planned_kv_type(plan.kv_type),
                n_blocks: plan.n_blocks.value,
                n_slots: plan.n_slots.value,
                max_rows: plan.max_rows,
                max_drafts: plan.max_drafts,
                draft: plan.draft_depth > 0,
            },
        )?;
        let load_s = started.elapsed().as_secs_f64();
        let config = EngineConfig {
            max_running: plan.max_running_requests.value,
            max_queued: plan.max_queued_requests,
            n_blocks: plan.n_blocks.value,
            n_slots: plan.n_slots.value,
            context_length: plan.context_length.value,
            chunked_prefill_size: plan.chunked_prefill_size.value,
            eos_token_ids: self.source.checkpoint().generation().eos_token_ids.clone(),
            speculation: self.speculation,
            max_drafts: plan.max_drafts,
            prefix_cache: self.prefix_cache,
        };
        let model: Box<dyn Forward + Send> = match self.least_pass {
            Some(least) => Box::new(Paced { model, least }),
            None => Box::new(model),
        };
        Ok((Engine::start(model, config, observer), load_s))
    }
}

/// Sampling where nobody asks for anything else: what the checkpoint recommends, else OpenAI's values.
pub(crate) fn default_sampling(generation: &GenerationConfig) -> Sampling {
    let greedy = generation.do_sample == Some(false);
    Sampling {
        temperature: if greedy { 0.0 } else { generation.temperature.unwrap_or(1.0) },
        top_p: generation.top_p.unwrap_or(1.0),
        top_k: generation.top_k.unwrap_or(0),
        min_p: generation.min_p.unwrap_or(0.0),
        repetition_penalty: generation.repetition_penalty.unwrap_or(1.0),
        ..Sampling::greedy()
    }
}

/// The chat template: the given file, else the checkpoint's, else none.
fn template(
    checkpoint: &checkpoint::Checkpoint,
    file: Option<&Path>,
    tokenizer: &Arc<Tokenizer>,
) -> Result<Option<ChatTemplate>> {
    let jinja = match file {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .with_context(|| format!("cannot read --chat-template {}", path.display()))?,
        ),
        None => checkpoint.chat_template()?,
    };
    let config = serde_json::to_vec(&checkpoint.tokenizer_config()?)?;
    match ChatTemplate::new(jinja.as_deref(), &config, Arc::clone(tokenizer)) {
        Ok(template) => Ok(Some(template)),
        Err(TemplateError::Missing) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
