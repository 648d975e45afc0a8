//! llama.cpp's server: KV for the whole context is reserved at start, layers that do not fit move out.

use super::args::EngineArgs;
use super::report::{EnginePlan, MemoryLine};
use super::speed::{self, Cost};
use super::{EngineError, GIB};

/// Memory that the fit step leaves free on each device, in GiB.
const MARGIN_GIB: f64 = 1.0;
/// Compute buffers in GiB: an estimate, the log has the truth.
const COMPUTE_GIB: f64 = 0.75;
/// Memory bandwidth of the host in GB/s where layers move out: two channels of DDR5.
const HOST_GB_S: f64 = 60.0;

/// The plan of llama.cpp's server.
///
/// # Errors
/// When not even the buffers that cannot move fit the devices.
pub fn plan(args: &EngineArgs) -> Result<EnginePlan, EngineError> {
    let (flags, model) = (&args.flags, &args.model);
    let mut notices = unused(args);
    let kv_element = flags.kv_dtype.map_or(2.0, |dtype| dtype.0);
    let context = flags.context_length.unwrap_or(model.max_positions).max(1);
    let slots = flags.max_running.unwrap_or(1).max(1);
    // Layers are spread over the devices, so that their memories count together; a `tp` above one
    // stands for a row split, which also adds up their bandwidths.
    let devices = args.device.count as f64;
    let n_draft_layers = if flags.draft_depth == 0 { 0 } else { model.n_mtp_layers };
    let n_kv_layers = model.n_attention_layers + n_draft_layers;
    let kv = model.kv_bytes_per_token(1, n_kv_layers, kv_element) * context as f64;
    let conv_rows = model.delta.map_or(0, |delta| delta.conv_kernel.saturating_sub(1));
    let state = model.state_bytes(1, conv_rows, 4.0, 4.0);
    // Text only: the vision tower is a file of its own.
    let weights = model.weight_bytes(1) - model.vision_params as f64 * 2.0
        + if flags.draft_depth == 0 { 0.0 } else { model.mtp_bytes(1) };

    let room = (args.device.memory_gib - MARGIN_GIB - COMPUTE_GIB) * devices * GIB;
    let needed = weights + kv + state * slots as f64;
    let excess = (needed - room).max(0.0);
    // A layer moves with its KV.
    let host_share = excess / needed;
    if host_share >= 1.0 || room <= 0.0 {
        return Err(EngineError::Refuses("the devices hold no layer of this model".into()));
    }
    let n_layers = model.n_layers();
    if excess > 0.0 {
        let on_device = n_layers - (host_share * n_layers as f64).ceil() as u64;
        notices.push(format!(
            "{:.1} GiB do not fit: about {on_device} of {n_layers} layers stay on the devices; a \
             context of {} would fit",
            excess / GIB,
            fitting_context(context, kv, excess),
        ));
    }
    let kv_limited_by = format!("-c {context}, reserved at start and shared by {slots} slots");
    let cost = Cost {
        kv_bytes_per_token: model.kv_bytes_per_token(flags.tp, n_kv_layers, kv_element),
        state_bytes: model.state_bytes(flags.tp, conv_rows, 4.0, 4.0),
        host_share,
        host_gb_s: HOST_GB_S,
    };
    Ok(EnginePlan {
        engine: args.engine.to_string(),
        model: model.name.clone(),
        device: args.device.to_string(),
        memory: vec![
            MemoryLine { name: "weights, all devices", bytes: weights },
            MemoryLine { name: "KV, all devices", bytes: kv },
            MemoryLine { name: "recurrent states", bytes: state * slots as f64 },
            MemoryLine { name: "moved to host memory", bytes: excess },
        ],
        kv_tokens: context,
        kv_limited_by,
        state_slots: model.delta.map(|_| slots),
        slots_per_request: model.delta.map(|_| 1),
        max_running: slots,
        max_running_asked: flags.max_running,
        running_limited_by: if flags.max_running.is_some() { "-np" } else { "the default" }.into(),
        max_request_tokens: context / slots,
        full_length_requests: slots as f64,
        speed: speed::table(args, &cost, slots),
        notices,
    })
}

/// The longest context whose KV leaves all layers on the devices, in steps of 1024.
fn fitting_context(context: u64, kv: f64, excess: f64) -> u64 {
    let fits = context as f64 * (1.0 - excess / kv);
    (fits.max(0.0) as u64) / 1024 * 1024
}

/// Flags that llama.cpp does not have.
fn unused(args: &EngineArgs) -> Vec<String> {
    let flags = &args.flags;
    [
        (flags.mem_fraction.is_some(), "--mem-fraction-static"),
        (flags.max_total_tokens.is_some(), "--max-total-tokens"),
        (flags.state_ratio.is_some(), "--mamba-full-memory-ratio"),
        (flags.state_slots.is_some(), "--max-mamba-cache-size"),
        (flags.state_dtype.is_some(), "--mamba-ssm-dtype"),
        (flags.state_strategy.is_some(), "--mamba-radix-cache-strategy"),
    ]
    .iter()
    .filter(|(given, _)| *given)
    .map(|(_, flag)| format!("{flag} has no meaning for llama.cpp"))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::args::{ElementBytes, Engine, EngineArgs, Flags};
    use super::super::shape::tests::qwen_27b;
    use super::super::{EngineError, GIB, plan};

    /// The 27B at about 4.3 bits on one 24 GB card.
    fn args(context: u64) -> EngineArgs {
        let mut model = qwen_27b();
        model.layer_bytes_per_param = 4.3 / 8.0;
        EngineArgs {
            engine: Engine::LlamaCpp,
            model,
            device: "1x24126MiB@936GB/s".parse().unwrap(),
            flags: Flags { context_length: Some(context), ..Flags::unset() },
            observed: None,
            load_tokens: 2000,
            acceptance: None,
        }
    }

    fn line(plan: &super::EnginePlan, name: &str) -> f64 {
        plan.memory.iter().find(|line| line.name == name).unwrap().bytes / GIB
    }

    /// Buffer sizes as the server logs them: 4096 and 16384 MiB of KV, 149.62 MiB of states.
    #[test]
    fn kv_is_reserved_for_the_whole_context() {
        let short = plan(&args(65_536)).unwrap();
        assert_eq!(line(&short, "KV, all devices"), 4.0);
        assert!((line(&short, "recurrent states") * 1024.0 - 149.62).abs() < 0.01);
        let mut args = args(262_144);
        args.flags.kv_dtype = Some("q8_0".parse().unwrap());
        assert_eq!(line(&plan(&args).unwrap(), "KV, all devices"), 8.5);
    }

    #[test]
    fn a_context_that_does_not_fit_moves_layers_out() {
        let short = plan(&args(32_768)).unwrap();
        assert_eq!(line(&short, "moved to host memory"), 0.0);
        let long = plan(&args(262_144)).unwrap();
        assert!(line(&long, "moved to host memory") > 8.0);
        assert!(long.notices.iter().any(|notice| notice.contains("layers stay on the devices")));
        assert!(long.speed[0].stream_tok_s.hi < 0.5 * short.speed[0].stream_tok_s.hi);
        assert_eq!(long.speed[0].limited_by, "weights in host memory");
    }

    #[test]
    fn slots_share_the_context() {
        let mut args = args(32_768);
        args.flags.max_running = Some(4);
        let plan = plan(&args).unwrap();
        assert_eq!((plan.max_request_tokens, plan.max_running), (8192, 4));
        assert_eq!(plan.state_slots, Some(4));
    }

    #[test]
    fn flags_of_others_are_named_and_tiny_devices_refused() {
        let mut args = args(4096);
        args.flags.state_dtype = Some(ElementBytes(2.0));
        assert!(plan(&args).unwrap().notices[0].starts_with("--mamba-ssm-dtype"));
        args.device.memory_gib = 1.0;
        assert!(matches!(plan(&args), Err(EngineError::Refuses(_))));
    }
}
