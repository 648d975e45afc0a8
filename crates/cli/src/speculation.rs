//! From the speculation flags and what the checkpoint has to how deep the draft head drafts.

use anyhow::{Result, bail, ensure};
use checkpoint::{Checkpoint, DraftHead};
use engine::config::Speculation;

use crate::flags::{Algorithm, SpeculationFlags, Steps};

/// The deepest draft that `auto` tries.
const AUTO_DEPTH: usize = 8;
/// The deepest draft that can be asked for.
const MAX_DEPTH: usize = 15;

/// Decides, or says which flags contradict each other or the checkpoint.
pub(crate) fn resolve(flags: &SpeculationFlags, checkpoint: &Checkpoint) -> Result<Speculation> {
    ensure!(
        flags.speculative_eagle_topk == 1,
        "--speculative-eagle-topk {} is not supported: drafts are a chain, use 1",
        flags.speculative_eagle_topk
    );
    let depth_given =
        flags.speculative_num_steps.is_some() || flags.speculative_num_draft_tokens.is_some();
    match (flags.speculative_algorithm, checkpoint.draft_head()) {
        (Some(Algorithm::None), _) => {
            ensure!(
                !depth_given,
                "--speculative-algorithm none contradicts --speculative-num-steps and \
                 --speculative-num-draft-tokens: give one or the other"
            );
            Ok(Speculation::Off)
        }
        (None, DraftHead::NotDeclared | DraftHead::Missing) if !depth_given => Ok(Speculation::Off),
        (_, DraftHead::NotDeclared) => {
            bail!(
                "speculation needs a draft head, and this checkpoint declares none: leave the --speculative flags out"
            )
        }
        (_, DraftHead::Missing) => bail!(
            "speculation needs the draft head that config.json declares, but no tensor starts with \
             `mtp.`: use --speculative-algorithm none, or complete the checkpoint"
        ),
        (_, DraftHead::Present) => depth(flags),
    }
}

fn depth(flags: &SpeculationFlags) -> Result<Speculation> {
    let steps = flags.speculative_num_steps.unwrap_or(Steps::Auto);
    let draft_tokens = flags.speculative_num_draft_tokens;
    if draft_tokens == Some(0) || draft_tokens == Some(1) {
        bail!("--speculative-num-draft-tokens counts the newest token too: it is at least 2");
    }
    let speculation = match (steps, draft_tokens) {
        (Steps::Fixed(0), None) => Speculation::Off,
        (Steps::Fixed(0), Some(n)) => {
            bail!("--speculative-num-steps 0 contradicts --speculative-num-draft-tokens {n}")
        }
        (Steps::Fixed(n), draft_tokens) => {
            if let Some(given) = draft_tokens.filter(|given| *given != n + 1) {
                tracing::warn!(
                    "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when \
                     speculative_eagle_topk == 1 (asked {given}, is {})",
                    n + 1
                );
            }
            Speculation::Fixed(n)
        }
        (Steps::Auto, None) => Speculation::Auto { max_depth: AUTO_DEPTH },
        (Steps::Auto, Some(n)) => Speculation::Auto { max_depth: n - 1 },
    };
    ensure!(
        speculation.max_depth() <= MAX_DEPTH,
        "{} drafts in one step are more than the {MAX_DEPTH} that are possible: use \
         --speculative-num-steps {MAX_DEPTH} or fewer",
        speculation.max_depth()
    );
    Ok(speculation)
}
