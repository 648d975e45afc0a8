//! SGLang flags that an old command line may carry and that change nothing on a CPU.
//!
//! They are accepted and listed at start with the reason, so that a unit file written for SGLang
//! works as it is. A value that would change something is refused by name.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// What may follow the flag.
enum Takes {
    /// Nothing: it is a switch.
    Nothing,
    /// Any value: none has a meaning here.
    Any,
    /// One of these values; others would change what is computed.
    Only(&'static [&'static str]),
}

/// One flag, its other spellings, and why it changes nothing.
struct Foreign {
    name: &'static str,
    aliases: &'static [&'static str],
    takes: Takes,
    why: &'static str,
}

const fn foreign(
    name: &'static str,
    aliases: &'static [&'static str],
    takes: Takes,
    why: &'static str,
) -> Foreign {
    Foreign { name, aliases, takes, why }
}

const GRAPHS: &str = "there are no CUDA graphs on a CPU";
const KERNELS: &str = "the kernels are chosen by --isa";
const ALWAYS: &str = "it is always on";
const TEMPLATE: &str = "the chat template decides it";

const FLAGS: &[Foreign] = &[
    foreign("attention-backend", &[], Takes::Any, KERNELS),
    foreign(
        "cuda-graph-bs",
        &["cuda-graph-bs-decode", "cuda-graph-bs-prefill"],
        Takes::Any,
        GRAPHS,
    ),
    foreign(
        "cuda-graph-max-bs",
        &["cuda-graph-max-bs-decode", "cuda-graph-max-bs-prefill"],
        Takes::Any,
        GRAPHS,
    ),
    foreign("device", &[], Takes::Only(&["cpu", "auto"]), "this program runs on the CPU"),
    foreign(
        "disable-cuda-graph",
        &[
            "disable-decode-cuda-graph",
            "disable-prefill-cuda-graph",
            "disable-piecewise-cuda-graph",
        ],
        Takes::Nothing,
        GRAPHS,
    ),
    foreign(
        "disable-overlap-schedule",
        &[],
        Takes::Nothing,
        "scheduling takes no time worth hiding",
    ),
    foreign("enable-cache-report", &[], Takes::Nothing, ALWAYS),
    foreign("enable-metrics", &[], Takes::Nothing, ALWAYS),
    foreign("enable-mixed-chunk", &[], Takes::Nothing, ALWAYS),
    foreign("linear-attn-backend", &[], Takes::Any, KERNELS),
    foreign(
        "load-format",
        &[],
        Takes::Only(&["auto", "safetensors", "gguf"]),
        "the files say what they are",
    ),
    foreign(
        "mamba-radix-cache-strategy",
        &["mamba-scheduler-strategy"],
        Takes::Only(&["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"]),
        "snapshots are copies of committed state, so a running request needs no buffers for them; \
         see --mamba-track-interval and --disable-radix-cache",
    ),
    foreign("mamba-ssm-dtype", &[], Takes::Only(&["float32"]), "the state is always float32"),
    foreign("page-size", &[], Takes::Only(&["64"]), "blocks have 64 positions"),
    foreign("reasoning-parser", &[], Takes::Only(&["qwen3", "qwen3-thinking", "auto"]), TEMPLATE),
    foreign("sampling-backend", &[], Takes::Any, KERNELS),
    foreign("schedule-policy", &[], Takes::Only(&["fcfs"]), "requests run in arrival order"),
    foreign("speculative-attention-mode", &[], Takes::Any, KERNELS),
    foreign(
        "tool-call-parser",
        &[],
        Takes::Only(&["qwen3_coder", "qwen25", "qwen", "auto"]),
        TEMPLATE,
    ),
    foreign(
        "tensor-parallel-size",
        &["tp-size", "tp"],
        Takes::Any,
        "all cores work on one copy of the weights; see --threads",
    ),
    foreign("trust-remote-code", &[], Takes::Nothing, "no code of a checkpoint is ever run"),
    foreign("watchdog-timeout", &[], Takes::Any, "a step cannot hang; see /health_generate"),
];

/// Adds the flags, hidden from the help.
pub(crate) fn declare(command: Command) -> Command {
    FLAGS.iter().fold(command, |command, flag| {
        let arg = Arg::new(flag.name).long(flag.name).aliases(flag.aliases).hide(true);
        command.arg(match flag.takes {
            Takes::Nothing => arg.action(ArgAction::SetTrue),
            Takes::Any => arg.num_args(1..).value_name("VALUE"),
            Takes::Only(values) => arg.value_parser(values.to_vec()),
        })
    })
}

/// The given ones, each with its reason, as the sentences that are logged.
pub(crate) fn notices(matches: &ArgMatches) -> Vec<String> {
    let given = |flag: &&Foreign| {
        matches.value_source(flag.name) == Some(clap::parser::ValueSource::CommandLine)
    };
    FLAGS
        .iter()
        .filter(given)
        .map(|f| format!("--{} changes nothing here: {}", f.name, f.why))
        .collect()
}

/// The lines of the table in `docs/configuration.md`.
#[cfg(test)]
pub(crate) fn documentation() -> String {
    let mut out = String::from("| flag | values | why it changes nothing |\n|---|---|---|\n");
    for flag in FLAGS {
        let spellings: Vec<String> =
            [flag.name].iter().chain(flag.aliases).map(|name| format!("`--{name}`")).collect();
        let values = match flag.takes {
            Takes::Nothing => "none".to_owned(),
            Takes::Any => "any".to_owned(),
            Takes::Only(values) => values.join(", "),
        };
        out += &format!("| {} | {values} | {} |\n", spellings.join(", "), flag.why);
    }
    out
}
